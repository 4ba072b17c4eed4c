"""Each line of the table of targets, from figures that are made up for the test."""

import dataclasses
from collections.abc import Callable

import contention
import targets
import whole_steps
from results import Results
from sides import ATEN, ATEN_IN_PLACE, OURS, OURS_IN_PLACE, Row, inputs, n_bytes, timed_families
from targets import CUMSUM, DUPLICATES, GATHERED, SORTED, TARGETS
from timing import Spread
from whole_steps import Step, captured_name

from detmode.verify.cases import samples_of

Made = Callable[[float], Spread]


def measured_of(results: Results | None) -> list[str]:
    return [line[2] for line in targets.lines(results)]


def test_nothing_is_claimed_without_a_gpu(measured: Results, row: Callable[..., Row]) -> None:
    """Neither without results, nor with those of the host runner."""
    measured.rows = [row("put", "aten::put", 1)]
    host = dataclasses.replace(measured, provenance={**measured.provenance, "gpu": None})
    for results in (None, host):
        assert set(measured_of(results)) == {targets.NOT_YET}
    assert targets.NOT_YET not in measured_of(measured)
    assert set(measured_of(dataclasses.replace(measured, rows=[]))) == {"not measured"}


def test_atomic_kernels_have_a_mean_of_their_own(
    measured: Results, row: Callable[..., Row]
) -> None:
    """So have 16-bit dtypes; what ATen sorts is told apart. What was not timed has no figure."""
    half = dataclasses.replace(row("put", "aten::put", 6), dtype="bfloat16")
    sorted_row = row("embedding", "aten::embedding_dense_backward", 1)
    measured.rows = [row("put", "aten::put", 2), half, sorted_row]
    figures = ["0.50, 1 operators, 1 inputs, missed", "1.50, 1 operators, 1 inputs, missed"]
    assert measured_of(measured)[:4] == [
        *figures,
        "0.25, 1 operators, 1 inputs",
        "not measured",
    ]


def test_forms_in_place_and_warm_inputs(
    measured: Results, row: Callable[..., Row], spread: Made
) -> None:
    """Each is held against ATen's like."""
    times = {ATEN_IN_PLACE: spread(2), OURS_IN_PLACE: spread(10)}
    cold = row("put", "aten::put", 4, times=times)
    measured.rows = [dataclasses.replace(cold, warm={ATEN: spread(2), OURS: spread(6)})]
    assert measured_of(measured)[3:6] == [
        "3.00, 1 operators, 1 inputs",
        "1.00, aten::put a float32, met",
        "5.00, aten::put a float32",
    ]


def test_operators_weigh_alike(measured: Results, row: Callable[..., Row]) -> None:
    """An operator with many inputs counts once; other contention is not of the mean."""
    many = [row("put", "aten::put", 2, str(number)) for number in range(9)]
    failed = dataclasses.replace(row("put", "aten::y", 1), failure="it varies")
    slow = row("put", "aten::put", 400, "b", "one")
    measured.rows = [*many, row("scan", "aten::cumprod", 32), failed, slow]
    mean, _, _, _, worst, _, any_contention, *_ = measured_of(measured)
    assert mean == "2.00, 2 operators, 10 inputs, missed"
    assert worst == "8.00, aten::cumprod a float32, missed"
    assert any_contention == "100.00, aten::put b float32 one"


def test_gathering_is_bound_by_the_bandwidth(measured: Results, row: Callable[..., Row]) -> None:
    """The lowest share counts where a launch is no part of the time."""
    large = dataclasses.replace(row("upsample", "aten::x", 40), floor=targets.BOUND)
    short = row("avg_pool3d", "aten::y", 40)
    other = dataclasses.replace(row("put", "aten::put", 900), floor=targets.BOUND)
    measured.rows = [large, short, other]
    assert measured_of(measured)[7] == "10.00, 2 operators, 2 inputs, missed"
    assert measured_of(measured)[8] == "0.50, aten::x a float32, met"
    measured.rows = [dataclasses.replace(large, floor=12e-6)]
    assert measured_of(measured)[8] == "not measured"


def test_sums_are_held_against_pytorchs_path(measured: Results, row: Callable[..., Row]) -> None:
    """Each kind of destinations has a line of its own."""
    measured.rows = [row("index", "aten::index_add", 5), row("put", "aten::put", 90)]
    measured.rows += [
        row("index", "aten::index_add", us, contention=kind)
        for us, kind in ((2, "zipf"), (1, "one"), (70, "distinct"))
    ]
    figures = [line.partition(",")[0] for line in measured_of(measured)[9:12]]
    assert figures == ["0.50", "0.20", "0.10"]


def test_one_large_row_is_scanned(measured: Results, row: Callable[..., Row]) -> None:
    """Of cumsum only the row that the target names counts."""
    measured.rows = [row("scan", CUMSUM[0], 8, CUMSUM[1]), row("scan", CUMSUM[0], 1, "row_16m")]
    assert measured_of(measured)[12:14] == ["2.00, 1 operators, 1 inputs, missed", "0.25"]


def test_steps_are_held_against_nondeterministic_ones(measured: Results, spread: Made) -> None:
    """Filled, unfilled, of listed operators, the GPU's work alone, captured against captured.

    Where a model has no such time there is no mean.
    """
    plain, ours, unfilled = whole_steps.CAPTURED
    times: dict[str, Spread | str] = {plain: spread(10), ours: spread(20), unfilled: spread(15)}
    times[whole_steps.LISTED] = spread(13)
    work: dict[str, Spread | str] = {plain: spread(10), unfilled: spread(12)}
    for side, us in zip(whole_steps.CAPTURED, (8, 10, 9)):
        times[captured_name(side)] = spread(us)
    measured.steps = {
        "net": Step("net", None, times, work),
        "other": Step("other", None, {**times, ours: spread(80), unfilled: "raises"}, work),
    }
    assert measured_of(measured)[-6:] == [
        "4.00, 2 models, worst 8.00, missed",
        "1 of 2 models, 1.50 to 1.50",
        "1.30, 2 models, worst 1.30",
        "1.20, 2 models, worst 1.20",
        "1.25, 2 models, worst 1.25",
        "1.12, 2 models, worst 1.12",
    ]


def test_targets_name_what_is_timed() -> None:
    """A family or an operator that is misspelt would never be measured."""
    assert set(GATHERED) <= set(timed_families())
    benched = [(each, sample) for each in timed_families() for sample in samples_of(each).bench]
    assert set(SORTED) <= {sample.op for _, sample in benched}
    (large,) = (sample for _, sample in benched if (sample.op, sample.name) == CUMSUM[:2])
    (each,) = (each for each in inputs(["scan"]) if each.case.sample is large)
    assert n_bytes(large) == 4 << 28
    assert targets.named(each)
    assert set(DUPLICATES) < set(contention.KINDS)
    assert len({target.what for target in TARGETS}) == len(TARGETS)
