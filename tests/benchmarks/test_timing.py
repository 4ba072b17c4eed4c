"""The clocks and what times things side by side, through the clock of the host."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import timing
import torch
from timing import HostClock, Rotation, Spread, Timed, bytes_of, interleaved


class SmallCache(HostClock):
    """The host with a cache of 4 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_bytes = 4096


def test_each_runs_once_a_round_in_turning_order() -> None:
    """None is always first, and no two calls get the same number: the inputs rotate over all."""
    seen: list[tuple[str, int]] = []
    timed = {name: Timed(lambda n, name=name: seen.append((name, n))) for name in "abc"}
    spreads = interleaved(timed, HostClock(), rounds=4, warm_up=0)
    assert [name for name, _ in seen] == list("abcbcacababc")
    assert [number for _, number in seen] == list(range(1, 13))
    assert {spread.count for spread in spreads.values()} == {4}


def test_only_the_call_is_timed() -> None:
    """What is around a call, and the warm-up, are no part of its time."""
    inside = []

    @contextmanager
    def around() -> Iterator[None]:
        time.sleep(0.05)
        inside.append(True)
        yield
        inside.pop()

    def run(number: int) -> None:
        assert inside
        time.sleep(0.002)

    spread = interleaved({"it": Timed(run, around)}, HostClock(), 3, warm_up=1)["it"]
    assert 0.002 <= spread.low <= spread.median <= spread.high
    assert spread.low < 0.05


def test_the_clock_is_told_how_long_the_host_is_busy() -> None:
    """A GPU is kept busy for as long as the host needs to queue the call."""
    leads = []

    class Told(HostClock):
        def seconds(self, run: Callable[[], object], lead: float = 0.0) -> float:
            leads.append(lead)
            return super().seconds(run, lead)

    interleaved({"it": Timed(lambda n: time.sleep(0.01))}, Told(), 2)
    assert all(lead == timing.LEAD for lead in leads)
    leads.clear()
    interleaved({"it": Timed(lambda n: time.sleep(0.01))}, Told(), 2, ahead=5.0)
    assert all(0.02 <= lead < 1 for lead in leads)


def test_what_is_slow_leaves_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds the host for long is timed three times, the others as often as asked."""
    monkeypatch.setattr(timing, "PATIENCE", 0.02)
    calls = []

    def slow(number: int) -> None:
        calls.append(number)
        time.sleep(0.01)

    timed = {"slow": Timed(slow), "quick": Timed(lambda n: None)}
    spreads = interleaved(timed, HostClock(), 6)
    assert (spreads["slow"].count, spreads["quick"].count) == (3, 6)
    assert len(calls) == 3 + 1


def test_what_is_slow_on_the_gpu_leaves_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is queued at once and takes long counts as what it takes, not as busy host."""
    monkeypatch.setattr(timing, "PATIENCE", 0.02)
    queued, leads = [], []

    class Gpu(HostClock):
        def seconds(self, run: Callable[[], object], lead: float = 0.0) -> float:
            leads.append(lead)
            return super().seconds(run)

        def wait(self) -> None:
            time.sleep(0.01 * len(queued))
            queued.clear()

    spreads = interleaved({"slow": Timed(queued.append)}, Gpu(), 6)
    assert spreads["slow"].count == 3
    assert all(lead < 0.005 for lead in leads)


def test_nothing_takes_no_time() -> None:
    """Where no side can run, there is nothing to time."""
    assert interleaved({}, HostClock(), 2) == {}


def test_a_spread_needs_two_rounds() -> None:
    """One time has no spread."""
    with pytest.raises(ValueError, match="two rounds or more, but got 1"):
        interleaved({"it": Timed(lambda n: None)}, HostClock(), 1)


def test_spread_prints_microseconds() -> None:
    """Three digits, also of long times."""
    assert str(Spread.of([1e-6, 2e-6, 3e-6])) == "2.00 (1.50 to 2.50)"
    assert str(Spread.of([0.5, 0.5])) == "500000 (500000 to 500000)"
    assert str(Spread.of([99.7e-6, 99.7e-6])) == "99.7 (99.7 to 99.7)"


def test_copies_are_pushed_out_of_the_cache() -> None:
    """Between two uses of a copy, twice the cache is read of the others."""
    rotation = Rotation.of({"x": torch.arange(250.0)}, SmallCache())
    assert rotation.beyond_cache
    others = [rotation[number]["x"] for number in range(1, len(rotation.copies))]
    assert sum(other.nbytes for other in others) >= 2 * 4096
    assert len({copy["x"].data_ptr() for copy in rotation.copies}) == len(rotation.copies)
    assert all(torch.equal(copy["x"], rotation[0]["x"]) for copy in rotation.copies)
    assert rotation[len(rotation.copies)] is rotation[0]


def test_small_arguments_are_said_to_be_in_the_cache() -> None:
    """No claim of memory traffic where the copies do not reach beyond the cache."""
    rotation = Rotation.of([torch.ones(4)], SmallCache(), most=5)
    assert not rotation.beyond_cache
    assert len(rotation.copies) == 5


def test_copies_keep_their_form() -> None:
    """A copy of an expanded or transposed tensor is expanded or transposed too."""
    index = torch.arange(10)[:, None].expand(10, 30)
    for copy in Rotation.of({"index": index, "x": torch.ones(9, 5).T}, SmallCache()).copies:
        assert copy["index"].stride() == (1, 0)
        assert copy["x"].stride() == (1, 5)


def test_bytes_are_those_in_memory() -> None:
    """Expanded dimensions and a tensor that comes twice count once."""
    x = torch.ones(10, dtype=torch.float64)
    assert bytes_of(x) == 80
    assert bytes_of([x, {"again": x}, None, 3]) == 80
    assert bytes_of((x, x.clone())) == 160
    assert bytes_of(x[:, None].expand(10, 1000)) == 80
    assert bytes_of(torch.empty(0, 5)) == 0


def test_bandwidth_counts_what_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of n bytes moves 2 n."""
    monkeypatch.setattr(timing, "interleaved", lambda *_: {"copy": Spread(0.5, 0.5, 0.5, 2)})
    assert timing.copy_bandwidth(HostClock(), 1 << 20, 2) == 4 * (1 << 20)
