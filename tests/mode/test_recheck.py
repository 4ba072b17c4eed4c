"""``recheck``: calls made twice find what varies, and leave the program as it was."""

import copy
import os
import random
import statistics
import threading
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detmode
from detmode import DeterministicMode
from detmode.mode import listed
from detmode.mode.dispatch_stack import acting
from detmode.mode.sampled_calls import gap_after
from detmode.reports.report import Report
from detmode.reports.union import of_ranks
from tests.shared import needs
from tests.shared.selection import todays_forms
from tests.shared.varying import STATE, add_, counts, draw, draw_more, warn

pytestmark = pytest.mark.usefixtures("fresh_operators")


def training(steps: int) -> tuple[Tensor, ...]:
    """Train a small network that draws numbers and writes in place; return all that it leaves."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(steps):
        optimizer.zero_grad()
        images = torch.randn(8, 8)
        images[:, 1:].add_(images[:, :-1])
        nn.functional.cross_entropy(model(images), torch.randint(4, (8,))).backward()
        optimizer.step()
    return (*model.state_dict().values(), torch.get_rng_state())


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_the_program_is_as_without(rate):
    """No value, generator or report differs, though calls are made twice; none is blamed."""
    with DeterministicMode(simulate="cuda") as plain:
        expected = training(3)
    with DeterministicMode(simulate="cuda", recheck=rate) as mode:
        found = training(3)
    assert all(map(torch.equal, expected, found))
    assert [row.count for row in mode.records] == [row.count for row in plain.records]
    seen = counts(mode)
    assert seen["sampled"] / seen["calls"] == pytest.approx(rate, abs=0.05)
    assert 0.4 * seen["sampled"] < seen["made_twice"] < seen["sampled"]
    assert seen["differing"] == 0
    assert f"made twice (recheck={rate}): none differed" in str(mode.report())


@pytest.mark.usefixtures("alone")
def test_what_repeats_only_from_the_same_state():
    """Random operators start from the same generators; what is written, from the same bytes."""
    x = torch.ones(4)
    with DeterministicMode(recheck=1.0) as mode:
        draw(x)
        add_(x[2:], x[:2])
        x[1:].mul_(x.flip(0)[1:])
        torch.normal(0.0, 1.0, (3,), generator=torch.Generator().manual_seed(1))
        x.bernoulli_(0.5)
        torch.empty(3)
        x.view(2, 2).t()
    assert counts(mode)["made_twice"] >= 5


@pytest.mark.usefixtures("alone")
def test_generators_go_on_from_the_first_call():
    """The numbers that the second call draws do not move the program's generator."""
    torch.rand(1)
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    with DeterministicMode(recheck=1.0) as mode:
        draw_more(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), expected)
    assert (STATE["calls"], counts(mode)["differing"]) == (2, 0)


def drawn_beside(work: Callable[[], object], draw: Callable[[], object]) -> list[object]:
    """Call ``draw`` in another thread again and again while ``work`` runs; return what it gives."""
    drawn: list[object] = []
    begun, ended = threading.Event(), threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            drawn.append(draw())
            begun.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        begun.wait()
        work()
    finally:
        ended.set()
        thread.join()
    return drawn


DRAWS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand((), dtype=torch.float64).item(),
    "python": random.random,
    "numpy": np.random.rand,
}
WORKS: dict[str, Callable[[Tensor], object]] = {
    "draws nothing": lambda x: x + 1,
    "takes a generator": lambda x: x.normal_(),
    "draws": lambda x: torch.native_dropout(x, 0.5, True),
    "of another library": draw,
    "of another library, draws nothing": lambda x: add_(x, x),
}


@pytest.mark.parametrize("drawn_from", todays_forms(DRAWS))
@pytest.mark.parametrize("work", WORKS)
def test_other_threads_draw_no_number_twice(work, drawn_from):
    """Rechecked calls set no generator back from which another thread draws; none is blamed."""

    def calls():
        with DeterministicMode(simulate="cuda", recheck=1.0) as mode:
            x = torch.ones(64)
            for _ in range(40):
                WORKS[work](x)
        assert counts(mode)["differing"] == 0

    numbers = drawn_beside(calls, DRAWS[drawn_from])
    assert len(numbers) == len(set(numbers))


def test_numbers_of_a_private_generator_are_compared():
    """A call that takes a generator is made twice, also beside other threads that do not draw."""
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    try:
        with DeterministicMode(recheck=1.0) as mode:
            torch.ones(4).normal_()
            torch.ones(4).bernoulli_(0.5, generator=torch.Generator())
            torch.native_dropout(torch.ones(4), 0.5, True)
    finally:
        waiting.set()
        thread.join()
    assert counts(mode)["made_twice"] == 5  # all but the last, which takes no generator


def test_warnings_of_other_threads():
    """No filter changes, also while threads change them, and no warning is lost or doubled."""
    # What the calls warn of is not what the other thread counts.
    warnings.simplefilter("ignore")
    show = warnings._showwarnmsg  # type: ignore[attr-defined]  # it is not public
    before = list(warnings.filters)

    def caught():
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            warnings.warn("beside", stacklevel=1)
        return sum(str(each.message) == "beside" for each in heard)

    def calls():
        with DeterministicMode(simulate="cuda", recheck=1.0):
            for _ in range(40):
                warn(torch.ones(4))

    found = drawn_beside(calls, caught)
    assert set(found) == {1}
    assert warnings.filters == before
    assert warnings._showwarnmsg is show  # type: ignore[attr-defined]  # as above


def test_no_warning_is_given_again():
    """A call that warns does so once, although it is made twice."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with DeterministicMode(recheck=1.0) as mode:
            warn(torch.ones(4))
    assert [str(each.message) for each in heard] == ["as it is called"]
    # Made twice: ones, warn and, in the program's own call of it, clone.
    assert (STATE["calls"], counts(mode)["made_twice"]) == (2, 3)


def test_no_tensor_is_kept():
    """A window holds digests alone: the program's memory is free when it is done with it."""
    with DeterministicMode(recheck=1.0) as mode:
        x = torch.ones(3)
        kept = weakref.ref(x), weakref.ref(x.neg())
        x.mul_(2)
        del x
        assert [each() for each in kept] == [None, None]
    assert counts(mode)["made_twice"] == 3


@pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE)
def test_listed_calls_alone():
    """intercept="listed" receives the calls of listed operators, and samples those.

    Others do not count where its level is a dispatch mode either, as inside a call.
    """
    with DeterministicMode(recheck=1.0, simulate="cuda", intercept="listed") as mode:
        torch.ones(4).neg()
        with acting(listed.acting()):
            torch.ones(4).neg()
        torch.zeros(3).index_add_(0, torch.tensor([1, 1]), torch.ones(2))
    assert [counts(mode)[name] for name in ("calls", "made_twice", "differing")] == [1, 1, 0]
    assert [row.count for row in mode.records if "index_add" in row.overload] == [1]


@pytest.mark.thorough
@needs.compiler
def test_compiled_code():
    """A listed operator in compiled code is made twice, and counted once at its line."""
    x, index, source = torch.ones(4), torch.tensor([1, 1]), torch.rand(2)

    def step(x):
        return (x * 2).index_add(0, index, source).sin()

    with DeterministicMode(recheck=1.0, simulate="cuda") as mode:
        found = torch.compile(step)(x)
        before = counts(mode)["made_twice"]
        assert torch.equal(torch.compile(step)(x), found)
        assert counts(mode)["made_twice"] >= before + 2  # torch.equal is a call, too
    assert counts(mode)["differing"] == 0
    assert [row.count for row in mode.records if "index_add" in row.overload] == [2]


def test_outer_modes_see_one_call(tmp_path):
    """A mode outside, such as a recording, sees each call of the program once."""
    for number, rate in enumerate((0.0, 1.0)):
        with detmode.record(tmp_path / str(number)), DeterministicMode(recheck=rate):
            training(1)
    assert detmode.diff(tmp_path / "0", tmp_path / "1").identical


def test_blocks_inside_blocks():
    """A mode that is entered again goes on with its sample; the innermost mode's sample acts."""
    mode = DeterministicMode(recheck=1.0)
    with mode, mode:
        torch.ones(3).neg()
    with mode:
        torch.ones(3).neg()
    assert counts(mode) | {"rate": 1.0} == {
        "rate": 1.0, "calls": 4, "sampled": 4, "made_twice": 4, "differing": 0,
    }  # fmt: skip
    with mode, DeterministicMode():
        torch.ones(3).neg()
    assert counts(mode)["sampled"] == 4
    assert copy.copy(mode).rechecked is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_not_sampled():
    """A worker inherits the mode: it makes no call twice, and ends without comparing any."""
    with DeterministicMode(recheck=1.0) as mode:
        torch.ones(3).neg()
        child = os.fork()
        if not child:
            torch.ones(3).neg()
            os._exit(int(counts(mode)["sampled"]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.parametrize("rate", [1e-3, 0.3])
def test_the_share_is_the_rate(rate):
    """Gaps between sampled calls have the mean and the spread of independent draws."""
    number, gaps = 0, []
    for _ in range(4000):
        gaps.append(gap_after(number, rate))
        number += gaps[-1]
    assert min(gaps) >= 1
    assert statistics.mean(gaps) == pytest.approx(1 / rate, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx((1 - rate) ** 0.5 / rate, rel=0.1)


def test_ranks_are_added():
    """The one report of ranks has the calls of all, in JSON and in its text."""
    seen = {"rate": 0.1, "calls": 1000, "sampled": 100, "made_twice": 60, "differing": 0}
    report = Report((), head={"recheck": seen})
    whole = Report.from_json(of_ranks(report, [report, Report(())], 3, {}).to_json())
    assert whole.head["recheck"] == {name: 2 * n for name, n in seen.items()} | {"rate": 0.1}
    assert "120 of 2,000 calls made twice (recheck=0.1): none differed" in str(whole)
