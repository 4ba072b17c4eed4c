"""Digests: the same on every device and for every stride, and different for different bytes."""

import struct
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detmode import cuda
from detmode.bits.digest import SOURCE, add_digest, add_digests, finish_digests
from detmode.bits.digest_batches import Digests
from detmode.cuda.launch import launch
from tests.shared import needs

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool)


def finished(sums: torch.Tensor, tensor: torch.Tensor) -> bytes:
    return finish_digests(sums.cpu()[None], torch.tensor([tensor.nbytes])).numpy().tobytes()


def digest(tensor: torch.Tensor) -> bytes:
    sums = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    add_digest(sums, tensor)
    return finished(sums, tensor)


def by_kernel(tensor: torch.Tensor, threads: int) -> bytes:
    sums = torch.zeros(2, dtype=torch.int64)
    data = tensor.contiguous().view(-1).view(torch.uint8)
    launch(SOURCE, "digest", threads, bytes=data, sums=sums, n_bytes=data.numel())
    return finished(sums, tensor)


def values(n: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return (torch.randn(n, generator=generator) * 50).to(dtype)


@needs.compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 3, 8, 63, 1000, 5001])
@pytest.mark.parametrize("seed", [None, 3])
def test_kernel_is_the_cpu_form(dtype: torch.dtype, n: int, seed: int | None) -> None:
    """The CUDA kernel gives the CPU's digest, in any schedule and with any number of threads."""
    tensor = values(n, dtype)
    with cuda.host.schedule(seed):
        assert by_kernel(tensor, 1) == by_kernel(tensor, 700) == digest(tensor)
        # Where a word does not begin it is as in a copy.
        assert by_kernel(tensor[1:], 8) == digest(tensor[1:]) == digest(tensor[1:].clone())


@given(st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_many_at_once(sizes: list[int]) -> None:
    """Tensors whose words lie one after the other have the digests that they have alone."""
    tensors = [values(size, torch.float32) for size in sizes]
    words = [
        torch.cat([t.view(torch.uint8), torch.zeros(-t.nbytes % 8, dtype=torch.uint8)])
        for t in tensors
    ]
    sums = torch.zeros(len(sizes), 2, dtype=torch.int64)
    lengths = torch.tensor([len(each) // 8 for each in words])
    add_digests(sums, torch.cat(words).view(torch.int64), lengths)
    sizes_in_bytes = torch.tensor([t.nbytes for t in tensors])
    together = finish_digests(sums, sizes_in_bytes).numpy().tobytes()
    assert together == b"".join(digest(tensor) for tensor in tensors)


@pytest.mark.parametrize("n", [100, 70_000])
def test_strides_do_not_matter(n: int) -> None:
    """A transposed, expanded, conjugated or negated view has the digest of its values."""
    tensor = values(n, torch.complex64).view(10, -1)
    assert digest(tensor.T) == digest(tensor.T.contiguous()) != digest(tensor)
    assert digest(tensor[:1].expand(4, -1)) == digest(tensor[:1].repeat(4, 1))
    assert digest(tensor.conj()) == digest(tensor.conj().resolve_conj()) != digest(tensor)
    assert digest(tensor.conj().imag) == digest(tensor.conj().imag.resolve_neg())


def one_change() -> Iterator[torch.Tensor]:
    """Tensors with each bit flipped, each pair of sign bits, and each exchange of two elements."""
    zeros, numbers = torch.zeros(40, dtype=torch.int32), values(40, torch.int32)
    yield from (zeros, numbers)
    for place in range(40):
        for bit in range(32):
            changed = zeros.clone()
            changed[place] = 1 << bit if bit < 31 else -(1 << 31)
            yield changed
        for other in range(place):
            changed = zeros.clone()
            changed[[place, other]] = -(1 << 31)
            yield changed
            changed = numbers.clone()
            changed[[place, other]] = numbers[[other, place]]
            yield changed


def test_every_change_counts() -> None:
    """Each gives a digest of its own; so do zeros of each length, the empty tensor too."""
    different = {change.numpy().tobytes(): digest(change) for change in one_change()}
    assert len(different) > 40 * 32 + 40 * 39 // 2
    assert len(set(different.values())) == len(different)
    assert len({digest(torch.zeros(n, dtype=torch.int8)) for n in range(50)}) == 50


def expected(content: bytes) -> bytes:
    """The digest of bytes, word by word in Python's integers, which have no chunks and no lanes."""
    most, sums = (1 << 64) - 1, [0, 0]
    for position, (word,) in enumerate(
        struct.iter_unpack("<Q", content + bytes(-len(content) % 8))
    ):
        x = (word + (position + 1) * 0x9E3779B97F4A7C15) & most
        x = ((x ^ x >> 32) * 0xBF58476D1CE4E5B9) & most
        x ^= x >> 29
        for lane, constant in enumerate((0x94D049BB133111EB, 0xD6E8FEB86659FD93)):
            mixed = x * constant & most
            sums[lane] += mixed ^ mixed >> 32
    found = []
    for total, constant in zip(sums, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)):
        x = (total + (len(content) + 1) * constant) & most
        x = ((x ^ x >> 32) * 0xD6E8FEB86659FD93) & most
        found.append(x ^ x >> 29)
    return struct.pack("<2Q", *found)


@pytest.mark.parametrize("n_bytes", [0, 7, 8, 4095, 131064, 131071, 131072, 131073, 400_003])
def test_every_form_is_the_definition(n_bytes: int) -> None:
    """Around the 128 KiB that are digested at once, and beyond: alone, together, and recorded."""
    tensor = values(n_bytes, torch.int8)
    true = expected(tensor.numpy().tobytes())
    assert digest(tensor) == true
    words = torch.cat([tensor, torch.zeros(-n_bytes % 8, dtype=torch.int8)]).view(torch.int64)
    sums = torch.zeros(2, 2, dtype=torch.int64)
    add_digests(sums, words.repeat(2), torch.tensor([len(words)] * 2))
    assert finished(sums[1], tensor) == true
    batch = Digests()
    numbers = [batch.add(each) for each in (tensor[:5], tensor, tensor[:0])]
    assert batch.take([numbers[1], numbers[1], numbers[0]])[:32] == true * 2


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 63, 5001, 3_000_000])
def test_gpu_is_the_cpu_form(dtype: torch.dtype, n: int) -> None:
    """On a GPU a tensor has the digest that it has on the CPU."""
    tensor = values(n, dtype)
    assert digest(tensor.cuda()) == digest(tensor)
    assert digest(tensor.cuda()[1:]) == digest(tensor[1:])
