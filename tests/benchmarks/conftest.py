"""The host's clock, and what the benchmarks' tests are skipped without."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timing
import torch
from results import Results
from sides import ATEN, NATIVE, OURS, Row
from timing import Clock, Spread

from detmode import cuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if cuda.unavailable("cpu") is None:
        return
    for item in items:
        if item.path.parent.name == "benchmarks" and "clock" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="the host runner needs a C++ compiler"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tensors need no large cache overwritten before each call."""
    monkeypatch.setattr(timing, "_cpu_cache_bytes", lambda: 1 << 16)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spread() -> Callable[[float], Spread]:
    """A spread around a median in microseconds."""
    return lambda us: Spread(us * 1e-6, us * 0.9e-6, us * 1.1e-6, 20)


@pytest.fixture
def row(spread: Callable[[float], Spread]) -> Callable[..., Row]:
    """An input that took so long; ATen's kernel takes 4 us, PyTorch's path 10, a copy 2."""

    def made(
        family: str, op: str, us: float, sample: str = "a", contention: str = "", **more: Any
    ) -> Row:
        times = {ATEN: spread(4), NATIVE: spread(10), OURS: spread(us), **more.pop("times", {})}
        given = {"n_bytes": 1 << 20, "floor": 2e-6, "times": times, **more}
        return Row(family, op, sample, "float32", contention, **given)

    return made


@pytest.fixture
def measured() -> Results:
    """Of a GPU that nobody has: only what its tables are made of."""
    found = ("gpu", "driver", "cuda", "torch", "torch._native", "cupy", "cpu", "python")
    found += ("commit", "date")
    provenance: dict[str, str | None] = {name: f"some {name}" for name in found}
    return Results(provenance, bandwidth=2e12, rounds=20)
