"""Each line of the table of targets, from figures that are made up for the test."""

import dataclasses
from collections.abc import Callable

import contention
import targets
from results import Results
from sides import Row, inputs, n_bytes, timed_families
from targets import CUMSUM, DUPLICATES, GATHERED, SORTED, TARGETS

from detmode.verify.cases import samples_of


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
