"""Whole training steps: without determinism, with PyTorch's flag, and under detmode.

The last two are timed with uninitialised memory filled, as PyTorch's flag does by default, and
left as it is; detmode also where it intercepts listed operators alone. Each step is timed inside a
block that has taken one before. On a GPU it is timed twice: as it comes, which is the time of the
slower of host and GPU, and with the GPU held until the host has queued the step, which is the time
of the GPU's work. Steps captured in CUDA graphs have no host to wait for.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from models import MODELS, Make, Training
from timing import Clock, Spread, Timed, interleaved

from detmode import DeterministicMode
from detmode.process.setting import FILL
from detmode.process.torch_settings import deterministic_flag
from detmode.verify.claims import same_bits

PLAIN, OURS, UNFILLED = "nondeterministic", "detmode", "detmode, unfilled"
LISTED = "detmode, unfilled, listed"
SIDES = (PLAIN, "pytorch deterministic", "pytorch deterministic, unfilled", OURS, UNFILLED, LISTED)
CAPTURED = (PLAIN, OURS, UNFILLED)
"""The sides that are also captured."""
LEAD = 1.0
"""Seconds for which the GPU waits at most until the host has queued a step."""

Around = Callable[[], AbstractContextManager[Any]]


def captured_name(side: str) -> str:
    """The name of a captured side."""
    return f"{side}, captured"


@dataclass(frozen=True)
class Step:
    """Measurements of a model: a spread by side, or why the side was not timed.

    Args:
        model: its name.
        failure: the fault of its bits; then nothing was timed.
        times: by side, as the steps come.
        work: by side, of the GPU's work; empty without a GPU.
    """

    model: str
    failure: str | None
    times: dict[str, Spread | str]
    work: dict[str, Spread | str] = dataclasses.field(default_factory=dict)

    @property
    def captured(self) -> bool:
        """True if captured steps were tried."""
        return any(captured_name(side) in self.times for side in CAPTURED)


def measure(begun: Step, clock: Clock, rounds: int, *, tiny: bool) -> Step:
    """Check that detmode's steps have the same bits, and time a step of every side if so.

    Args:
        begun: without figures, of a model in :data:`models.MODELS`.
        clock: the GPU's or the host's.
        rounds: the number of times that each side is timed.
        tiny: whether the model has its small size.
    """
    name = begun.model
    if not same_bits(_trained(name, clock, tiny, None), _trained(name, clock, tiny, 1)):
        what = "two runs of two steps under detmode gave other weights"
        return dataclasses.replace(begun, failure=what)
    step = _step(name, clock, tiny)
    problems: dict[str, str] = {}
    able: dict[str, Timed] = {}
    for side, around in _sides(clock).items():
        problem = _problem(step, around)
        if problem is None:
            able[side] = Timed(step, partial(_begun, around, step))
        else:
            problems[side] = problem
    return _timed(begun, SIDES, able, problems, clock, rounds)


def capture(begun: Step, clock: Clock, rounds: int, *, tiny: bool) -> Step:
    """Add the times of captured steps to what :func:`measure` found."""
    problems: dict[str, str] = {}
    able: dict[str, Timed] = {}
    around = _sides(clock)
    for side in CAPTURED:
        replay = _captured(begun.model, clock, tiny, around[side])
        if isinstance(replay, str):
            problems[captured_name(side)] = replay
        else:
            able[captured_name(side)] = Timed(replay)
    return _timed(begun, map(captured_name, CAPTURED), able, problems, clock, rounds)


def _timed(
    begun: Step,
    sides: Iterable[str],
    able: dict[str, Timed],
    problems: dict[str, str],
    clock: Clock,
    rounds: int,
) -> Step:
    times = {**problems, **interleaved(able, clock, rounds, ahead=0.0, cold=False)}
    on_gpu = clock.device.type == "cuda"
    work = interleaved(able, clock, rounds, ahead=LEAD, cold=False) if on_gpu else {}
    ordered = {side: times[side] for side in sides}
    return dataclasses.replace(begun, times={**begun.times, **ordered}, work={**begun.work, **work})


def _mode(
    clock: Clock, fill: bool | None = None, seed: int | None = None, **how: Any
) -> DeterministicMode:
    if clock.device.type != "cuda":
        how.update(simulate="cuda", schedule_seed=seed)
    return DeterministicMode(fill_uninitialized_memory=fill, **how)


def _sides(clock: Clock) -> dict[str, Around]:
    filled, unfilled = _mode(clock, True), _mode(clock, False)
    listed = _mode(clock, False, intercept="listed")
    around: tuple[Around, ...] = (
        lambda: deterministic_flag(False),
        lambda: _pytorch(True),
        lambda: _pytorch(False),
        lambda: filled,
        lambda: unfilled,
        lambda: listed,
    )
    return dict(zip(SIDES, around))


@contextmanager
def _pytorch(fill: bool) -> Iterator[None]:
    """PyTorch's flag, with and without the filling of memory that comes with it."""
    with deterministic_flag(True), FILL.holding(fill):
        yield


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


@contextmanager
def _begun(around: Around, step: Callable[[], object]) -> Iterator[None]:
    """A block that has taken a step, as of a training only the first one has not.

    A mode looks up each operator and each place once.
    """
    with around():
        step()
        yield


def _problem(step: Callable[[], Training], around: Around) -> str | None:
    try:
        with around():
            step()
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        name, alert, _ = text.partition(" does not have a deterministic implementation")
        return f"raises ({name})" if alert else f"raises: {text[:40]}"
    return None


def _captured(name: str, clock: Clock, tiny: bool, around: Around) -> Callable[[], object] | str:
    """Replays a step captured in a CUDA graph; or why there is none."""
    if clock.device.type != "cuda":
        return "needs a GPU"
    step = _step(name, clock, tiny, capturable=True)
    graph = torch.cuda.CUDAGraph()
    try:
        with around():
            # What compiles and allocates at a first call must have done so before the capture.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                step()
    except Exception as error:  # a step that waits for the GPU cannot be captured
        return f"raises: {str(error).partition(chr(10))[0][:40]}"
    # What the graph reads must live as long as it does.
    return lambda kept=step: graph.replay()
