"""Copies of arguments, and how results differ."""

import numpy as np
import pytest
import torch
from torch import Tensor

from detmode.bits.difference import Difference, difference, same_bits
from detmode.bits.snapshot import snapshot

E5M2, E4M3 = torch.float8_e5m2, torch.float8_e4m3fn


def copied(*args: object, whole: bool = False) -> tuple[object, ...]:
    return snapshot(args, {}, whole=whole)()[0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(4, 6)[1:3, ::2],
        torch.arange(24.0).reshape(4, 6).t(),
        torch.arange(4.0)[1:].expand(5, 3),
        torch.arange(9.0).as_strided((3, 4), (2, 1), 1),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(0, 3),
        torch.tensor(True),
        torch.from_numpy(np.arange(9, dtype=np.uint8))[1:],
    ],
    ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}".removeprefix("torch."),
)
def test_copy_is_the_same(tensor: Tensor) -> None:
    """Values, strides, and lazy conjugation and negation are; the memory is another."""
    (copy,) = copied(tensor)
    assert difference(copy, tensor) is None
    assert (copy.stride(), copy.is_conj(), copy.is_neg()) == (
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )
    assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()
    if tensor.numel():
        assert copy.data_ptr() % 64 == tensor.data_ptr() % 64


def test_an_argument_that_the_call_resizes() -> None:
    """A copy made after the call has the shape and the values from before it."""
    tensor = torch.arange(6.0)[2:4]
    copy = snapshot((tensor,), {})
    tensor.resize_(9).fill_(7)
    assert copy()[0][0].tolist() == [2, 3]


def test_bytes_that_the_call_counts_from_the_beginning() -> None:
    """They are where they were in their storage, however that is aligned."""
    tensor = torch.arange(40.0)[7:]
    for _ in range(8):
        ((copy, *_), _) = snapshot((tensor,), {}, whole=True, in_place=True)()
        assert torch.as_strided_copy(copy, (3,), (1,), 2).tolist() == [2, 3, 4]


def test_aliases_stay_aliases() -> None:
    """Of a tensor and its view, and of a tensor given twice; other copies are apart."""
    base = torch.zeros(6)
    copy = snapshot((base, [base[2:], None]), {"again": base})
    (one, (view, nothing)), kwargs = copy()
    view[0] = 5
    assert one.tolist() == [0, 0, 5, 0, 0, 0]
    assert kwargs["again"] is one
    assert nothing is None
    assert base.tolist() == [0] * 6
    base.fill_(7)
    assert copy()[0][0].tolist() == [0] * 6


def test_only_what_is_used_is_copied() -> None:
    """A view of a large buffer costs its own bytes, unless the whole storage is asked for."""
    view = torch.zeros(1 << 16)[256 : 256 + 16]
    (small,), (large,) = copied(view), copied(view, whole=True)
    assert small.untyped_storage().nbytes() < 1024
    assert large.untyped_storage().nbytes() >= 1 << 18
    assert large.storage_offset() % 16 == 0


def test_quantized_tensors_are_refused() -> None:
    with pytest.raises(RuntimeError, match="qint8"):
        snapshot((torch._empty_affine_quantized([2], scale=1.0, dtype=torch.qint8),), {})


def bits(*patterns: int) -> Tensor:
    return torch.tensor(patterns, dtype=torch.int64).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (bits(0x7FC00000), bits(0x7FC00000), None),
        (bits(0x7FC00000), bits(0x7FC00001), (1, None)),
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), (1, 0.0)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.5, 4.0]), (2, 2.0)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.inf]), (1, None)),
        (torch.ones(2, 3), torch.ones(3, 2), (6, None)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), (2, None)),
        (torch.ones(2, 3), torch.ones(3, 2).t(), None),
        (torch.tensor([True, False]), torch.tensor([True, True]), (1, 1.0)),
        (torch.tensor([3 + 4j]), torch.tensor([0j]), (1, 5.0)),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), None),
        (torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse(), (27, None)),
        (torch.eye(3).to_sparse(), torch.eye(3), (9, None)),
        (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse(), (3, 1.0)),
        (torch.ones(2).to(E5M2), torch.zeros(2).to(E5M2), (2, 1.0)),
        (torch.ones(2).to(E4M3), torch.zeros(2).to(E4M3), (2, 1.0)),
        (torch.ones(2).bfloat16(), torch.zeros(2).bfloat16(), (2, 1.0)),
        (torch.tensor([7, 1]), torch.tensor([7, 3]), (1, 2.0)),
        (torch.zeros(1).byte(), torch.full((1,), 255).byte(), (1, 255.0)),
        (torch.ones(1).expand(1), torch.ones(()).expand(1), None),
    ],
)  # fmt: skip
def test_difference(one: Tensor, other: Tensor, expected: Difference | None) -> None:
    """By bytes; strides do not count."""
    assert difference(one, other) == expected
    assert same_bits(one, other) == (expected is None)
