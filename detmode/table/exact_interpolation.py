"""The exact backward of an interpolation: exact weights, and sums that round once.

ATen in float64 is not it for float64 itself: its positions and weights have their own roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

Taps = Callable[[int, int, Fraction, bool], Iterator[tuple[int, Fraction]]]
"""Of an output position, the input size, the scale and align_corners: positions and weights."""


def backward(taps: Taps) -> Callable[..., Tensor]:
    """The operator's reference for its taps; it takes the operator's arguments by name."""

    def reference(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        **scales: float | None,
    ) -> Tensor:
        if grad_output.shape == torch.Size(input_size):
            return grad_output.clone()
        result = grad_output
        for d, (size, out, scale) in enumerate(
            zip(input_size[2:], output_size, scales.values()), start=2
        ):
            columns: list[list[tuple[int, float]]] = [[] for _ in range(size)]
            ratio = _ratio(size, out, align_corners, scale)
            for o in range(out):
                for i, weight in taps(o, size, ratio, align_corners):
                    columns[i].append((o, float(weight)))
            moved = result.movedim(d, -1)
            sums = [
                [_sum([row[o] * weight for o, weight in column]) for column in columns]
                for row in moved.reshape(-1, out).tolist()
            ]
            flat = torch.tensor(sums, dtype=torch.float64, device="cpu")
            result = flat.reshape(*moved.shape[:-1], size).movedim(-1, d)
        return result

    return reference


def _ratio(size: int, out: int, align_corners: bool, scale: float | None) -> Fraction:
    if align_corners:
        return Fraction(size - 1, out - 1) if out > 1 else Fraction(0)
    return 1 / Fraction(scale) if scale is not None and scale > 0 else Fraction(size, out)


def _sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # infinities of both signs
        return sum(values)


def _source(o: int, scale: Fraction, align_corners: bool) -> Fraction:
    return scale * o if align_corners else scale * (o + Fraction(1, 2)) - Fraction(1, 2)


def linear(o: int, size: int, scale: Fraction, align_corners: bool) -> Any:
    """Two taps; a position before the input counts as 0, one after it as its end."""
    position = max(_source(o, scale, align_corners), Fraction(0))
    index = min(math.floor(position), size - 1)
    weight = min(position - index, Fraction(1))
    yield index, 1 - weight
    yield min(index + 1, size - 1), weight


def cubic(o: int, size: int, scale: Fraction, align_corners: bool) -> Any:
    """Four taps of the cubic convolution with -0.75; those outside count at the input's ends."""
    position = _source(o, scale, align_corners)
    index = math.floor(position)
    for i in range(index - 1, index + 3):
        yield min(max(i, 0), size - 1), convolution(position - i, Fraction(-3, 4))


def convolution(x: Fraction, a: Fraction) -> Fraction:
    """The cubic convolution's weight at distance ``x``."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else Fraction(0)


def triangle(x: Fraction) -> Fraction:
    """The bilinear filter's weight at distance ``x``."""
    return max(1 - abs(x), Fraction(0))


def antialiased(filter: Callable[[Fraction], Fraction], reach: int) -> Taps:
    """The inputs within the filter's reach, stretched in a reduction; the weights sum to 1."""

    def taps(o: int, size: int, scale: Fraction, align_corners: bool) -> Any:
        stretch = max(scale, Fraction(1))
        center, half = scale * (o + Fraction(1, 2)), Fraction(1, 2)
        begin = max(int(center - reach * stretch + half), 0)
        end = min(int(center + reach * stretch + half), size)
        weights = [filter((i - center + half) / stretch) for i in range(begin, end)]
        total = sum(weights) or 1
        yield from ((begin + k, weight / total) for k, weight in enumerate(weights))

    return taps
