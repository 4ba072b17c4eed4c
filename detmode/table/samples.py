"""A family's samples: the inputs that tests, ``detmode verify`` and benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

COVERS = ("collisions", "empty", "non_contiguous", "channels_last", "negative_dim", "odd_sizes")
"""What a family with a substitute must have a sample for, or say in ``NOT_APPLICABLE`` why not."""


class Maker:
    """Makes a sample's tensors, from a seed, on the CPU, then moves them to ``device``.

    Args:
        dtype: the sample's dtype.
        device: where the tensors go.
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
        real = torch.empty((*shape, 2) if dtype.is_complex else shape, dtype=torch.float64)
        real.normal_(generator=self._generator)
        exponents = torch.randint(-4, 5, real.shape, generator=self._generator)
        real = torch.ldexp(real, exponents)
        return (torch.view_as_complex(real) if dtype.is_complex else real).to(self.device, dtype)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        """Integers in ``[low, high)``; int64, as indices are, unless said otherwise."""
        values = torch.randint(low, max(high, low + 1), shape, generator=self._generator)
        return values.to(self.device, dtype)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Given values, in the sample's dtype unless said otherwise."""
        return torch.tensor(values, dtype=dtype or self.dtype, device=self.device)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Named inputs of one operator.

    Args:
        name: what is particular about it, readable in a test id: "heavy_collisions".
        op: the overload by name, as in :class:`~detmode.table.rule.Rule`.
        make: given a :class:`Maker`, the arguments by schema name; defaults may be left out.
        dtypes: the dtypes for which the sample holds.
        covers: which of :data:`COVERS` it shows.
        device: the device type whose rows it is to meet ("cuda", "cpu" or "mps").
    """

    name: str
    op: str
    make: Callable[[Maker], dict[str, Any]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    covers: tuple[str, ...] = field(default=())
    device: str = "cuda"

    def __post_init__(self) -> None:
        unknown = [item for item in self.covers if item not in COVERS]
        if unknown:
            raise ValueError(f"Sample({self.name!r}): covers {unknown}; known are {COVERS}")

    def arguments(
        self, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
    ) -> dict[str, Any]:
        """The arguments by schema name, made anew."""
        return self.make(Maker(dtype, device, seed))
