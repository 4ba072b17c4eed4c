"""Marks in new memory, by which a write is seen that no operator has told of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detmode.process.dispatch import without_modes

CELL = 4
"""The bytes of a cell of marked memory, which others write or not as a whole.

Of fewer bytes a write might leave all as the mark has them.
"""
_MOST_CELLS = 1 << 10
"""The most cells of a mark; in larger memory they lie apart."""
_FORMS = 1 << 10
Span: TypeAlias = tuple[int, int]
"""The first of some bytes of a storage, and the first after them."""
_Cells: TypeAlias = NDArray[Any]
"""For each cell of a mark, a number or a truth."""


class Mark:
    """The mark in new memory.

    Args:
        storage: on a CPU or a CUDA device.
        begin: the first of the bytes that are new.
        end: the first after them.
        device: the storage's.
    """

    def __init__(
        self, storage: torch.UntypedStorage, begin: int, end: int, device: torch.device
    ) -> None:
        self.begin, self.end = begin, end
        self._device = device
        starts, self._places, self._mark = _cells(end - begin, device)
        self._starts = starts + begin
        with without_modes():
            new = self._new(storage)
            self._held = new[self._places]
            new[self._places] = self._mark

    def __len__(self) -> int:
        return len(self._starts)

    def _new(self, storage: torch.UntypedStorage) -> Tensor:
        whole = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        return whole[self.begin : self.end]

    def _ends(self) -> _Cells:
        ends: _Cells = np.minimum(self._starts + CELL, self.end)
        return ends

    def reached(self, spans: Sequence[Span]) -> _Cells:
        """Return which cells have bytes of some spans, that are in order."""
        firsts, lasts = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        after = np.searchsorted(lasts, self._starts, side="right")
        firsts = np.append(firsts, np.iinfo(np.int64).max)
        is_reached: _Cells = firsts[after] < self._ends()
        return is_reached

    def look(
        self, storage: torch.UntypedStorage, takes_off: _Cells | None = None
    ) -> tuple[list[Span], list[Span], list[Span]]:
        """See what is written; of some cells, put back what the memory held where it is not.

        Args:
            storage: the marked one.
            takes_off: which cells lose their mark.

        Returns:
            The bytes that are written, those between a cell that is and one that is not, and those
            of the cells without a mark now.
        """
        if storage.nbytes() < self.end or not len(self):
            return [], [], []
        with without_modes():
            new = self._new(storage)
            is_written = (new[self._places] != self._mark).any(1).cpu().numpy()
            if takes_off is not None:
                put_back = torch.from_numpy(takes_off & ~is_written).to(self._device)
                new[self._places[put_back]] = self._held[put_back]
        written, between = self._spans(is_written)
        loose: list[Span] = []
        if takes_off is not None:
            loose = list(zip(self._starts[takes_off].tolist(), self._ends()[takes_off].tolist()))
            self._keep(~takes_off)
        return written, between, loose

    def _spans(self, is_written: _Cells) -> tuple[list[Span], list[Span]]:
        starts, ends = self._starts, self._ends()
        last = np.flatnonzero(np.diff(is_written, append=False))  # cells whose next is otherwise
        between = zip(ends[last].tolist(), np.append(starts, self.end)[last + 1].tolist())
        first = np.flatnonzero(np.diff(is_written, prepend=False))
        begins = np.where(first == 0, self.begin, starts[first]).tolist()
        # Of the changes every second one begins what is written, and every second one ends it.
        written = zip(begins[::2], ends[last[is_written[last]]].tolist())
        return list(written), list(between)

    def _keep(self, cells: _Cells) -> None:
        with without_modes():
            chosen = torch.from_numpy(cells).to(self._device)
            self._starts = self._starts[cells]
            self._places, self._held = self._places[chosen], self._held[chosen]
            self._mark = self._mark[chosen]


@functools.lru_cache(_FORMS)
def _cells(n_bytes: int, device: torch.device) -> tuple[_Cells, Tensor, Tensor]:
    """Return the cells of a mark.

    Returns:
        The first byte of each; the places of all their bytes, int64 of shape (cells, 4), where
        those after the last byte are the last byte; and the mark, uint8 of that shape.
    """
    n_cells = -(-n_bytes // CELL)
    if n_cells > _MOST_CELLS:
        starts = [number * (n_bytes - CELL) // (_MOST_CELLS - 1) for number in range(_MOST_CELLS)]
    else:
        starts = list(range(0, n_bytes, CELL))
    first_bytes = np.array(starts, dtype=np.int64)
    with without_modes():
        places = torch.from_numpy(first_bytes)[:, None] + torch.arange(CELL, device="cpu")
        places = places.clamp(max=n_bytes - 1)
        # Not a number, in every floating dtype: the odd bytes end the exponent.
        mark = torch.where(places % 2 == 1, 0xFF, 0x81 + places * 37 % 0x7F).to(torch.uint8)
        return first_bytes, places.to(device), mark.to(device)
