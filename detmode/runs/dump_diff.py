"""Comparing the dumped tensors of one call in two runs: where they differ, and by how much.

Dumps are compared a chunk at a time, so that memory does not grow with the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detmode.bits.difference import gaps, unequal
from detmode.process.dispatch import without_modes
from detmode.reports.page import listed
from detmode.runs.dump_file import CallName, DumpReader

OTHER_SIGN = "other sign"
NOT_FINITE = "NaN or Inf"
_FEW = 8
"""A tensor of so many elements is shown whole."""

_BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16}
_BITS |= {torch.float32: torch.int32, torch.float64: torch.int64}
# The largest distance of each row: 0, 1, 2, 4, 8, ...
_BOUNDS = torch.tensor([0, *(1 << power for power in range(63)), (1 << 63) - 1], device="cpu")

Count = tuple[str, int]


@dataclass(frozen=True)
class ArrayDifference:
    """The difference of one tensor of a call, or of one component of it.

    Args:
        name: "input 0", "output 1", "mutated 0"; for a sparse tensor, with the component.
        forms: its form (dtype, shape, strides, device) in the first and in the second run.
        elements: the number of elements that differ; ``None``, like the fields below, if dtypes or
            shapes differ.
        size: the number of elements.
        first: the position of the first element that differs, in row-major order.
        last: the position of the last one.
        region: for each dimension, the first and the last index at which an element differs.
        largest: the largest absolute difference of finite elements, an int for integers; ``None``
            if no two finite elements differ, or the dtype has no numbers.
        ulps: a histogram of the elements by distance in units in the last place: ("0", 120),
            ("3-4", 7), ...; then the elements whose signs differ (including 0.0 and -0.0), and
            those that differ and are not both finite. For complex numbers both components are
            counted. Empty unless the dtype is a float of 16 to 64 bits.
        values: all elements in the first and in the second run, in row-major order, as text;
            ``None`` where there are more than eight.
    """

    name: str
    forms: tuple[str, str]
    elements: int | None = None
    size: int | None = None
    first: tuple[int, ...] | None = None
    last: tuple[int, ...] | None = None
    region: tuple[tuple[int, int], ...] | None = None
    largest: float | int | None = None
    ulps: tuple[Count, ...] = ()
    values: tuple[str, str] | None = None

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the facts as (name, text), except for the histogram."""
        yield self.name, " and ".join(dict.fromkeys(self.forms))
        if self.elements is None or self.region is None:
            yield "elements", "not compared: dtypes or shapes differ"
            return
        yield "elements", f"{self.elements:,} of {self.size:,} differ"
        if self.values is not None:
            yield "values", " and ".join(self.values)
        if self.first and self.last:  # not for a single number
            yield "first", str(list(self.first))
            yield "last", str(list(self.last))
            sides = (f"{begin}:{end + 1}" for begin, end in self.region)
            yield "region", f"[{', '.join(sides)}]"
        if self.largest is not None:
            yield "largest", f"{self.largest:{',' if isinstance(self.largest, int) else '.6g'}}"

    def text(self, width: int | None = None) -> str:
        """Return the facts and the histogram, a line each."""
        heads = ["ulps", *[""] * len(self.ulps)]
        histogram = ((head, f"{label}: {n:,}") for head, (label, n) in zip(heads, self.ulps))
        return listed([*self.facts(), *histogram], width)

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class CallDifference:
    """The difference of the tensors of a call that both runs dumped.

    Args:
        first: the call in the first run.
        second: the call in the second run.
        same: the names of the tensors that are bitwise identical.
        differing: the tensors that differ.
        missing: the names of the tensors that only one run has.
    """

    first: CallName
    second: CallName
    same: tuple[str, ...]
    differing: tuple[ArrayDifference, ...]
    missing: tuple[str, ...]

    @property
    def title(self) -> str:
        """The result in one sentence."""
        calls = " and ".join(dict.fromkeys((str(self.first), str(self.second))))
        if self.differing or self.missing:
            return f"How the tensors of {calls} differ"
        return f"The tensors of {calls} do not differ"

    def as_data(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "first": str(self.first),
            "second": str(self.second),
            "same": list(self.same),
            "differing": [
                {**vars(array), "ulps": [list(row) for row in array.ulps]}
                for array in self.differing
            ],
            "missing": list(self.missing),
        }

    def summary(self) -> Iterator[str]:
        """Yield a sentence for the identical tensors, and one for the missing ones."""
        if self.same:
            yield f"bitwise identical: {', '.join(self.same)}"
        if self.missing:
            yield f"only in one of the runs: {', '.join(self.missing)}"

    def text(self, width: int | None = None) -> str:
        """Return the title, each tensor that differs, and the summary."""
        arrays = (array.text(width) for array in self.differing)
        return "\n\n".join([f"{self.title}:", *arrays, *self.summary()])

    def __str__(self) -> str:
        return self.text()


def pairs(
    ours: Iterable[DumpReader], others: Iterable[DumpReader], aligned: Mapping[int, int]
) -> Iterator[tuple[DumpReader, DumpReader]]:
    """Yield the pairs of dumps of the same call: of aligned calls, or with the same name.

    Args:
        ours: dumps of the first run.
        others: dumps of the second run.
        aligned: for the number of a call in the first run, its number in the second.
    """
    by_number = {reader.number: reader for reader in others}
    by_name = {reader.call: reader for reader in by_number.values()}
    for reader in ours:
        number = aligned.get(reader.number)
        pair = (by_number.get(number) if number is not None else None) or by_name.get(reader.call)
        if pair is not None:
            yield reader, pair


def compare_dumps(first: DumpReader, second: DumpReader) -> CallDifference:
    """Compare the tensors of two dumps.

    Raises:
        TraceError: a file does not match the dump's description.
    """
    with without_modes(), torch.no_grad():
        by_name = {
            name: _difference(first, second, name) for name in first.arrays if name in second.arrays
        }
    same = tuple(name for name, difference in by_name.items() if difference is None)
    differing = tuple(difference for difference in by_name.values() if difference is not None)
    missing = tuple(sorted(first.arrays.keys() ^ second.arrays.keys()))
    return CallDifference(first.call, second.call, same, differing, missing)


def _difference(first: DumpReader, second: DumpReader, name: str) -> ArrayDifference | None:
    arrays = (first.arrays[name][1], second.arrays[name][1])
    chunks = zip(first.chunks(name), second.chunks(name))
    difference = ArrayDifference(name, (arrays[0].form, arrays[1].form))
    if (arrays[0].dtype, arrays[0].shape) != (arrays[1].dtype, arrays[1].shape):
        return difference
    shape = arrays[0].shape
    difference = replace(difference, elements=0, size=math.prod(shape))
    counts = torch.zeros(len(_BOUNDS) + 2, dtype=torch.int64, device="cpu")
    begin = 0
    values: tuple[list[Any], list[Any]] = ([], [])
    for mine, theirs in chunks:
        if difference.size is not None and difference.size <= _FEW:
            for numbers, chunk in zip(values, (mine, theirs)):
                numbers += _numbers(chunk)
        where = unequal(mine, theirs)
        dtype = mine.dtype.to_real()
        if dtype in _BITS:
            counts[0] += mine.view(dtype).numel()
            if where is not None:
                counts += _ulps(mine.view(dtype), theirs.view(dtype))
        if where is not None:
            positions = where.nonzero()[:, 0].numpy() + begin
            difference = _joined(difference, positions, shape, _largest(mine, theirs, where))
        begin += len(mine)
    rows = tuple(row for row in zip(_labels(), counts.tolist()) if row[1])
    shown = (_shown(values[0]), _shown(values[1])) if all(values) else None
    return replace(difference, ulps=rows, values=shown) if difference.elements else None


def _numbers(chunk: Tensor) -> list[Any]:
    """Return the elements; none of a dtype that has no numbers."""
    try:
        return list(chunk.tolist())
    except (RuntimeError, TypeError):  # packed dtypes
        return []


def _shown(values: Sequence[Any]) -> str:
    return str(values[0] if len(values) == 1 else values)


def _joined(
    joined: ArrayDifference,
    positions: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    largest: float | int | None,
) -> ArrayDifference:
    """Join what was found so far with the elements that differ in the next chunk."""
    places = np.unravel_index(positions, shape) if shape else ()
    spans = [(int(along.min()), int(along.max())) for along in places]
    known = spans if joined.region is None else joined.region
    sizes = [size for size in (joined.largest, largest) if size is not None]
    first = tuple(int(along[0]) for along in places)
    return replace(
        joined,
        elements=(joined.elements or 0) + len(positions),
        first=first if joined.first is None else joined.first,
        last=tuple(int(along[-1]) for along in places),
        region=tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, spans)),
        largest=max(sizes, default=None),
    )


def _largest(first: Tensor, second: Tensor, where: Tensor) -> float | int | None:
    if first.dtype != torch.bool and not first.is_floating_point() and not first.is_complex():
        try:
            a, b = (tensor.numpy()[where.numpy()] for tensor in (first, second))
        except (RuntimeError, TypeError):
            return None  # packed dtypes have no numbers to subtract
        # The difference of two 64-bit integers may need the 64th bit.
        return int((np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)).max())
    distances = gaps(first, second, where)
    finite = None if distances is None else distances[distances.isfinite()]
    return float(finite.max()) if finite is not None and len(finite) else None


def _ulps(first: Tensor, second: Tensor) -> Tensor:
    """Return the change to the histogram, of shape (rows,): elements that leave its first row.

    Floats of one sign are ordered like the integers with the same bits, so the difference of these
    integers is the number of floats from one to the other.
    """
    bits = _BITS[first.dtype]
    infinity = torch.tensor(math.inf, dtype=first.dtype, device="cpu").view(bits).long()
    differs = first.view(bits) != second.view(bits)
    a, b = first.view(bits)[differs].long(), second.view(bits)[differs].long()
    magnitude = torch.iinfo(bits).max
    sizes = a & magnitude, b & magnitude
    infinite = (sizes[0] >= infinity) | (sizes[1] >= infinity)
    flipped = ((a < 0) != (b < 0)) & ~infinite
    distances = (sizes[0] - sizes[1]).abs()[~infinite & ~flipped]
    counts = torch.bincount(torch.bucketize(distances, _BOUNDS), minlength=len(_BOUNDS))
    counts[0] -= len(a)
    return torch.cat([counts, torch.stack([flipped.sum(), infinite.sum()])])


def _labels() -> Iterator[str]:
    yield from ("0", "1", "2")
    yield from (f"{(1 << power) + 1}-{2 << power}" for power in range(1, len(_BOUNDS) - 2))
    yield from (OTHER_SIGN, NOT_FINITE)
