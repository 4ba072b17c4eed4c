"""Tensors for samples, made from a seed."""

from __future__ import annotations

from typing import Any

import torch


class Maker:
    """Makes a sample's tensors, from a seed, on the CPU, then moves them to ``device``.

    Args:
        dtype: the sample's dtype.
        device: the tensors' device.
        seed: the same seed gives the same values on every device.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Values of wide range: standard normal times powers of two, so that order shows.

        Integral and bool dtypes get small integers.
        """
        dtype = dtype or self.dtype
        if not dtype.is_floating_point and not dtype.is_complex:
            return self.integers(0, 2 if dtype is torch.bool else 10, *shape, dtype=dtype)
        real = torch.empty(
            (*shape, 2) if dtype.is_complex else shape, dtype=torch.float64, device="cpu"
        )
        real.normal_(generator=self._generator)
        exponents = torch.randint(-4, 5, real.shape, generator=self._generator, device="cpu")
        real = torch.ldexp(real, exponents)
        return (torch.view_as_complex(real) if dtype.is_complex else real).to(self.device, dtype)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        """Integers in ``[low, high)``; int64, as indices are, unless said otherwise."""
        values = torch.randint(
            low, max(high, low + 1), shape, generator=self._generator, device="cpu"
        )
        return values.to(self.device, dtype)

    def mask(self, *shape: int) -> torch.Tensor:
        """About half True."""
        return self.integers(0, 2, *shape, dtype=torch.bool)

    def zipf(self, n: int, size: int) -> torch.Tensor:
        """Positions below ``size``, a few asked for most: the k-th about 1/k often; int64 (n,)."""
        weights = 1 / torch.arange(1, size + 1, dtype=torch.float64, device="cpu")
        drawn = torch.searchsorted(
            weights.cumsum(0) / weights.sum(), self.normal(n, dtype=torch.float64).cpu().sigmoid()
        )
        return drawn.clamp(max=size - 1).to(self.device)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Given values, in the sample's dtype unless said otherwise."""
        return torch.tensor(values, dtype=dtype or self.dtype, device=self.device)
