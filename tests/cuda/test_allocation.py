"""New memory and copies: PyTorch's, but for what is in memory that nothing was written to."""

import pytest
import torch

from detmode.cuda import (
    clone,
    contiguous,
    empty,
    empty_like,
    new_arange,
    new_empty,
    new_full,
    new_zeros,
)

LAST = torch.channels_last
FORMATS = [
    ((), torch.contiguous_format),
    ((0, 3), torch.contiguous_format),
    ((2, 3, 4), torch.contiguous_format),
    ((2, 3, 4, 5), LAST),
    ((2, 0, 3, 4), LAST),
    ((2, 3, 0, 4), LAST),
    ((2, 3, 4, 5, 6), torch.channels_last_3d),
]
NAN = float("nan")
UNWRITTEN = {
    torch.float16: NAN,
    torch.complex128: complex(NAN, NAN),
    torch.int32: 0xA5A5A5A5 - (1 << 32),
    torch.bool: True,
}
TENSORS = {
    "scalar": torch.tensor(1.5),
    "row_major": torch.arange(24.0).view(2, 3, 4),
    "channels_last": torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=LAST),
    "transposed": torch.arange(12).view(3, 4).t(),
    "with_gaps": torch.arange(24).view(4, 6)[:, ::2],
    "expanded": torch.arange(3, dtype=torch.int32).expand(4, 3),
    "conjugated": torch.view_as_complex(torch.arange(8.0).view(4, 2)).conj(),
    "without_elements": torch.empty(3, 0, 2),
}


@pytest.fixture(autouse=True, params=[False, True], ids=["", "under_the_flag"])
def flag(request):
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


def form(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@pytest.mark.parametrize(("shape", "format"), FORMATS, ids=str)
@pytest.mark.parametrize("dtype", UNWRITTEN)
def test_new_memory_is_of_the_form_of_pytorchs(shape, format, dtype):
    """Of shape, strides, dtype and device; on the CPU it holds what no kernel writes."""
    expected = torch.empty(shape, dtype=dtype, memory_format=format)
    like = torch.zeros(2)
    for made in (
        new_empty(like, shape, dtype, format),
        empty(shape, dtype, "cpu", format),
        empty_like(expected, memory_format=format),
    ):
        assert form(made) == form(expected)
        torch.testing.assert_close(
            made, torch.full_like(made, UNWRITTEN[dtype]), rtol=0, atol=0, equal_nan=True
        )
    assert form(new_empty(like.to(dtype), shape)) == form(torch.empty(shape, dtype=dtype))


@pytest.mark.parametrize("name", TENSORS)
def test_copies_are_pytorchs(name):
    """Of the same elements and strides; what needs no copy is the tensor itself."""
    given = TENSORS[name]
    formats = [torch.preserve_format, torch.contiguous_format] + [LAST] * (given.dim() == 4)
    for format in formats:
        made, expected = clone(given, memory_format=format), given.clone(memory_format=format)
        assert torch.equal(made, expected)
        assert form(made) == form(expected)
        assert made is not given
        assert form(empty_like(given, memory_format=format)) == form(expected)
    for format in formats[1:]:
        made = contiguous(given, memory_format=format)
        assert torch.equal(made, given)
        assert form(made) == form(given.contiguous(memory_format=format))
        assert (made is given) == given.is_contiguous(memory_format=format)
        other = contiguous(given, torch.complex128, format)
        assert torch.equal(other, given.to(torch.complex128))
        assert other.is_contiguous(memory_format=format)


def test_values_are_pytorchs():
    """Of zeros, of one number, and of positions."""
    like = torch.ones(2, dtype=torch.int16)
    for made, expected in (
        (new_zeros(like, (2, 3)), like.new_zeros(2, 3)),
        (new_zeros(like, (), torch.float64), like.new_zeros((), dtype=torch.float64)),
        (new_full(like, (4,), -1, torch.int64), like.new_full((4,), -1, dtype=torch.int64)),
        (new_arange(like, 5), torch.arange(5)),
        (new_arange(like, 0), torch.arange(0)),
    ):
        assert torch.equal(made, expected)
        assert form(made) == form(expected)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_memory_is_not_filled(device):
    """PyTorch fills what it allocates under its flag; this is not: no operator runs."""
    like = torch.zeros(2, 3, device=device)
    torch.use_deterministic_algorithms(True)

    def operators(make) -> set[str]:
        with torch.profiler.profile(acc_events=True) as profiler:
            assert make().device == like.device
        return {event.name for event in profiler.events() if event.name.startswith("aten::")}

    assert "aten::fill_" in operators(lambda: torch.empty(5, device=device))
    assert not operators(lambda: new_empty(like, (4, 5)))
    assert operators(lambda: clone(like)) == {"aten::copy_"}


def test_memory_of_no_kernels_is_pytorchs():
    """A device that no kernel runs on, such as meta, has its own."""
    made = new_empty(torch.empty(3, device="meta"), (4, 5), torch.int32)
    assert form(made) == form(torch.empty(4, 5, dtype=torch.int32, device="meta"))


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_memory_is_on_the_gpu_of_the_tensor():
    """Also where another GPU is the current one, which stays so."""
    like = torch.zeros(2, device="cuda:1")
    with torch.cuda.device(0):
        assert new_empty(like, (3,)).device == like.device
        assert torch.cuda.current_device() == 0
