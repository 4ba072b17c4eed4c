"""The tables that results are printed as, and written into the documentation."""

from collections.abc import Iterable, Mapping, Sequence

import targets
import whole_steps
from results import NOT_TIMED, Results, geometric_mean, number, over, over_floor, ratio, table
from sides import ATEN, COMPOSED, NATIVE, ROUND_TRIP, SIDES, Row
from timing import Spread

Cells = list[tuple[str, ...]]

OPERATOR_HEADS = ("operator", "input", "dtype", "contention", *SIDES, "over aten", "over floor")
FAMILY_HEADS = (
    *("family", "inputs", "over aten", "worst", "over pytorch deterministic"),
    *("over composition", "over cpu round trip", "over floor", "not timed"),
)
STEP_HEADS = (
    *("model", "side", "step", "the GPU's work", "step over nondeterministic"),
    "work over nondeterministic",
)
STEP_RATIO_HEADS = (
    *("model", "nondeterministic, us", *whole_steps.SIDES[1:], "unfilled, the GPU's work"),
    *("captured, us", *(f"captured: {side}" for side in whole_steps.CAPTURED[1:])),
)


def operators(rows: Iterable[Row]) -> Cells:
    """A line for each input: the median and the quartiles of each side in microseconds."""
    found: Cells = []
    for row in rows:
        what = (row.op, row.sample, row.dtype, row.contention)
        if row.failure is not None:
            found.append((*what, *(NOT_TIMED,) * (len(SIDES) + 2)))
            continue
        sides = tuple(str(row.times.get(side, NOT_TIMED)) for side in SIDES)
        found.append((*what, *sides, number(ratio(row, ATEN)), number(over_floor(row))))
    return found


def by_family(rows: Sequence[Row]) -> Cells:
    """A line for each family, and one for all: geometric means of detmode's time over others'."""
    names = dict.fromkeys(row.family for row in rows)
    groups = {name: [row for row in rows if row.family == name] for name in names}
    return [_summary(name, group) for name, group in {**groups, "all": list(rows)}.items()]


def _summary(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    timed = [row for row in rows if row.failure is None]
    over_aten = [each for row in timed if (each := ratio(row, ATEN)) is not None]
    others = ([ratio(row, side) for row in timed] for side in (NATIVE, COMPOSED, ROUND_TRIP))
    return (
        name,
        str(len(timed)),
        number(geometric_mean(over_aten)),
        number(max(over_aten, default=None)),
        *(number(geometric_mean(each)) for each in others),
        number(geometric_mean(over_floor(row) for row in timed)),
        str(len(rows) - len(timed)),
    )


def host(results: Results) -> Cells:
    """A line for each part of a call's cost on the host."""
    return [(name, str(time)) for name, time in results.host.items()]


def steps(results: Results) -> Cells:
    """A line for each model and side: median and quartiles in microseconds, and ratios."""
    captured = _captured()
    found: Cells = []
    for step in results.steps.values():
        for side in (*whole_steps.SIDES, *captured):
            if side not in step.times:
                continue
            plain = captured[0] if side in captured else whole_steps.PLAIN
            figures = (step.times, step.work)
            cells = (str(each.get(side, NOT_TIMED)) for each in figures)
            ratios = (number(over(each.get(side), each.get(plain))) for each in figures)
            found.append((step.model, side, *cells, *ratios))
    return found


def step_ratios(results: Results) -> Cells:
    """A line for each model: a nondeterministic step in microseconds, and the others over it."""
    (plain, *others), (first, *again) = whole_steps.SIDES, _captured()
    found: Cells = []
    for step in results.steps.values():
        if step.failure is None:
            found.append(
                (
                    *(step.model, _median(step.times, plain)),
                    *(_over(step.times, side, plain) for side in others),
                    _over(step.work, whole_steps.UNFILLED, plain),
                    _median(step.times, first),
                    *(_over(step.times, side, first) for side in again),
                )
            )
    return found


def _captured() -> list[str]:
    return [whole_steps.captured_name(side) for side in whole_steps.CAPTURED]


def _median(times: Mapping[str, Spread | str], side: str) -> str:
    time = times.get(side, NOT_TIMED)
    return f"{time.median * 1e6:.0f}" if isinstance(time, Spread) else time.partition(" ")[0][:6]


def _over(times: Mapping[str, Spread | str], side: str, plain: str) -> str:
    found = over(times.get(side), times.get(plain))
    return _median(times, side) if found is None else number(found)


def failures(results: Results) -> list[str]:
    """Rows that were not timed, and why."""
    rows = [f"{row.family}: {row.failure}" for row in results.rows if row.failure is not None]
    steps = results.steps.values()
    return rows + [f"{step.model}: {step.failure}" for step in steps if step.failure]


def caption(results: Results) -> str:
    """The software and the machine of the figures."""
    found = {name: value or "none" for name, value in results.provenance.items()}
    where = found["gpu"] if results.on_gpu else f"no measurement of a GPU ({found['cpu']})"
    software = f"driver {found['driver']}, CUDA {found['cuda']}, PyTorch {found['torch']}"
    software += f" (torch._native: {found['torch._native']})"
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
        parts.append(table(OPERATOR_HEADS, operators(results.rows)))
    parts += _summaries(results, "simple")
    parts += [f"not timed: {failure}" for failure in failures(results)]
    return "\n\n".join([*parts, caption(results)])


def _summaries(results: Results, form: str) -> list[str]:
    """Tables of the targets, the families, the steps and the host's cost, where they are there."""
    parts = [table(targets.HEADS, targets.lines(results), form)]
    if results.rows:
        parts += [BY_FAMILY, table(FAMILY_HEADS, by_family(results.rows), form)]
    if results.steps and form == "github":
        parts += [STEP_RATIOS, table(STEP_RATIO_HEADS, step_ratios(results), form)]
    elif results.steps:
        parts += ["A training step in microseconds: median (quartiles)."]
        parts += [table(STEP_HEADS, steps(results), form)]
    if results.host:
        parts.append("What a call costs the host, in microseconds: median (quartiles).")
        parts.append(table(("part", "us"), host(results), form))
    return parts


NOT_YET = """\
Not yet measured on a GPU. What each family says under *Cost* is counted, not timed: the bytes that
a kernel reads and writes, beside the inputs read once and the outputs written once."""
STEP_RATIOS = """\
A training step without determinism in microseconds (median), and the time of the others over it;
those captured in a CUDA graph over a captured one."""
BY_FAMILY = """\
detmode's time over that of ATen's nondeterministic kernel, of PyTorch's deterministic path where it
has one, of a composition of other torch operators, of a round trip to the CPU, and of a copy that
moves once what a kernel has to read of the inputs, and the outputs: geometric means over the
inputs."""


def documented(found: Sequence[Results]) -> str:
    """The section of ``docs/design/measured.md``: every GPU that was measured."""
    if not found:
        return "\n\n".join([NOT_YET, table(targets.HEADS, targets.lines(None), "github")])
    parts = []
    for results in found:
        parts += [f"### {results.provenance['gpu']}", caption(results)]
        parts += _summaries(results, "github")
        parts += [f"Not timed: {failure}." for failure in failures(results)]
    return "\n\n".join(parts)
