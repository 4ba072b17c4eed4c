"""The GPU's clock, on a stand-in for ``torch.cuda`` that writes down what it is asked."""

import time

import pytest
import torch
from timing import CudaClock, HostClock, Timed, clock, interleaved


class Log:
    """What a GPU was asked to do, in order; time passes by a millisecond with each event."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.events = 0

    def event(self, *, enable_timing: bool) -> "Event":
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, log: Log) -> None:
        self.log, self.at = log, 0

    def record(self) -> None:
        self.log.events += 1
        self.at = self.log.events
        self.log.asked.append("event")

    def synchronize(self) -> None:
        self.log.asked.append("wait for event")

    def elapsed_time(self, end: "Event") -> float:
        assert self.log.asked[-1] == "wait for event"
        return float(end.at - self.at)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()
    properties = type("Properties", (), {"L2_cache_size": 1 << 20})
    for name, stand_in in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda device: properties,
        "Event": found.event,
        "_sleep": lambda cycles: found.asked.append(f"busy for {cycles}"),
        "synchronize": lambda device: found.asked.append("wait"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return found


def test_gpu_is_busy_until_the_call_is_queued(log: Log) -> None:
    """First the GPU is kept busy, then the call goes between two events."""
    time = CudaClock()
    assert time.cache_bytes == 1 << 20
    assert time.seconds(lambda: log.asked.append("call"), 0.001) == pytest.approx(1e-3)
    assert log.asked == ["busy for 2000000", "event", "call", "event", "wait for event"]


def test_gpu_is_not_busy_for_long(log: Log) -> None:
    """A call that makes the host wait anyway does not hold the GPU for its whole length."""
    interleaved({"slow": Timed(lambda n: time.sleep(0.01))}, CudaClock(), 2, 1, ahead=0.005)
    busy = [asked for asked in log.asked if asked.startswith("busy")]
    assert busy == [f"busy for {int(0.005 * 2e9)}"] * 2


def test_steps_are_timed_as_they_come(log: Log) -> None:
    """Without a lead the time is that of the slower of host and GPU."""
    spreads = interleaved({"step": Timed(lambda n: None)}, CudaClock(), 2, ahead=0.0)
    assert spreads["step"].median == pytest.approx(1e-3)
    assert not any(asked.startswith("busy") for asked in log.asked)


@pytest.mark.usefixtures("log")
def test_clock_is_the_gpus_where_there_is_one() -> None:
    """And the host's elsewhere."""
    assert isinstance(clock(), CudaClock)


def test_clock_is_the_hosts_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU nothing asks for one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(clock(), HostClock)
