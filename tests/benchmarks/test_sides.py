"""One workload after the other on the host runner: what is timed, and what is not."""

import math
from typing import Any

import pytest
import sides
import torch
from compositions import COMPOSITIONS
from sides import (
    ATEN,
    ATEN_IN_PLACE,
    COMPOSED,
    IN_PLACE,
    NATIVE,
    OURS,
    OURS_IN_PLACE,
    ROUND_TRIP,
    SIDES,
    WARM,
    Workload,
    inputs,
    measure,
    timed_families,
    workloads,
)
from timing import Clock, Spread

from detmode.table.rule_table import resolve
from detmode.verify.cases import ClaimError, cases, run_substituted
from detmode.verify.claims import same_bits
from tests.shared.selection import todays_forms

CPU = torch.device("cpu")
LOADED = [name for name in timed_families() if inputs([name], [torch.float32], sizes="tests")]
"""The families of which a loaded library has an operator."""


def only(family: str, dtype: torch.dtype = torch.float32) -> list[Workload]:
    found = inputs([family], [dtype], sizes="tests")
    return [each for input in found for each in workloads(input, CPU)]


@pytest.fixture
def workload() -> Workload:
    return only("avg_pool3d")[0]


def test_every_side_is_timed(workload: Workload, clock: Clock) -> None:
    """ATen, its deterministic path, the substitute, the composition and the round trip.

    The floor is the bytes that a kernel has to read and to write, once, over the bandwidth: of
    ``self`` a gradient has the sizes only.
    """
    arguments = workload.case.sample.arguments(torch.float32)
    row = measure(workload, clock, 3, bandwidth=2e9)
    assert row.failure is None
    assert row.n_bytes == arguments["grad_output"].nbytes + arguments["self"].nbytes
    assert row.floor == row.n_bytes / 2e9
    assert tuple(row.times) == SIDES
    times = dict(row.times)
    assert [times.pop(name) for name in (ATEN_IN_PLACE, OURS_IN_PLACE)] == ["none", "none"]
    for time in (*times.values(), *row.warm.values()):
        assert time.count == 3
        assert 0 < time.low <= time.median <= time.high


def test_forms_in_place_are_timed(clock: Clock) -> None:
    """In place an operator is timed as ATen's and as the substitute, cold and with warm inputs.

    The inputs of the other sides are as before.
    """
    (workload,) = [each for each in only("put") if not each.contention]
    kept = workload.case.sample.arguments(torch.float32)["self"].clone()
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert isinstance(row.times[ATEN_IN_PLACE], Spread)
    assert isinstance(row.times[OURS_IN_PLACE], Spread)
    assert {*row.warm} == {*WARM}
    assert torch.equal(workload.case.sample.arguments(torch.float32)["self"], kept)
    for op, form in IN_PLACE.items():
        assert resolve(form) is not None, op


UNREAD = {
    case.sample.op: case
    for case in cases()
    if case.dtype is torch.float32
    and "_backward" in case.sample.op
    and not sides.read_by(case.sample.op, {"self": None})
}


@pytest.mark.parametrize("op", todays_forms(UNREAD))
def test_what_is_not_counted_is_not_read(op: str) -> None:
    """NaN in the inputs that the floor leaves out changes no bit."""
    sample = UNREAD[op].sample
    spoilt = sample.but("spoilt", self=lambda self: torch.full_like(self, math.nan))
    ours = run_substituted(sample, torch.float32)
    assert same_bits(run_substituted(spoilt, torch.float32), ours)


@pytest.mark.parametrize("family", todays_forms(LOADED))
def test_an_input_of_every_family_is_timed(family: str, clock: Clock) -> None:
    """The claims hold for what is timed, and its bytes are known: sparse tensors' too."""
    row = measure(only(family)[-1], clock, 2, bandwidth=1e9, chosen=[ATEN])
    assert row.failure is None
    assert isinstance(row.times[OURS], Spread)
    assert row.n_bytes > 0


@pytest.mark.parametrize("check", ["check_bits", "check_accuracy"])
def test_no_time_without_the_claim(
    check: str, workload: Workload, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is timed if bits vary or the error is too large, and the row says why."""

    def refuse(*_: object, **__: object) -> None:
        raise ClaimError("it does not hold")

    monkeypatch.setattr(sides, check, refuse)
    monkeypatch.setattr(sides, "interleaved", lambda *_: pytest.fail("it was timed"))
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert row.failure == "it does not hold"
    assert row.times == {}


def test_a_side_that_raises_says_so(clock: Clock) -> None:
    """An operator without a deterministic path has no time there; the others have.

    The round trip, which is slow and moves the same bytes for each contention, is timed once.
    """
    row = measure(only("put")[1], clock, 2, bandwidth=1e9)
    assert row.times[NATIVE] == "raises"
    assert row.times[ROUND_TRIP] == "not timed"
    assert all(isinstance(row.times[side], Spread) for side in (ATEN, OURS, COMPOSED))


def test_a_wrong_composition_has_no_time(
    workload: Workload, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A composition by hand is timed only if it gives the operator's result."""

    def wrong(grad_output: torch.Tensor, self: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.ones_like(self)

    op = workload.case.sample.op
    monkeypatch.setitem(COMPOSITIONS, op, wrong)
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert row.times[COMPOSED] == "inaccurate"
    assert isinstance(row.times[OURS], Spread)
    monkeypatch.delitem(COMPOSITIONS, op)
    assert measure(workload, clock, 2, bandwidth=1e9).times[COMPOSED] == "none"


def test_an_error_is_no_end(
    workload: Workload, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of one workload is in its row."""

    def fail(*_: object) -> None:
        raise MemoryError("no family\nfor it")

    monkeypatch.setattr(sides, "bytes_of", fail)
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert row.failure == "MemoryError: no family"


def test_every_family_with_a_substitute_is_walked() -> None:
    """At both sizes: a family that is left out would look as if it had no cost."""
    # torchvision's operators are not everywhere.
    substituted = {case.family for case in cases()}
    for sizes in ("bench", "tests"):
        assert substituted == {each.case.family for each in inputs(sizes=sizes)}
