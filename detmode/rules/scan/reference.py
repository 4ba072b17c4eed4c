"""Exact results of the scans, because ATen's own in float64 round at every element."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Context
from fractions import Fraction
from itertools import accumulate

import torch
from torch import Tensor

_MANY_DIGITS = Context(prec=50)


def cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """The sums of one row, each rounded once; ATen's where an element is not finite."""
    self = self if dtype is None else self.to(dtype)
    if not bool(self.isfinite().all()):
        return torch.cumsum(self, dim)
    return _by_part(self, _sums)


def _sums(values: Iterable[float]) -> Iterable[float]:
    return map(float, accumulate(map(Fraction, values)))


def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """The products of one row, to more digits than float64 has; as :func:`cumsum` otherwise."""
    self = self if dtype is None else self.to(dtype)
    if not bool(self.isfinite().all()):
        return torch.cumprod(self, dim)
    if not self.is_complex():
        return _by_part(self, _products)
    digits = _MANY_DIGITS
    re, im = digits.create_decimal(1), digits.create_decimal(0)
    products = []
    for value in self.flatten().tolist():
        x, y = digits.create_decimal(value.real), digits.create_decimal(value.imag)
        re, im = (
            digits.subtract(digits.multiply(re, x), digits.multiply(im, y)),
            digits.add(digits.multiply(re, y), digits.multiply(im, x)),
        )
        products.append(complex(float(re), float(im)))
    return torch.tensor(products, dtype=self.dtype, device="cpu").view(self.shape)


def _products(values: Iterable[float]) -> Iterable[float]:
    digits = _MANY_DIGITS
    return map(float, accumulate(map(digits.create_decimal, values), digits.multiply))


def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    """From the largest element of all, where all are within its reach; else ATen's.

    Of complex elements the imaginary part is the principal one.
    """
    largest = self.real.max()
    if not bool((self.isfinite() & (self.real > largest - 600)).all()):
        return torch.logcumsumexp(self, dim)
    return largest + _by_part((self - largest).exp(), _sums).log()


def _by_part(self: Tensor, scan: Callable[[Iterable[float]], Iterable[float]]) -> Tensor:
    def scanned(part: Tensor) -> Tensor:
        values = list(scan(part.flatten().tolist()))
        return torch.tensor(values, dtype=part.dtype, device="cpu").view(part.shape)

    if not self.is_complex():
        return scanned(self)
    return torch.complex(scanned(self.real), scanned(self.imag))
