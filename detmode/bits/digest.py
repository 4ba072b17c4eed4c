"""A 128-bit digest of a tensor's bytes, the same on every device and for every stride.

The bytes in row-major order are cut into 64-bit words, the last one padded with zeros. Each word is
mixed with its position in two different ways, and the mixed words are added modulo 2^64. The two
sums do not depend on the order of the additions. Unlike a sum of values, the digest detects
permutations, flipped signs, -0.0 in place of 0.0, and NaN payloads. It is not cryptographic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detmode.cuda.elements import plain
from detmode.cuda.launch import launch
from detmode.cuda.source import Source

SOURCE = Source(__file__, "digest.cu", entries=("digest",))

# Odd constants of splitmix64 and others of its kind; the same in digest.cu.
_POSITION = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_THIRD = 0xD6E8FEB86659FD93
# Words that fit into a CPU's second-level cache, together with the temporaries.
_CHUNK = 1 << 14
_Words: TypeAlias = NDArray[np.uint64]
# Bytes per thread that make an additional block worth its atomics.
_BYTES_PER_THREAD = 64
_MOST_THREADS = 1 << 18


def add_digest(sums: Tensor, tensor: Tensor) -> None:
    """Add the digest of ``tensor`` to ``sums``, on the tensor's device and without waiting.

    Args:
        sums: int64 of shape (2,), contiguous, on the device of ``tensor``; zero for a new digest.
        tensor: strided, of any dtype.
    """
    data = plain(tensor).view(torch.uint8)
    if data.numel() == 0:
        return
    if data.is_cuda:
        threads = min(-(-data.numel() // _BYTES_PER_THREAD), _MOST_THREADS)
        launch(SOURCE, "digest", threads, bytes=data, sums=sums, n_bytes=data.numel())
        return
    words = _words(data)
    of_chunk = _of_positions(np.arange(min(len(words), _CHUNK), dtype=np.uint64))
    lane_sums = np.zeros(2, dtype=np.uint64)
    for begin in range(0, len(words), _CHUNK):
        chunk = words[begin : begin + _CHUNK]
        from_begin = np.uint64(begin * _POSITION % (1 << 64))
        lanes = _mixed(chunk, of_chunk[: len(chunk)] + from_begin)
        lane_sums += np.array([lane.sum() for lane in lanes])
    sums += torch.from_numpy(lane_sums.view(np.int64))


def add_digests(sums: Tensor, words: Tensor, lengths: Tensor) -> None:
    """Add the digests of many tensors whose words are concatenated, on the CPU.

    Args:
        sums: int64 of shape (n, 2).
        words: int64, the words of all tensors.
        lengths: int64 of shape (n,), the number of words of each tensor.
    """
    filled = lengths > 0
    counts = lengths[filled].numpy()
    starts = counts.cumsum() - counts
    positions = np.arange(len(words)) - starts.repeat(counts)
    of_words = _of_positions(positions.astype(np.uint64))
    for lane, values in enumerate(_mixed(words.numpy().view(np.uint64), of_words)):
        lane_sums = np.add.reduceat(values, starts)
        sums[filled, lane] += torch.from_numpy(lane_sums.view(np.int64))


def finish_digests(sums: Tensor, n_bytes: Tensor) -> Tensor:
    """Return the digests of sums, each combined with its number of bytes.

    Args:
        sums: int64 of shape (n, 2), on the CPU.
        n_bytes: int64 of shape (n,).

    Returns:
        int64 of shape (n, 2): 16 bytes for each digest.
    """
    # Plus one, so that the digest of no bytes is not zero, which stands for undefined digests.
    x = sums + (n_bytes[:, None] + 1) * torch.tensor(
        [_signed(_FIRST), _signed(_SECOND)], device="cpu"
    )
    x = (x ^ _shifted(x, 32)) * _signed(_THIRD)
    return x ^ _shifted(x, 29)


def _words(data: Tensor) -> _Words:
    n_words = -(-data.numel() // 8)
    # Copied if a view would not be aligned, or if the last word is incomplete.
    if data.numel() % 8 or data.data_ptr() % 8:
        padded = torch.zeros(n_words * 8, dtype=torch.uint8, device="cpu")
        padded[: data.numel()] = data
        data = padded
    return data.numpy().view(np.uint64)


def _of_positions(positions: _Words) -> _Words:
    """Return the numbers that are added to the words at these positions."""
    return (positions + np.uint64(1)) * np.uint64(_POSITION)


def _mixed(words: _Words, of_positions: _Words) -> Iterator[_Words]:
    """Yield the two lanes of all words; NumPy's arithmetic wraps like the kernel's."""
    x = words + of_positions
    x ^= x >> np.uint64(32)
    x *= np.uint64(_FIRST)
    x ^= x >> np.uint64(29)
    for constant in (_SECOND, _THIRD):
        lane = x * np.uint64(constant)
        lane ^= lane >> np.uint64(32)
        yield lane


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, as for uint64."""
    return values.bitwise_right_shift(bits) & ((1 << (64 - bits)) - 1)
