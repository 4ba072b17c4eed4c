"""``recheck``: calls made twice find what varies, and leave the program as it was."""

import copy
import logging
import os
import pickle
import random
import statistics
import subprocess
import threading
import warnings
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import detmode
from detmode import DeterministicMode, RecheckError, allow
from detmode.bits import draws
from detmode.mode import listed
from detmode.mode.dispatch_stack import acting
from detmode.mode.levels import Level
from detmode.mode.recheck import WINDOW, Recheck
from detmode.mode.sampled_calls import gap_after, rechecked
from detmode.reports.report import Report
from detmode.reports.union import of_ranks
from tests.shared import needs
from tests.shared.selection import todays_forms

Run = Callable[..., subprocess.CompletedProcess[str]]

FAULTY = 10_000
"""One result in so many has a flipped bit."""


class Faults(TorchDispatchMode):
    """Flips a bit in one result in ``FAULTY``, as faulty hardware would; counts the calls."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.calls, self.flipped = 0, 0
        self._random = random.Random(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        if func is torch.ops.aten.mul.Tensor and self._random.random() * FAULTY < 1:
            self.flipped += 1
            result.view(torch.int32)[0] ^= 1 << self._random.randrange(32)
        return result


@torch.library.custom_op("detmode_recheck::faulty", mutates_args=())
def faulty(x: Tensor) -> Tensor:
    """A nondeterministic operator that no table knows: one result in ``FAULTY`` has another bit."""
    result = x.clone()
    STATE["calls"] += 1
    if STATE["random"].random() * STATE["one_in"] < 1:
        result.view(torch.int32)[0] ^= 1
    return result


@torch.library.custom_op("detmode_recheck::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    """Keeps a state of its own, and so differs at each call."""
    STATE["calls"] += 1
    return x + STATE["calls"]


@torch.library.custom_op("detmode_recheck::draw", mutates_args=())
def draw(x: Tensor) -> Tensor:
    """Random by three generators, and its tags say nothing of it."""
    return x + torch.rand(()) + random.random() + np.random.rand()


@torch.library.custom_op("detmode_recheck::add_", mutates_args=("x",))
def add_(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("detmode_recheck::shape", mutates_args=())
def shape(x: Tensor) -> Tensor:
    """Returns as many zeros as calls were made."""
    STATE["calls"] += 1
    return x.new_zeros(STATE["calls"])


@torch.library.custom_op("detmode_recheck::warn", mutates_args=())
def warn(x: Tensor) -> Tensor:
    """Warns at each call."""
    STATE["calls"] += 1
    warnings.warn("as it is called", stacklevel=1)
    return x.clone()


@torch.library.custom_op("detmode_recheck::draw_more", mutates_args=())
def draw_more(x: Tensor) -> Tensor:
    """Draws one number more at each call, and returns none of them."""
    STATE["calls"] += 1
    torch.rand(STATE["calls"])
    return x.clone()


STATE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Builds of PyTorch for CUDA refuse simulated products without it.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    STATE.update(calls=0, random=random.Random(0), one_in=FAULTY)
    torch.manual_seed(0)
    return


def counts(mode: DeterministicMode) -> dict[str, float]:
    return dict(mode.report().head["recheck"])


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
def test_the_program_is_as_without(rate: float) -> None:
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


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is the program's only thread: pytest's are there, and draw nothing."""
    monkeypatch.setattr(draws, "is_alone", lambda: True)


@pytest.mark.usefixtures("alone")
def test_what_repeats_only_from_the_same_state() -> None:
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
def test_generators_go_on_from_the_first_call() -> None:
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
def test_other_threads_draw_no_number_twice(work: str, drawn_from: str) -> None:
    """Rechecked calls set no generator back from which another thread draws; none is blamed."""

    def calls() -> None:
        with DeterministicMode(simulate="cuda", recheck=1.0) as mode:
            x = torch.ones(64)
            for _ in range(150):
                WORKS[work](x)
        assert counts(mode)["differing"] == 0

    numbers = drawn_beside(calls, DRAWS[drawn_from])
    assert len(numbers) == len(set(numbers))


def test_numbers_of_a_private_generator_are_compared() -> None:
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


def test_warnings_of_other_threads() -> None:
    """No filter changes, also while threads change them, and no warning is lost or doubled."""
    # What the calls warn of is not what the other thread counts.
    warnings.simplefilter("ignore")
    show = warnings._showwarnmsg  # type: ignore[attr-defined]  # it is not public
    before = list(warnings.filters)

    def caught() -> int:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            warnings.warn("beside", stacklevel=1)
        return sum(str(each.message) == "beside" for each in heard)

    def calls() -> None:
        with DeterministicMode(simulate="cuda", recheck=1.0):
            for _ in range(150):
                warn(torch.ones(4))

    found = drawn_beside(calls, caught)
    assert set(found) == {1}
    assert warnings.filters == before
    assert warnings._showwarnmsg is show  # type: ignore[attr-defined]  # as above


def test_no_warning_is_given_again() -> None:
    """A call that warns does so once, although it is made twice."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with DeterministicMode(recheck=1.0) as mode:
            warn(torch.ones(4))
    assert [str(each.message) for each in heard] == ["as it is called"]
    # Made twice: ones, warn and, in the program's own call of it, clone.
    assert (STATE["calls"], counts(mode)["made_twice"]) == (2, 3)


def test_a_difference_is_told_whole() -> None:
    """The error has operator, line, rank, number and both digests, and the remedy works."""
    with pytest.raises(RecheckError) as raised, DeterministicMode(recheck=1.0):
        torch.ones(2).neg()
        count(torch.ones(3))
        line = here()
    (call,) = raised.value.calls
    assert (call.overload, call.number, call.module) == ("detmode_recheck::count.default", 4, None)
    assert call.site == f"{__file__}:{line - 1}"
    (one, other), text = call.digests["output 0"], str(raised.value)
    assert one != other
    assert {len(one), len(other)} == {32}
    for part in (call.overload, call.site, one, other, "call 4,", "no rule lists it"):
        assert part in text
    assert 'detmode.allow("detmode_recheck::count")' in text
    assert pickle.loads(pickle.dumps(raised.value)).calls == raised.value.calls
    with DeterministicMode(recheck=1.0) as mode, allow("detmode_recheck::count"):
        count(torch.ones(3))
    with DeterministicMode(recheck=1.0, overrides={"detmode_recheck::count": "allow"}):
        count(torch.ones(3))
    assert counts(mode)["made_twice"] == counts(mode)["calls"] - 1


def here() -> int:
    """Return the line of the call."""
    import inspect

    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says on which rank; ranks sample other calls, a rank always the same ones."""

    def sample(rank: str, seed: int) -> list[float]:
        monkeypatch.setenv("RANK", rank)
        torch.manual_seed(seed)
        recheck, numbers = Recheck(0.01, logging.getLogger("detmode")), []
        for _ in range(3):
            recheck.left = 0
            numbers.append(recheck.sample())
        return numbers

    monkeypatch.setenv("WORLD_SIZE", "4")
    samples = [tuple(sample(*each)) for each in (("0", 0), ("1", 0), ("0", 1), ("0", 0))]
    assert samples[0] == samples[3]
    assert len(set(samples)) == 3
    monkeypatch.setenv("RANK", "3")
    raises = pytest.raises(RecheckError, match="call 2 of rank 3")
    with raises as raised, DeterministicMode(recheck=1.0):
        count(torch.ones(3))
    assert raised.value.calls[0].rank == 3


def test_ranks_are_added() -> None:
    """The one report of ranks has the calls of all, in JSON and in its text."""
    seen = {"rate": 0.1, "calls": 1000, "sampled": 100, "made_twice": 60, "differing": 0}
    report = Report((), head={"recheck": seen})
    whole = Report.from_json(of_ranks(report, [report, Report(())], 3, {}).to_json())
    assert whole.head["recheck"] == {name: 2 * n for name, n in seen.items()} | {"rate": 0.1}
    assert "120 of 2,000 calls made twice (recheck=0.1): none differed" in str(whole)


def test_a_window_ends_the_wait() -> None:
    """A difference is raised after 32 calls made twice, where the program goes on for longer."""
    made = 0
    with pytest.raises(RecheckError), DeterministicMode(recheck=1.0):
        x = count(torch.ones(3))
        while made < 10 * WINDOW:
            made += 1
            x = x.neg()
    assert made == WINDOW - 3  # ones, count and the addition in it came before


def test_another_error_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """An error that ends the block is raised, and the difference logged."""
    with pytest.raises(KeyError, match="own"), DeterministicMode(recheck=1.0):
        count(torch.ones(3))
        raise KeyError("own")
    assert "detmode_recheck::count.default gave other bits" in caplog.text


def test_other_shapes_differ() -> None:
    """Results of other shapes are not the same, and the error says which."""
    raises = pytest.raises(RecheckError, match=r"float32\[1\] then \w+ float32\[2\]")
    with raises, DeterministicMode(recheck=1.0):
        shape(torch.ones(3))


def test_known_to_vary() -> None:
    """Calls that a rule warns about are not compared; under warn_only the others still are."""
    index = torch.tensor([1, 1])
    options = {"simulate": "cuda", "substitute": False, "warn_only": True, "recheck": 1.0}
    with pytest.warns(detmode.DeterminismWarning), DeterministicMode(**options) as mode:
        torch.zeros(3).put_(index, torch.ones(2), accumulate=True)
        before = counts(mode)["made_twice"]
        torch.ones(3).neg()
    assert counts(mode)["made_twice"] == before + 2
    assert sum(row.count for row in mode.records if row.action == "warn") == 1


def test_no_tensor_is_kept() -> None:
    """A window holds digests alone: the program's memory is free when it is done with it."""
    with DeterministicMode(recheck=1.0) as mode:
        x = torch.ones(3)
        kept = weakref.ref(x), weakref.ref(x.neg())
        x.mul_(2)
        del x
        assert [each() for each in kept] == [None, None]
    assert counts(mode)["made_twice"] == 3


@pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE)
def test_listed_calls_alone() -> None:
    """intercept="listed" receives the calls of listed operators, and samples those."""
    with DeterministicMode(recheck=1.0, simulate="cuda", intercept="listed") as mode:
        torch.ones(4).neg()
        torch.zeros(3).index_add_(0, torch.tensor([1, 1]), torch.ones(2))
    assert (counts(mode)["made_twice"], counts(mode)["differing"]) == (1, 0)
    assert [row.count for row in mode.records if "index_add" in row.overload] == [1]


@pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE)
def test_listed_calls_are_counted_in_their_kernels() -> None:
    """A level that lists counts nothing more where it is a dispatch mode, inside a call."""
    with DeterministicMode(recheck=1.0, simulate="cuda", intercept="listed") as mode:
        level = listed.acting()
        assert level is not None
        with acting(level):
            torch.ones(3).neg()
    assert counts(mode)["calls"] == 0


@pytest.mark.thorough
@needs.compiler
def test_compiled_code() -> None:
    """A listed operator in compiled code is made twice, and counted once at its line."""
    x, index, source = torch.ones(4), torch.tensor([1, 1]), torch.rand(2)

    def step(x: Tensor) -> Tensor:
        return (x * 2).index_add(0, index, source).sin()

    with DeterministicMode(recheck=1.0, simulate="cuda") as mode:
        found = torch.compile(step)(x)
        before = counts(mode)["made_twice"]
        assert torch.equal(torch.compile(step)(x), found)
        assert counts(mode)["made_twice"] >= before + 2  # torch.equal is a call, too
    assert counts(mode)["differing"] == 0
    assert [row.count for row in mode.records if "index_add" in row.overload] == [2]


def test_outer_modes_see_one_call(tmp_path: Path) -> None:
    """A mode outside, such as a recording, sees each call of the program once."""
    for number, rate in enumerate((0.0, 1.0)):
        with detmode.record(tmp_path / str(number)), DeterministicMode(recheck=rate):
            training(1)
    assert detmode.diff(tmp_path / "0", tmp_path / "1").identical


def test_blocks_inside_blocks() -> None:
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


def test_nothing_is_added_without() -> None:
    """PyTorch calls the method that counts calls of the level of a mode with recheck alone."""
    with DeterministicMode(), DeterministicMode(recheck=0.1):
        plain, counting = _get_current_dispatch_mode_stack()
    assert type(plain).__torch_dispatch__ is Level.__torch_dispatch__
    assert type(counting) is rechecked(Level)
    assert rechecked(Level).__torch_dispatch__ is not Level.__torch_dispatch__
    assert not any("__torch_dispatch__" in vars(level) for level in (plain, counting))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_not_sampled() -> None:
    """A worker inherits the mode: it makes no call twice, and ends without comparing any."""
    with DeterministicMode(recheck=1.0) as mode:
        torch.ones(3).neg()
        child = os.fork()
        if not child:
            torch.ones(3).neg()
            os._exit(int(counts(mode)["sampled"]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (True, TypeError, "recheck must be float, not bool"),
        ("0.1", TypeError, "recheck must be float, not str"),
        (-0.1, ValueError, "from 0 to 1, got -0.1"),
        (1.5, ValueError, "from 0 to 1, got 1.5"),
        (float("nan"), ValueError, "from 0 to 1, got nan"),
    ],
)
def test_wrong_rates(given: Any, error: type[Exception], words: str) -> None:
    """Anything but a number from 0 to 1 is refused."""
    with pytest.raises(error, match=words):
        DeterministicMode(recheck=given)


@pytest.mark.parametrize("rate", [1e-3, 0.3])
def test_the_share_is_the_rate(rate: float) -> None:
    """Gaps between sampled calls have the mean and the spread of independent draws."""
    number, gaps = 0, []
    for _ in range(4000):
        gaps.append(gap_after(number, rate))
        number += gaps[-1]
    assert min(gaps) >= 1
    assert statistics.mean(gaps) == pytest.approx(1 / rate, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx((1 - rate) ** 0.5 / rate, rel=0.1)


def test_a_flipped_bit_is_found() -> None:
    """With one faulty result in 10,000 and every call made twice, in the window of the fault."""
    faults, x = Faults(seed=2), torch.ones(4)
    raises = pytest.raises(RecheckError, match=r"aten::mul\.Tensor")
    with raises, faults, DeterministicMode(recheck=1.0):
        for _ in range(3 * FAULTY):
            x = x * 1.0
    assert faults.flipped == 1
    assert 0 < faults.calls < 2 * FAULTY


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, y: x.mul_(y), "mutated self"),
        (lambda x, y: torch.mul(x, y, out=x), "mutated out"),
        (lambda x, y: torch._foreach_mul_([y, x], [y, y]), r"mutated self\[1\]"),
    ],
    ids=["in_place", "out", "list"],
)
def test_what_is_written_is_compared(call: Callable[..., object], name: str) -> None:
    """A flipped bit in what a call of ATen writes is found, by the name of the argument."""

    class Flips(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            x.view(torch.int32)[0] ^= 1
            return result

    x, y = torch.ones(4), torch.ones(4)
    with pytest.raises(RecheckError, match=name), Flips(), DeterministicMode(recheck=1.0):
        call(x, y)


def calls_until_found(one_in: int, rate: float, seed: int) -> int:
    """Return the number of the first call that is found of an operator that rarely varies."""
    STATE.update(one_in=one_in, random=random.Random(seed))
    torch.manual_seed(seed)
    x = torch.ones(2)
    received: list[float] = []
    with pytest.raises(RecheckError) as raised, DeterministicMode(recheck=rate) as mode:
        while True:
            # What the operator calls is received as well.
            received.append(counts(mode)["calls"])
            faulty(x)
    return bisect_left(received, raised.value.calls[0].number)


@pytest.mark.parametrize(
    ("one_in", "rate", "trials"),
    [(20, 0.5, 25), pytest.param(FAULTY, 0.5, 8, marks=pytest.mark.thorough)],
)
def test_an_unknown_operator_is_found(one_in: int, rate: float, trials: int) -> None:
    """It takes the expected number of calls: either of the two may be the one that differs."""
    expected = one_in / (2 * rate)
    found = [calls_until_found(one_in, rate, seed) for seed in range(trials)]
    assert statistics.mean(found) == pytest.approx(expected, rel=3 / trials**0.5)
