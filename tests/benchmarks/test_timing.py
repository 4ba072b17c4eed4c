"""The clock and what times things side by side, on the host and on a stand-in for a GPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from timing import Clock, Timed, interleaved


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
    """Calls of a GPU's clock, noted by a stand-in."""
    found: list[str] = []
    monkeypatch.setattr(Event, "asked", found, raising=False)
    properties = type("Properties", (), {"L2_cache_size": 1 << 20})
    for name, stand_in in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda device: properties,
        "Event": Event,
        "_sleep": lambda cycles: found.append(f"busy for {cycles}"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    # PyTorch's timer waits for the GPU that it takes to be there.
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)

    def block(n: int, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(sum=lambda: found.append(f"read {4 * n} on {device}"))

    monkeypatch.setattr(torch, "zeros", block)
    return found


def test_gpu_is_busy_until_a_call_from_memory_is_queued(asked: list[str]) -> None:
    """Other memory is read and the GPU kept busy, then the call goes between two events.

    Nothing is written: the call would wait until it is in memory. A call that makes the host wait
    anyway does not hold the GPU for its whole length.
    """

    def call() -> None:
        time.sleep(0.01)
        asked.append("call")

    clock = Clock()
    assert (clock.device.type, clock.cache_bytes) == ("cuda", 1 << 20)
    spreads = interleaved({"slow": Timed(call)}, clock, 2, 1, ahead=0.005)
    cold = ["read 2097152 on cuda:0", f"busy for {int(0.005 * 2e9)}"]
    timed = ["event", "call", "event", "wait for event"]
    assert asked == ["call", *(cold + timed) * 2]
    assert spreads["slow"].median == pytest.approx(1e-3)
    asked.clear()
    interleaved({"step": Timed(call)}, clock, 2, 1, ahead=0.0, cold=False)
    assert asked == ["call", *timed * 2]


def test_each_runs_once_a_round_in_turning_order() -> None:
    """None is always first; where no side can run, there is nothing to time."""
    seen: list[str] = []
    timed = {name: Timed(lambda name=name: seen.append(name)) for name in "abc"}
    spreads = interleaved(timed, Clock(), rounds=4, warm_up=0)
    assert "".join(seen) == "abcbcacababc"
    assert {spread.count for spread in spreads.values()} == {4}
    assert interleaved({}, Clock(), 2) == {}


def test_only_the_call_is_timed() -> None:
    """Neither the block around a call nor the warm-up is a part of its time."""
    inside = []

    @contextmanager
    def around() -> Iterator[None]:
        time.sleep(0.05)
        inside.append(True)
        yield
        inside.pop()

    def run() -> None:
        assert inside
        time.sleep(0.002)

    spread = interleaved({"it": Timed(run, around)}, Clock(), 3, warm_up=1)["it"]
    assert 0.002 <= spread.low <= spread.median <= spread.high
    assert spread.low < 0.05


def test_a_spread_needs_two_rounds() -> None:
    """One time has no spread."""
    with pytest.raises(ValueError, match="two rounds or more, but got 1"):
        interleaved({"it": Timed(lambda: None)}, Clock(), 1)
