"""A 128-bit digest of a tensor's bytes, the same on every device and for every stride.

The bytes in row-major order are cut into 64-bit words, the last one filled up with zeros. Each word
is mixed with its position, twice in different ways, and the mixed words are added up modulo 2^64:
two sums, which do not depend on the order of the additions. It sees what a sum of values does not:
permutations, flipped signs, -0.0 against 0.0, the payload of a NaN. It is no cryptographic hash.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.launch import launch
from detmode.cuda.source import Source

__all__ = ["add_digest", "add_digests", "finish_digests"]

SOURCE = Source(__file__, "digest.cu", entries=("digest",))

# Odd constants of splitmix64 and others of its kind; the same in digest.cu.
_POSITION = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_THIRD = 0xD6E8FEB86659FD93
# Words that stay in a CPU's second-level cache with what is made of them.
_CHUNK = 1 << 13
# Bytes from which more blocks are worth their atomics.
_BYTES_PER_THREAD = 64
_MOST_THREADS = 1 << 18


def add_digest(sums: Tensor, tensor: Tensor) -> None:
    """Add the digest of ``tensor`` to ``sums``, on the tensor's device and without waiting for it.

    Args:
        sums: int64 of shape (2,), contiguous, on the device of ``tensor``; zero for a new digest.
        tensor: strided, of any dtype.
    """
    data = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Of one element the stride may be anything, and only a stride of 1 can be viewed as bytes.
    data = data.as_strided((data.numel(),), (1,)).view(torch.uint8)
    if data.numel() == 0:
        return
    if data.is_cuda:
        threads = min(-(-data.numel() // _BYTES_PER_THREAD), _MOST_THREADS)
        launch(SOURCE, "digest", threads, data, sums, data.numel())
        return
    for begin in range(0, data.numel(), 8 * _CHUNK):
        words = _words(data[begin : begin + 8 * _CHUNK])
        positions = torch.arange(begin // 8, begin // 8 + len(words))
        sums += _mixed(words, positions).sum(1)


def add_digests(sums: Tensor, words: Tensor, lengths: Tensor) -> None:
    """Add the digests of many tensors whose words lie one after the other, on the CPU.

    Args:
        sums: int64 of shape (n, 2).
        words: int64, the words of all tensors.
        lengths: int64 of shape (n,): how many words each tensor has.
    """
    ends = lengths.cumsum(0)
    starts = ends - lengths
    positions = torch.arange(len(words)) - starts.repeat_interleave(lengths)
    # Differences of running sums wrap as the sums do.
    running = torch.zeros(2, len(words) + 1, dtype=torch.int64)
    torch.cumsum(_mixed(words, positions), 1, out=running[:, 1:])
    sums += (running[:, ends] - running[:, starts]).T


def finish_digests(sums: Tensor, n_bytes: Tensor) -> Tensor:
    """The digests of sums, each with the number of bytes that went into it.

    Args:
        sums: int64 of shape (n, 2), on the CPU.
        n_bytes: int64 of shape (n,).

    Returns:
        int64 of shape (n, 2): 16 bytes for each digest.
    """
    # One more, so that the digest of no bytes is not zero, which stands for undefined ones.
    x = sums + (n_bytes[:, None] + 1) * torch.tensor([_signed(_FIRST), _signed(_SECOND)])
    x = (x ^ _shifted(x, 32)) * _signed(_THIRD)
    return x ^ _shifted(x, 29)


def _words(data: Tensor) -> Tensor:
    whole = data.numel() // 8 * 8
    # A copy where a view would not be aligned, and for the last bytes.
    if whole == data.numel() and data.storage_offset() % 8 == 0 and data.data_ptr() % 8 == 0:
        return data.view(torch.int64)
    padded = torch.zeros(-(-data.numel() // 8) * 8, dtype=torch.uint8)
    padded[: data.numel()] = data
    return padded.view(torch.int64)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mixed(words: Tensor, positions: Tensor) -> Tensor:
    """Both lanes of each word, (2, n); int64 arithmetic wraps as the kernel's uint64 does."""
    x = words + (positions + 1) * _signed(_POSITION)
    x = (x ^ _shifted(x, 32)) * _signed(_FIRST)
    x = x ^ _shifted(x, 29)
    lanes = x * torch.tensor([[_signed(_SECOND)], [_signed(_THIRD)]])
    return lanes ^ _shifted(lanes, 32)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Right shift that fills with zeros, as of uint64."""
    return values.bitwise_right_shift(bits) & ((1 << (64 - bits)) - 1)
