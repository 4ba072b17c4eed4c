"""The tables that results are printed as, and written into the documentation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import whole_steps
from results import Results
from sides import ATEN, BY_HAND, NATIVE, OURS, SIDES, Row
from tabulate import tabulate
from timing import Spread

Cells = list[tuple[str, ...]]

OPERATOR_HEADS = ("operator", "input", "dtype", "contention", *SIDES, "over aten", "over floor")
ROOM_HEADS = (
    *("room", "inputs", "over aten", "worst", "over pytorch deterministic", "over by hand"),
    *("over floor", "not timed"),
)
NOT_TIMED = "-"


def operators(rows: Iterable[Row]) -> Cells:
    """A line for each input: the median and the quartiles of each side in microseconds."""
    found: Cells = []
    for row in rows:
        what = (row.op, row.sample, row.dtype, row.contention)
        if row.failure is not None:
            found.append((*what, *(NOT_TIMED,) * (len(SIDES) + 2)))
            continue
        sides = tuple(str(row.times[side]) for side in SIDES)
        found.append((*what, *sides, _number(ratio(row, ATEN)), _number(over_floor(row))))
    return found


def by_room(rows: Sequence[Row]) -> Cells:
    """A line for each room, and one for all: geometric means of detmode's time over the others'."""
    names = dict.fromkeys(row.room for row in rows)
    groups = {name: [row for row in rows if row.room == name] for name in names}
    return [_summary(name, group) for name, group in {**groups, "all": list(rows)}.items()]


def _summary(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    timed = [row for row in rows if row.failure is None]
    over_aten = [each for row in timed if (each := ratio(row, ATEN)) is not None]
    others = ([ratio(row, side) for row in timed] for side in (NATIVE, BY_HAND))
    return (
        name,
        str(len(timed)),
        _number(geometric_mean(over_aten)),
        _number(max(over_aten, default=None)),
        *(_number(geometric_mean(each)) for each in others),
        _number(geometric_mean(over_floor(row) for row in timed)),
        str(len(rows) - len(timed)),
    )


def ratio(row: Row, side: str) -> float | None:
    """Our median over that of another side; ``None`` where that cannot run."""
    ours, theirs = row.times.get(OURS), row.times.get(side)
    if not isinstance(ours, Spread) or not isinstance(theirs, Spread):
        return None
    return ours.median / theirs.median


def over_floor(row: Row) -> float | None:
    """Our median over the floor; ``None`` where the inputs were in the cache."""
    ours = row.times.get(OURS)
    if not isinstance(ours, Spread) or not row.beyond_cache or not row.floor:
        return None
    return ours.median / row.floor


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def host(results: Results) -> Cells:
    """A line for each part of a call's cost on the host."""
    return [(part.name, str(part.time)) for part in results.host]


def steps(results: Results) -> Cells:
    """A line for each model: a step of each side in microseconds."""
    captured = any(whole_steps.CAPTURED in step.times for step in results.steps)
    sides = (*whole_steps.SIDES, whole_steps.CAPTURED) if captured else whole_steps.SIDES
    lines: Cells = [("model", *sides)]
    for step in results.steps:
        lines.append((step.model, *(str(step.times.get(side, NOT_TIMED)) for side in sides)))
    return lines


def failures(results: Results) -> list[str]:
    """What was not timed, and why."""
    rows = [f"{row.room}: {row.failure}" for row in results.rows if row.failure is not None]
    return rows + [f"{step.model}: {step.failure}" for step in results.steps if step.failure]


def _number(value: float | None) -> str:
    return NOT_TIMED if value is None else f"{value:.2f}"


def caption(results: Results) -> str:
    """What the figures were measured with and on."""
    found = {name: value or "none" for name, value in results.provenance.items()}
    where = found["gpu"] if results.on_gpu else f"no measurement of a GPU ({found['cpu']})"
    software = f"driver {found['driver']}, CUDA {found['cuda']}, PyTorch {found['torch']}"
    return (
        f"{where}, {software}, CuPy {found['cupy']}, detmode {found['commit']}, {found['date']}; "
        f"up to {results.rounds} rounds, a copy moves {results.bandwidth / 1e9:.0f} GB/s."
    )


def printed(results: Results) -> str:
    """Everything, for a terminal."""
    parts = []
    if not results.on_gpu:
        parts.append(
            "No GPU: the CUDA kernels ran on the host runner, ATen's on the CPU. These figures "
            "show that the benchmark runs; they are no measurement of a GPU."
        )
    if results.rows:
        parts.append("Microseconds: median (quartiles)")
        parts.append(_table(OPERATOR_HEADS, operators(results.rows)))
        parts.append("detmode's time over the others', geometric means")
        parts.append(_table(ROOM_HEADS, by_room(results.rows)))
    if results.host:
        parts.append(_table(("part of a call on the host", "us"), host(results)))
    if results.steps:
        heads, *lines = steps(results)
        parts.append(_table(heads, lines))
    parts += [f"not timed: {failure}" for failure in failures(results)]
    return "\n\n".join([*parts, caption(results)])


def _table(heads: Sequence[str], lines: Cells) -> str:
    return tabulate(lines, headers=heads, disable_numparse=True)


NOT_YET = """\
Not yet measured on a GPU. What each room says under *Cost* is counted, not timed: the bytes that a
kernel reads and writes, beside the inputs read once and the outputs written once."""
BY_ROOM = """\
detmode's time over that of ATen's nondeterministic kernel, of PyTorch's deterministic path where it
has one, of a round trip to the CPU, and of a copy that moves the inputs once and the outputs once:
geometric means over the inputs."""


def documented(found: Sequence[Results]) -> str:
    """The section of ``docs/performance.md``: every GPU that was measured."""
    return "\n\n".join(_documented(results) for results in found) or NOT_YET


def _documented(results: Results) -> str:
    parts = [f"### {results.provenance['gpu']}", caption(results)]
    if results.rows:
        parts += [BY_ROOM, _markdown(ROOM_HEADS, by_room(results.rows))]
    if results.steps:
        heads, *lines = steps(results)
        parts += ["A training step in microseconds: median (quartiles).", _markdown(heads, lines)]
    if results.host:
        parts.append("What a call costs the host, in microseconds: median (quartiles).")
        parts.append(_markdown(("part", "us"), host(results)))
    parts += [f"Not timed: {failure}." for failure in failures(results)]
    return "\n\n".join(parts)


def _markdown(heads: Sequence[str], lines: Cells) -> str:
    return tabulate(lines, headers=heads, disable_numparse=True, tablefmt="github")
