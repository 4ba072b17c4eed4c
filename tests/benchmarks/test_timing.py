"""The clock and what times things side by side, on the host and on a stand-in for a GPU."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import timing
import torch
from timing import Clock, Rotation, Spread, Timed, bytes_of, interleaved


class SmallCache(Clock):
    """With a cache of 4 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_bytes = 4096


class Event:
    """Writes down what a GPU is asked, in order; time passes by a millisecond with each event."""

    asked: list[str]

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.asked.append("event")
        self.at = self.asked.count("event")

    def synchronize(self) -> None:
        self.asked.append("wait for event")

    def elapsed_time(self, end: "Event") -> float:
        assert self.asked[-1] == "wait for event"
        return float(end.at - self.at)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a GPU that stands in is asked to do."""
    found: list[str] = []
    monkeypatch.setattr(Event, "asked", found, raising=False)
    properties = type("Properties", (), {"L2_cache_size": 1 << 20})
    for name, stand_in in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda device: properties,
        "Event": Event,
        "_sleep": lambda cycles: found.append(f"busy for {cycles}"),
        "synchronize": lambda device: found.append("wait"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return found


def test_gpu_is_busy_until_the_call_is_queued(asked: list[str]) -> None:
    """First the GPU is kept busy, then the call goes between two events."""
    clock = Clock()
    assert (clock.device.type, clock.cache_bytes) == ("cuda", 1 << 20)
    assert clock.seconds(lambda: asked.append("call"), 0.001) == pytest.approx(1e-3)
    assert asked == ["busy for 2000000", "event", "call", "event", "wait for event"]


def test_gpu_is_not_busy_for_long(asked: list[str]) -> None:
    """A call that makes the host wait anyway does not hold the GPU for its whole length."""
    interleaved({"slow": Timed(lambda n: time.sleep(0.01))}, Clock(), 2, 1, ahead=0.005)
    busy = [each for each in asked if each.startswith("busy")]
    assert busy == [f"busy for {int(0.005 * 2e9)}"] * 2
    asked.clear()
    spreads = interleaved({"step": Timed(lambda n: None)}, Clock(), 2, ahead=0.0)
    assert spreads["step"].median == pytest.approx(1e-3)
    assert not any(each.startswith("busy") for each in asked)


def test_each_runs_once_a_round_in_turning_order() -> None:
    """None is always first, and no two calls get the same number: the inputs rotate over all."""
    seen: list[tuple[str, int]] = []
    timed = {name: Timed(lambda n, name=name: seen.append((name, n))) for name in "abc"}
    spreads = interleaved(timed, Clock(), rounds=4, warm_up=0)
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

    spread = interleaved({"it": Timed(run, around)}, Clock(), 3, warm_up=1)["it"]
    assert 0.002 <= spread.low <= spread.median <= spread.high
    assert spread.low < 0.05


def test_the_clock_is_told_how_long_the_host_is_busy() -> None:
    """A GPU is kept busy for as long as the host needs to queue the call."""
    leads = []

    class Told(Clock):
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
    spreads = interleaved(timed, Clock(), 6)
    assert (spreads["slow"].count, spreads["quick"].count) == (3, 6)
    assert len(calls) == 3 + 1


def test_what_is_slow_on_the_gpu_leaves_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is queued at once and takes long counts as what it takes, not as busy host."""
    monkeypatch.setattr(timing, "PATIENCE", 0.02)
    queued, leads = [], []

    class Gpu(Clock):
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
    assert interleaved({}, Clock(), 2) == {}


def test_a_spread_needs_two_rounds() -> None:
    """One time has no spread."""
    with pytest.raises(ValueError, match="two rounds or more, but got 1"):
        interleaved({"it": Timed(lambda n: None)}, Clock(), 1)


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
    assert timing.copy_bandwidth(Clock(), 1 << 20, 2) == 4 * (1 << 20)
