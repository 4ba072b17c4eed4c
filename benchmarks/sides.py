"""One operator with one input, and the ways to run it that are timed beside one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import contention
import torch
from timing import Clock, Rotation, Spread, Timed, bytes_of, interleaved
from torch import Tensor

from detmode import DeterministicMode
from detmode.rule import Substitute
from detmode.rules import rooms
from detmode.sample import Maker, Sample
from detmode.settings import flag
from detmode.table import resolve
from detmode.verify.cases import Case, matching_row, name_of, samples_of
from detmode.verify.claims import ClaimError, check_bits, check_truth

ATEN, NATIVE, OURS, BY_HAND = "aten", "pytorch deterministic", "detmode", "by hand"
SIDES = (ATEN, NATIVE, OURS, BY_HAND)
"""ATen with the flag off, ATen with the flag on, the substitute, and a round trip to the CPU."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Workload:
    """A case of the rule table with the destinations that its index meets.

    Args:
        case: room, sample and dtype.
        contention: one of :data:`contention.KINDS`, or "" for the sample's own.
    """

    case: Case
    contention: str = ""

    def __str__(self) -> str:
        return str(self.case) + (f"-{self.contention}" if self.contention else "")

    def row(self) -> Row:
        """A row without figures."""
        case = self.case
        dtype = name_of(case.dtype)
        return Row(case.room, case.sample.op, case.sample.name, dtype, self.contention)


def timed_rooms() -> list[str]:
    """The rooms with sizes for benchmarks: those that have a substitute."""
    return [room for room in rooms() if hasattr(samples_of(room), "BENCH")]


def workloads(
    names: Sequence[str] = (),
    dtypes: Sequence[torch.dtype] = DTYPES,
    *,
    sizes: str = "bench",
) -> Iterator[Workload]:
    """What is timed, room by room.

    Args:
        names: the rooms; all, if empty.
        dtypes: those that a sample has are timed.
        sizes: ``"bench"`` takes the rooms' ``BENCH``; ``"tests"`` takes of the samples of the
            tests those that the host runner can run in a moment.
    """
    for room in names or timed_rooms():
        samples = samples_of(room)
        for sample in samples.BENCH if sizes == "bench" else _small(samples.SAMPLES):
            for dtype in (dtype for dtype in dtypes if dtype in sample.dtypes):
                yield from _contended(room, sample, dtype)


def _small(samples: Sequence[Sample]) -> list[Sample]:
    """Of each operator the first sample with collisions, else the first."""
    first: dict[str, Sample] = {}
    for sample in samples:
        if sample.device == "cuda":
            known = first.setdefault(sample.op, sample)
            if "collisions" in sample.covers and "collisions" not in known.covers:
                first[sample.op] = sample
    return list(first.values())


def _contended(room: str, sample: Sample, dtype: torch.dtype) -> Iterator[Workload]:
    if resolve(sample.op) is None:
        return
    arguments = sample.arguments(dtype)
    kept = _keeping(sample, arguments)
    row = matching_row(kept, dtype)
    if row is None or not isinstance(row.rule.action, Substitute):
        return
    yield Workload(Case(row.room, kept, dtype, row.rule.guarantee))
    # Once is enough: the destinations do not depend on the dtype.
    if dtype is torch.float32 and sample.op in contention.INDICES:
        for kind in contention.KINDS:
            varied = _keeping(sample, contention.contended(sample.op, arguments, kind))
            yield Workload(Case(row.room, varied, dtype, row.rule.guarantee), kind)


def _keeping(sample: Sample, arguments: dict[str, Any]) -> Sample:
    """The sample with these arguments: large ones are made once."""

    def make(maker: Maker) -> dict[str, Any]:
        found: dict[str, Any] = moved(arguments, maker.device)
        return found

    return dataclasses.replace(sample, make=make)


def moved(value: Any, device: torch.device | str) -> Any:
    """Tensors in dicts, lists and tuples on another device, their strides as they are."""
    if isinstance(value, Tensor):
        if value.device.type == torch.device(device).type or value.numel() == 0:
            return value.to(device)
        span = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride()))
        stored = value.as_strided((span,), (1,)).to(device)
        return stored.as_strided(value.shape, value.stride(), 0)
    if isinstance(value, dict):
        return {name: moved(each, device) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(each, device) for each in value)
    return value


@dataclass(frozen=True)
class Row:
    """What was measured of a workload.

    Args:
        room: of the substitute.
        op: the operator.
        sample: the input's name.
        dtype: its dtype.
        contention: as in :class:`Workload`.
        n_bytes: inputs read once and outputs written once.
        floor: seconds in which a copy moves so many bytes.
        beyond_cache: whether the inputs came from memory.
        failure: the claim that does not hold, or the error; then nothing was timed.
        times: by side, each a spread, or why the side cannot run.
    """

    room: str
    op: str
    sample: str
    dtype: str
    contention: str
    n_bytes: int = 0
    floor: float = 0.0
    beyond_cache: bool = False
    failure: str | None = None
    times: dict[str, Spread | str] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """What was measured, without the figures."""
        return self.room, self.op, self.sample, self.dtype, self.contention


def measure(workload: Workload, clock: Clock, rounds: int, bandwidth: float) -> Row:
    """Check bits and accuracy, and time every side if they hold.

    Args:
        workload: what is run.
        clock: the GPU's or the host's.
        rounds: how often each side is timed.
        bandwidth: bytes that a copy reads and writes in a second.
    """
    case = workload.case
    row = workload.row()
    device = "cuda" if clock.device.type == "cuda" else "host"
    try:
        check_bits(case, device, repeats=2)
        check_truth(case, device)
        return _timed(row, case, clock, rounds, bandwidth)
    except ClaimError as error:
        return dataclasses.replace(row, failure=str(error))
    except Exception as error:  # out of memory, say: the other workloads are measured still
        text = str(error).partition("\n")[0]
        return dataclasses.replace(row, failure=f"{type(error).__name__}: {text}")


def _timed(row: Row, case: Case, clock: Clock, rounds: int, bandwidth: float) -> Row:
    arguments = Rotation.of(case.sample.arguments(case.dtype, clock.device), clock)
    times: dict[str, Spread | str] = {}
    able = {}
    for name, side in sides(case, arguments, clock.device).items():
        problem = _problem(side)
        if problem is None:
            able[name] = side
        else:
            times[name] = problem
    times |= interleaved(able, clock, rounds)
    with able[OURS].around():
        n_bytes = bytes_of(arguments[0]) + bytes_of(able[OURS].run(0))
    return dataclasses.replace(
        row,
        n_bytes=n_bytes,
        floor=n_bytes / bandwidth,
        beyond_cache=arguments.beyond_cache,
        times={name: times[name] for name in SIDES},
    )


def sides(case: Case, arguments: Rotation, device: torch.device) -> dict[str, Timed]:
    """Every way to run the case, by name."""
    func: Callable[..., Any] | None = resolve(case.sample.op)
    assert func is not None

    def call(number: int) -> Any:
        return func(**arguments[number])

    def round_trip(number: int) -> Any:
        return moved(func(**moved(arguments[number], "cpu")), device)

    mode = DeterministicMode(simulate=None if device.type == "cuda" else "cuda")
    return {
        ATEN: Timed(call, lambda: flag(False)),
        NATIVE: Timed(call, lambda: flag(True)),
        OURS: Timed(call, lambda: mode),
        BY_HAND: Timed(round_trip, lambda: flag(False)),
    }


def _problem(side: Timed) -> str | None:
    """Why a side cannot run; ``None`` where it can."""
    try:
        with side.around():
            side.run(0)
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).partition("\n")[0]
        alert = "does not have a deterministic implementation" in text
        return "raises" if alert else f"raises: {text[:40]}"
    return None
