"""Whole training steps: without determinism, with PyTorch's flag, and under detmode.

The last two are timed with uninitialised memory filled, as PyTorch's flag does by default, and
left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from models import MODELS, Make, Training
from timing import Clock, Spread, Timed, interleaved

from detmode import DeterministicMode
from detmode.settings import FILL, flag
from detmode.verify.claims import same_bits

PLAIN, CAPTURED = "nondeterministic", "detmode, captured"
SIDES = (
    PLAIN,
    "pytorch deterministic",
    "pytorch deterministic, unfilled",
    "detmode",
    "detmode, unfilled",
)


@dataclass(frozen=True)
class Step:
    """What was measured of a model: a spread by side, or why the side was not timed.

    Args:
        model: its name.
        failure: what is wrong with its bits; then nothing was timed.
        times: by side.
    """

    model: str
    failure: str | None
    times: dict[str, Spread | str]


def measure(name: str, clock: Clock, rounds: int, *, tiny: bool, graph: bool = False) -> Step:
    """Check that detmode's steps have the same bits, and time a step of every side if so.

    Args:
        name: of a model in :data:`models.MODELS`.
        clock: the GPU's or the host's.
        rounds: how often each side is timed.
        tiny: the small size of the model.
        graph: also time detmode's step captured in a CUDA graph.
    """
    if not same_bits(_trained(name, clock, tiny, None), _trained(name, clock, tiny, 1)):
        return Step(name, "two runs of two steps under detmode gave other weights", {})
    step = _step(name, clock, tiny)
    times: dict[str, Spread | str] = {}
    able: dict[str, Timed] = {}
    for side, around in _sides(clock).items():
        problem = _problem(step, around)
        if problem is None:
            able[side] = Timed(lambda n: step(), around)
        else:
            times[side] = problem
    if graph:
        replay = _captured(name, clock, tiny)
        if isinstance(replay, str):
            times[CAPTURED] = replay
        else:
            able[CAPTURED] = Timed(lambda n: replay())
    times |= interleaved(able, clock, rounds, ahead=False)
    names = (*SIDES, CAPTURED) if graph else SIDES
    return Step(name, None, {side: times[side] for side in names})


def _mode(clock: Clock, fill: bool | None = None, seed: int | None = None) -> DeterministicMode:
    if clock.device.type == "cuda":
        return DeterministicMode(fill_uninitialized_memory=fill)
    return DeterministicMode(fill_uninitialized_memory=fill, simulate="cuda", schedule_seed=seed)


def _sides(clock: Clock) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    filled, unfilled = _mode(clock, True), _mode(clock, False)
    around: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
        lambda: flag(False),
        lambda: _pytorch(True),
        lambda: _pytorch(False),
        lambda: filled,
        lambda: unfilled,
    )
    return dict(zip(SIDES, around))


@contextmanager
def _pytorch(fill: bool) -> Iterator[None]:
    """PyTorch's flag, with and without the filling of memory that comes with it."""
    saved = FILL.save(fill)
    try:
        with flag(True):
            yield
    finally:
        FILL.restore(saved)


def _step(
    name: str, clock: Clock, tiny: bool, *, capturable: bool = False
) -> Callable[[], Training]:
    torch.manual_seed(0)
    training = MODELS[name](Make(clock.device, tiny))
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4, capturable=capturable)

    def step() -> Training:
        optimizer.zero_grad()
        training.loss().backward()
        optimizer.step()
        return training

    return step


def _trained(name: str, clock: Clock, tiny: bool, seed: int | None) -> list[torch.Tensor]:
    """The weights after two steps under detmode."""
    step = _step(name, clock, tiny)
    with _mode(clock, seed=seed):
        step()
        training = step()
    return list(training.model.state_dict().values())


def _problem(
    step: Callable[[], Training], around: Callable[[], AbstractContextManager[Any]]
) -> str | None:
    try:
        with around():
            step()
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        name, alert, _ = text.partition(" does not have a deterministic implementation")
        return f"raises ({name})" if alert else f"raises: {text[:40]}"
    return None


def _captured(name: str, clock: Clock, tiny: bool) -> Callable[[], None] | str:
    """Replays a step under detmode captured in a CUDA graph; or why there is none."""
    if clock.device.type != "cuda":
        return "needs a GPU"
    step = _step(name, clock, tiny, capturable=True)
    graph = torch.cuda.CUDAGraph()
    try:
        with DeterministicMode():
            # What compiles and allocates at a first call must have done so before the capture.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                step()
    except RuntimeError as error:  # a step that waits for the GPU cannot be captured
        return f"raises: {str(error).partition(chr(10))[0][:40]}"
    return graph.replay
