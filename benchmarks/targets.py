"""Targets of the kernels, their measurements, and the inputs that are measured first for them."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import whole_steps
from results import NOT_TIMED, Results, geometric_mean, number, over, ratio, share
from sides import ATEN, ATEN_IN_PLACE, NATIVE, OURS, OURS_IN_PLACE, Row, Workload, n_bytes

NOT_YET = "not yet measured on a GPU"
GATHERED = (
    *("adaptive_avg_pool", "adaptive_max_pool", "avg_pool3d", "max_pool3d", "reflection_pad"),
    *("replication_pad", "upsample", "upsample_aa"),
)
"""The families whose backward gathers."""
NOT_ATOMIC = (
    *("aten::embedding_dense_backward", "aten::index_put", "aten::median.dim"),
    "aten::nanmedian.dim",
)
"""The operators whose kernel in ATen has no atomics, as timed: index_put accumulates."""
SORTED = ("aten::index_add", "aten::scatter_add", "aten::index_put")
"""The operators that PyTorch's deterministic path sorts."""
DUPLICATES = ("zipf", "one")
CUMSUM = ("aten::cumsum", "row_256m", "float32")
BOUND = 20e-6
"""Seconds of the floor from which the bandwidth, and not the launch, is what bounds a call."""


@dataclass(frozen=True)
class Target:
    """One line of the table.

    Args:
        what: is measured.
        goal: the bound; ``None`` where the figure only informs.
        measured: the figure, ``None`` where there is none, and a word on it.
        least: whether the bound is a lower one.
    """

    what: str
    goal: float | None
    measured: Callable[[Results], tuple[float | None, str]]
    least: bool = False

    def cells(self, results: Results | None) -> tuple[str, str, str]:
        """Cells: what, target, measured; or that there are no results, or none of a GPU."""
        bound = "at least" if self.least else "at most"
        goal = NOT_TIMED if self.goal is None else f"{bound} {number(self.goal)}"
        if results is None or not results.on_gpu:
            return self.what, goal, NOT_YET
        figure, word = self.measured(results)
        if figure is None:
            return self.what, goal, word or "not measured"
        parts = [number(figure), word]
        if self.goal is not None:
            met = figure >= self.goal if self.least else figure <= self.goal
            parts.append("met" if met else "missed")
        return self.what, goal, ", ".join(part for part in parts if part)


def _own(results: Results) -> list[Row]:
    """Rows that were timed with the samples' own indices."""
    return [row for row in results.rows if row.failure is None and not row.contention]


def _named(row: Row) -> str:
    return " ".join(part for part in (row.op, row.sample, row.dtype, row.contention) if part)


def _mean(rows: Iterable[Row], side: str) -> tuple[float | None, str]:
    """The geometric mean over the operators of that over their inputs."""
    by_operator: dict[str, list[float]] = {}
    for row in rows:
        found = ratio(row, side)
        if found is not None:
            by_operator.setdefault(row.op, []).append(found)
    if not by_operator:
        return None, ""
    word = f"{len(by_operator)} operators, {sum(map(len, by_operator.values()))} inputs"
    return geometric_mean(map(geometric_mean, by_operator.values())), word


def _worst(rows: Iterable[Row], ours: str = OURS, side: str = ATEN) -> tuple[float | None, str]:
    """The largest ratio to ATen's time, and of which input."""
    ratios = ((over(row.times.get(ours), row.times.get(side)), row) for row in rows)
    found = [(each, _named(row)) for each, row in ratios if each is not None]
    return max(found, default=(None, ""))


def _of_aten(results: Results, dtypes: Sequence[str], *, atomic: bool) -> list[Row]:
    """Rows of such dtypes whose kernel in ATen is atomic, or is not."""
    rows = [row for row in _own(results) if row.dtype in dtypes]
    return [row for row in rows if (row.op not in NOT_ATOMIC) is atomic]


def _warm(results: Results) -> tuple[float | None, str]:
    """The mean of all operators with their inputs in the cache."""
    rows = [dataclasses.replace(row, times=row.warm) for row in _own(results)]
    return _mean(rows, ATEN)


def _gathered(results: Results) -> list[Row]:
    return [row for row in _own(results) if row.family in GATHERED]


def _lowest_share(results: Results) -> tuple[float | None, str]:
    bound = [row for row in _gathered(results) if row.floor >= BOUND]
    found = [(each, _named(row)) for row in bound if (each := share(row)) is not None]
    return min(found, default=(None, ""))


def _adds(results: Results, kinds: Sequence[str]) -> list[Row]:
    rows = [row for row in results.rows if row.failure is None and row.contention in kinds]
    return [row for row in rows if row.op in SORTED]


def _cumsum(results: Results) -> list[Row]:
    return [row for row in _own(results) if (row.op, row.sample, row.dtype) == CUMSUM]


def _steps(
    side: str, plain: str = whole_steps.PLAIN, figure: str = "times"
) -> Callable[[Results], tuple[float | None, str]]:
    """The geometric mean over the models of one side's time over the nondeterministic one's.

    There is none where some model has no such time.
    """

    def measured(results: Results) -> tuple[float | None, str]:
        pairs = [getattr(step, figure) for step in results.steps.values()]
        found = [each for pair in pairs if (each := over(pair.get(side), pair.get(plain)))]
        if not found:
            return None, ""
        if len(found) < len(pairs):
            extent = f"{number(min(found))} to {number(max(found))}"
            return None, f"{len(found)} of {len(pairs)} models, {extent}"
        return geometric_mean(found), f"{len(found)} models, worst {number(max(found))}"

    return measured


TARGETS = (
    Target(
        "detmode over ATen nondeterministic, operators with an atomic kernel in ATen, float32, "
        "geometric mean",
        0.45,
        lambda results: _mean(_of_aten(results, ("float32",), atomic=True), ATEN),
    ),
    Target(
        "the same, bfloat16 and float16",
        0.6,
        lambda results: _mean(_of_aten(results, ("bfloat16", "float16"), atomic=True), ATEN),
    ),
    Target(
        "the same, operators without an atomic kernel in ATen, float32",
        None,
        lambda results: _mean(_of_aten(results, ("float32",), atomic=False), ATEN),
    ),
    Target("the same, all operators, inputs in the cache", None, _warm),
    Target("the same, worst operator and input", 1.3, lambda each: _worst(_own(each))),
    Target(
        "the same, in place, worst operator and input",
        None,
        lambda each: _worst(_own(each), OURS_IN_PLACE, ATEN_IN_PLACE),
    ),
    Target(
        "the same, any contention, worst operator and input",
        None,
        lambda each: _worst(row for row in each.rows if row.failure is None),
    ),
    Target(
        "gathering backward (interpolation, pooling, padding) over ATen nondeterministic, "
        "geometric mean",
        0.8,
        lambda results: _mean(_gathered(results), ATEN),
    ),
    Target(
        "the same, lowest share of a copy's bandwidth where the bandwidth bounds it",
        0.4,
        _lowest_share,
        least=True,
    ),
    Target(
        "index_add, scatter_add, index_put over PyTorch's deterministic path, geometric mean",
        1 / 3,
        lambda results: _mean(_adds(results, [""]), NATIVE),
    ),
    *(
        Target(
            f"the same, destinations: {kind}",
            0.1,
            lambda results, kind=kind: _mean(_adds(results, [kind]), NATIVE),
        )
        for kind in DUPLICATES
    ),
    Target(
        "cumsum, float32, one row of 2^28 elements, over ATen nondeterministic",
        1.2,
        lambda results: _mean(_cumsum(results), ATEN),
    ),
    Target(
        "the same, share of a copy's bandwidth",
        None,
        lambda results: (next(map(share, _cumsum(results)), None), ""),
    ),
    Target(
        "a training step over a nondeterministic one, geometric mean",
        1.02,
        _steps(whole_steps.OURS),
    ),
    Target("the same, memory not filled", None, _steps(whole_steps.UNFILLED)),
    Target(
        "the same, memory not filled, listed operators alone intercepted",
        None,
        _steps(whole_steps.LISTED),
    ),
    Target(
        "the same, memory not filled, the GPU's work alone",
        None,
        _steps(whole_steps.UNFILLED, figure="work"),
    ),
    *(
        Target(
            f"the same, captured in CUDA graphs: {side}",
            None,
            _steps(whole_steps.captured_name(side), whole_steps.captured_name(whole_steps.PLAIN)),
        )
        for side in whole_steps.CAPTURED[1:]
    ),
)

HEADS = ("what", "target", "measured")


def lines(results: Results | None) -> list[tuple[str, ...]]:
    """A line for each target."""
    return [target.cells(results) for target in TARGETS]


def named(each: Workload) -> bool:
    """Tell whether a target names the input's operator, in the dtype in which it is timed first."""
    sample = each.case.sample
    operator = each.case.family in GATHERED or sample.op in SORTED
    return each.first and (operator or (sample.op, sample.name) == CUMSUM[:2])


def in_order(inputs: Iterable[Workload]) -> list[Workload]:
    """Sort: inputs that targets name, the others, the other dtypes; of each the largest first."""

    def place(each: Workload) -> tuple[bool, bool, int]:
        return not named(each), not each.first, -n_bytes(each.case.sample)

    return sorted(inputs, key=place)
