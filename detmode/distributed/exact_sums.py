"""Sums of tensors as integers: the same bits for every order and grouping of the addends.

An addend is cut at fixed binary places, into *pieces* of 16 bits, or of 8. The highest place at
which it may have a bit is its *code*. The sum has a window of three pieces, from the largest code
of all addends downwards, and what an addend has below the window is dropped. Because the places
are fixed, an addend that is cut first at a lower place and then at a higher one loses exactly what
it loses when it is cut at the higher one at once. That makes the sum associative: addends may come
one by one, on any rank, before the largest of them is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detmode.distributed.rank_group import RankGroup

_BIAS_OF_FLOAT32, _BIAS_OF_FLOAT64 = 127, 1023
_SIGNIFICAND_OF_FLOAT32, _SIGNIFICAND_OF_FLOAT64 = 23, 52
_LARGEST_EXPONENT = 255
"""The biased exponent of infinities and NaN in float32."""

_GAP = 3
"""The codes between finite numbers and others: as many as there are pieces."""

_CACHED = 1 << 16
"""Elements of CPU tensors that are worked on at a time, so that they stay in the cache."""


_DIGITS, _BITS = 3, 28
"""Squares are cut into so many digits of so many bits, which up to 2**35 of them add in int64."""

_PART = 1 << 20
"""Elements whose squares are there at a time."""


@dataclass(frozen=True)
class _Format:
    """The integers in which addends are added.

    Args:
        total: the dtype of the sums, with room for three pieces and the carries of all addends.
        word: the dtype in which each of the three pieces is added.
        piece: the width of a piece in bits, a power of two.
        block: the number of neighbouring elements that share a code.
        addends: the largest number of addends.
    """

    total: torch.dtype
    word: torch.dtype
    piece: int
    block: int
    addends: int

    @property
    def not_finite(self) -> int:
        """The code of infinities and NaN, in whose window finite addends have no bit."""
        return _LARGEST_EXPONENT // self.piece + _GAP

    def codes(self, addend: Tensor) -> Tensor:
        """Return the code of each block: uint8 ``[blocks, 1]`` of an addend ``[blocks, block]``."""
        bits = addend.float().view(torch.int32).bitwise_and(0x7FFFFFFF)
        exponents = bits.bitwise_right_shift_(_SIGNIFICAND_OF_FLOAT32).to(torch.uint8)
        exponents = exponents.amax(1, keepdim=True) if self.block > 1 else exponents
        codes = exponents.bitwise_right_shift(self.piece.bit_length() - 1)
        return codes.add_(exponents.eq(_LARGEST_EXPONENT), alpha=_GAP)

    def window(self, addend: Tensor, codes: Tensor) -> Tensor:
        """Return an addend in the windows of ``codes``: float64, of which the integer part counts.

        In the window of what is not finite, a NaN counts in the highest piece, a negative infinity
        in the middle one and a positive one in the lowest.
        """
        # The smallest normal number of a code is 1 in the highest piece.
        scale = _power_of_two(codes, _BIAS_OF_FLOAT32 + 2 * self.piece, -self.piece)
        nan, negative = float(1 << 2 * self.piece), float(1 << self.piece)
        return scale.mul(addend).nan_to_num_(nan=nan, neginf=negative, posinf=1.0)

    def pieces(self, window: Tensor) -> Iterator[Tensor]:
        """Yield the three pieces of what :meth:`window` returned, the highest first.

        A conversion to integers drops the fraction, so that a piece has the sign of its number.
        """
        for place in (2, 1):
            size = float(1 << place * self.piece)
            piece = window.div(size).to(self.word)
            window = window.sub(piece, alpha=size)
            yield piece
        yield window.to(self.word)

    def parts(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield the same rows of all tensors, on a CPU so many that they stay in its cache."""
        rows = len(tensors[0])
        some = _CACHED // self.block if tensors[0].device.type == "cpu" else max(rows, 1)
        yield from zip(*(tensor.split(some) for tensor in tensors))

    def special(self, totals: Tensor) -> Tensor:
        """Infinities and NaN, from how many of them there are."""
        mask, infinity = (1 << self.piece) - 1, float("inf")
        positive = totals.bitwise_and(mask).ne(0)
        negative = totals.bitwise_right_shift(self.piece).bitwise_and(mask).ne(0)
        nan = totals.bitwise_right_shift(2 * self.piece).ne(0)
        sums = torch.where(positive, infinity, -infinity).double()
        return sums.masked_fill_(nan | (positive == negative), float("nan"))


_FORMATS = {
    torch.int64: _Format(torch.int64, torch.int32, piece=16, block=1, addends=1 << 15),
    torch.int32: _Format(torch.int32, torch.int16, piece=8, block=64, addends=1 << 7),
}
MOST_ADDENDS = {total: format.addends for total, format in _FORMATS.items()}
"""The largest number of addends, by the dtype of the sums."""


class ExactSum:
    """A sum of tensors of one length, kept as integers until it is rounded.

    Tensors are contiguous and 1-d, of float32, bfloat16 or float16; their length is a multiple of
    :attr:`block`.

    Args:
        total: the dtype of the sum, of :data:`MOST_ADDENDS`.

    Attributes:
        block: the number of neighbouring elements that share a code.
    """

    def __init__(self, total: torch.dtype) -> None:
        self._format = _FORMATS[total]
        self.block = self._format.block
        self._codes: Tensor | None = None
        self._words: list[Tensor] = []  # the highest first

    def add(self, addend: Tensor) -> None:
        """Add a tensor."""
        format, rows = self._format, self._rows(addend)
        if self._codes is None:
            self._codes = rows.new_zeros(len(rows), 1, dtype=torch.uint8)
            self._words = [torch.zeros_like(rows, dtype=format.word) for _ in range(3)]
        for part, codes, *words in format.parts(rows, self._codes, *self._words):
            self._raise(words, codes, torch.maximum(codes, format.codes(part)))
            for word, piece in zip(words, format.pieces(format.window(part, codes))):
                word.add_(piece)

    def codes(self, last: Tensor | None = None) -> Tensor:
        """Return the codes of the sum: uint8 ``[blocks, 1]``, for a collective MAX.

        Args:
            last: one more addend, which need not be cut into pieces if it is also given to
                :meth:`totals`.
        """
        if last is None:
            assert self._codes is not None, "nothing was added"
            return self._codes.clone()
        parts = self._format.parts(self._rows(last))
        codes = torch.cat([self._format.codes(part) for (part,) in parts])
        return codes if self._codes is None else torch.maximum(codes, self._codes)

    def totals(self, codes: Tensor, last: Tensor | None = None) -> Tensor:
        """Return the integers for a collective SUM: ``[blocks, block]``. The sum is empty then.

        Args:
            codes: no smaller than those of the sum, and the same on all ranks.
            last: as for :meth:`codes`.
        """
        totals = codes.new_empty(len(codes), self._format.block, dtype=self._format.total)
        if self._codes is not None:
            base = 1 << self._format.piece
            sums = (totals, codes, self._codes, *self._words)
            for out, new, code, *words in self._format.parts(*sums):
                self._raise(words, code, new)
                high, middle, low = words
                out.copy_(high).mul_(base).add_(middle).mul_(base).add_(low)
        if last is not None:
            for out, new, part in self._format.parts(totals, codes, self._rows(last)):
                whole = self._format.window(part, new).to(out.dtype)
                out.copy_(whole) if self._codes is None else out.add_(whole)
        self._codes, self._words = None, []
        return totals

    def mean(self, totals: Tensor, codes: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Return sums divided by ``count`` and rounded: ``[blocks, block]``.

        A sum with a NaN, or with infinities of both signs, is NaN; one with infinities of one sign
        is infinite. Where a block shares its code with such a sum, the others in it are NaN.
        """
        format, means = self._format, torch.empty_like(totals, dtype=dtype)
        for out, sums, code in format.parts(means, totals, codes):
            scale = _power_of_two(code, -_BIAS_OF_FLOAT32 - 2 * format.piece, format.piece)
            out.copy_(scale.mul(sums).div_(count))
            special = code == format.not_finite
            if _maybe(special):
                out.copy_(torch.where(special, format.special(sums).to(dtype), out))
        return means

    def _rows(self, addend: Tensor) -> Tensor:
        return addend.view(-1, self._format.block)

    @staticmethod
    def _raise(words: list[Tensor], codes: Tensor, larger: Tensor) -> None:
        """Replace codes by larger ones: pieces move down a place for each, the lowest drop out."""
        grown = larger - codes
        codes.copy_(larger)
        if not _maybe(grown != 0):
            return
        high, middle, low = words
        for places in (1, 2, 3):
            moves = grown >= places
            low.copy_(torch.where(moves, middle, low))
            middle.copy_(torch.where(moves, high, middle))
            high.masked_fill_(moves, 0)


def _maybe(mask: Tensor) -> bool:
    """Tell whether any element may be true; a GPU is not asked, as that would wait for it."""
    return mask.device.type != "cpu" or bool(mask.any())


def _power_of_two(steps: Tensor, first: int, step: int) -> Tensor:
    """Return ``2 ** (first + step * steps)`` in float64, by its bits."""
    exponents = steps.to(torch.int64).mul_(step).add_(first + _BIAS_OF_FLOAT64)
    return exponents.bitwise_left_shift_(_SIGNIFICAND_OF_FLOAT64).view(torch.float64)


def exact_norm(tensors: Sequence[Tensor], device: torch.device, parts: RankGroup | None) -> Tensor:
    """Return the 2-norm of tensors as if they were one vector: float64, a scalar.

    Squares are exact in float64, and are added as integers: the norm does not depend on the number
    of tensors, their shapes, or their order. Its relative error is below 2**-48.

    Args:
        tensors: of float32, bfloat16 or float16.
        device: of the tensors.
        parts: the ranks, if each has a part of the vector.
    """
    zero = torch.zeros((), dtype=torch.float32, device=device)
    largest = [tensor.abs().amax().float() for tensor in tensors if tensor.numel()]
    maximum = torch.stack([zero, *largest]).amax()
    # Backends differ in what they make of a NaN.
    extremes = torch.stack([maximum.nan_to_num(nan=0.0, posinf=float("inf")), maximum.isnan()])
    if parts is not None:
        parts.max(extremes)
    maximum = extremes[0].masked_fill(extremes[1] != 0, float("nan")).double()
    exponent = torch.frexp(maximum).exponent
    scale = _power_of_two(exponent, 0, -1)
    totals = torch.zeros(_DIGITS, dtype=torch.int64, device=device)
    for tensor in tensors:
        for part in tensor.reshape(-1).split(_PART):
            rest = part.double().mul_(scale).square_()  # at most 1
            for number in range(_DIGITS):
                digits = rest.mul_(1 << _BITS).trunc()
                totals[number] += digits.to(torch.int64).sum()
                rest.sub_(digits)
    if parts is not None:
        parts.sum(totals)
    square = torch.zeros_like(maximum)
    for number in reversed(range(_DIGITS)):
        square = (square + totals[number]) / (1 << _BITS)
    norm = square.sqrt() / scale
    return torch.where(maximum.isfinite(), norm, maximum)
