"""One operator with one input, and the ways to run it that are timed beside one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import contention
import torch
from accuracy import check_accuracy
from compositions import COMPOSITIONS
from timing import Clock, Spread, Timed, bytes_of, interleaved, tensors_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from detmode import DeterministicMode
from detmode.process.arguments import signature_of
from detmode.process.torch_settings import deterministic_flag
from detmode.rules import families
from detmode.table.rule import Substitute
from detmode.table.rule_table import resolve
from detmode.table.samples import Maker, Sample
from detmode.verify.cases import Case, ClaimError, call, matching_row, name_of, samples_of
from detmode.verify.claims import check_bits

ATEN, NATIVE, OURS = "aten", "pytorch deterministic", "detmode"
COMPOSED, ROUND_TRIP = "composition", "cpu round trip"
ATEN_IN_PLACE, OURS_IN_PLACE = "aten in place", "detmode in place"
SIDES = (ATEN, NATIVE, OURS, COMPOSED, ROUND_TRIP, ATEN_IN_PLACE, OURS_IN_PLACE)
"""ATen with the flag off, ATen with the flag on, the substitute, and what people write by hand:
other torch operators, which run with the flag on, and a round trip to the CPU. The operator's
in-place form, where it has one, is timed by ATen with the flag off and by the substitute: the
functional form copies ``self`` first, on both sides."""
WARM = (ATEN, OURS, ATEN_IN_PLACE, OURS_IN_PLACE)
"""The sides that are also timed with their inputs in the cache, as a gradient's often are."""
IN_PLACE = {
    "aten::index_add": "aten::index_add_",
    "aten::index_copy": "aten::index_copy_",
    "aten::index_put": "aten::index_put_",
    "aten::index_reduce": "aten::index_reduce_",
    "aten::put": "aten::put_",
    "aten::scatter.src": "aten::scatter_.src",
    "aten::scatter_add": "aten::scatter_add_",
    "aten::scatter_reduce.two": "aten::scatter_reduce_.two",
}
"""The in-place forms that programs call: gradients of gathers, indexing and caches of keys."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@cache
def n_bytes(sample: Sample) -> int:
    """Of the tensors in float32, which are not made; 0 where that needs their values."""
    try:
        with FakeTensorMode():
            return sum(each.nbytes for each in tensors_of(sample.arguments(torch.float32)))
    except Exception:
        return 0


def read_by(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without what no kernel has to read.

    A pool's or a pad's gradient takes ``self`` for its sizes only, and a loss reads one class of
    each pixel.
    """
    if op.endswith("_backward") and ("_pool" in op or "_pad" in op):
        return {name: value for name, value in arguments.items() if name != "self"}
    if op == "aten::nll_loss2d_forward":
        return {**arguments, "self": arguments["self"][:, :1]}
    return arguments


@dataclass(frozen=True)
class Workload:
    """A case of the rule table with the destinations that its index meets.

    Args:
        case: family, sample and dtype.
        contention: one of :data:`contention.KINDS`, or "" for the sample's own.
        first: whether this is the sample's own contention, in the first dtype that is timed.
    """

    case: Case
    contention: str = ""
    first: bool = True

    def __str__(self) -> str:
        return str(self.case) + (f"-{self.contention}" if self.contention else "")

    def row(self) -> Row:
        """A row without figures."""
        case = self.case
        dtype = name_of(case.dtype)
        return Row(case.family, case.sample.op, case.sample.name, dtype, self.contention)

    def kinds(self) -> tuple[str, ...]:
        """The contentions that it is timed with: all in one dtype, on which they do not depend."""
        varied = self.case.dtype is torch.float32 and self.case.sample.op in contention.INDICES
        return ("", *contention.KINDS) if varied else ("",)

    def keys(self) -> set[tuple[str, ...]]:
        """Those of the rows of all its contentions, if a substitute meets them."""
        return {dataclasses.replace(self.row(), contention=kind).key for kind in self.kinds()}


class DeviceMaker(Maker):
    """Makes random values where they stay: other values than a :class:`Maker`'s, and sooner."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype, device)
        self._generator = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        with self.device:
            return super().normal(*shape, dtype=dtype)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        with self.device:
            return super().integers(low, high, *shape, dtype=dtype)


def timed_families() -> list[str]:
    """The families with sizes for benchmarks: those that have a substitute."""
    return [family for family in families() if samples_of(family).bench]


def inputs(
    names: Sequence[str] = (), dtypes: Sequence[torch.dtype] = DTYPES, *, sizes: str = "bench"
) -> list[Workload]:
    """The timed inputs, family by family, without their guarantee and other contention.

    Args:
        names: the families; all, if empty.
        dtypes: those that a sample has are timed.
        sizes: ``"bench"`` takes the families' ``bench``; ``"tests"`` takes of the samples of the
            tests those that the host runner can run in a moment.
    """
    found = []
    for family in names or timed_families():
        samples = samples_of(family)
        for sample in samples.bench if sizes == "bench" else _small(samples.cases):
            if resolve(sample.op) is not None:
                own = [dtype for dtype in dtypes if dtype in sample.dtypes]
                every = [Case(family, sample, dtype, None) for dtype in own]
                found += [Workload(case, first=case is every[0]) for case in every]
    return found


def _small(samples: Sequence[Sample]) -> list[Sample]:
    """Of each operator the first sample with collisions, else the first."""
    first: dict[str, Sample] = {}
    for sample in samples:
        if sample.device == "cuda":
            known = first.setdefault(sample.op, sample)
            if "collisions" in sample.covers and "collisions" not in known.covers:
                first[sample.op] = sample
    return list(first.values())


def workloads(each: Workload, device: torch.device) -> Iterator[Workload]:
    """The timed workloads of an input, one for each contention; none if nothing is substituted."""
    sample, dtype = each.case.sample, each.case.dtype
    arguments = sample.make(DeviceMaker(dtype, device))
    row = matching_row(_keeping(sample, arguments), dtype)
    if row is None or not isinstance(row.rule.action, Substitute):
        return
    for kind in each.kinds():
        varied = contention.contended(sample.op, arguments, kind) if kind else arguments
        case = Case(row.family, _keeping(sample, varied), dtype, row.rule.guarantee)
        yield Workload(case, kind, first=each.first and not kind)


def _keeping(sample: Sample, arguments: dict[str, Any]) -> Sample:
    """The sample with these arguments: large ones are made once."""
    return dataclasses.replace(sample, make=lambda maker: moved(arguments, maker.device))


def moved(value: Any, device: torch.device | str) -> Any:
    """Tensors in dicts, lists and tuples on another device, their strides as they are."""

    def move(tensor: Tensor) -> Tensor:
        here = tensor.device.type == torch.device(device).type
        if here or tensor.numel() == 0 or tensor.layout is not torch.strided:
            return tensor.to(device)
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
        stored = tensor.as_strided((span,), (1,)).to(device)
        return stored.as_strided(tensor.shape, tensor.stride(), 0)

    return tree_map_only(Tensor, move, value)


@dataclass(frozen=True)
class Row:
    """Measurements of a workload.

    Args:
        family: of the substitute.
        op: the operator.
        sample: the input's name.
        dtype: its dtype.
        contention: as in :class:`Workload`.
        n_bytes: those that a kernel has to read of the inputs, once, and outputs written once.
        floor: seconds in which a copy moves so many bytes.
        failure: the claim that does not hold, or the error; then nothing was timed.
        times: by side, each a spread, or why the side cannot run.
        warm: the same of :data:`WARM`, with the inputs in the cache; empty where it was not timed.
    """

    family: str
    op: str
    sample: str
    dtype: str
    contention: str
    n_bytes: int = 0
    floor: float = 0.0
    failure: str | None = None
    times: dict[str, Spread | str] = dataclasses.field(default_factory=dict)
    warm: dict[str, Spread | str] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """The workload's names, without the figures."""
        return self.family, self.op, self.sample, self.dtype, self.contention


def measure(
    workload: Workload,
    clock: Clock,
    rounds: int,
    bandwidth: float,
    chosen: Collection[str] = SIDES,
) -> Row:
    """Check bits and accuracy, and time the substitute beside other sides if they hold.

    Args:
        workload: the operator and its input.
        clock: the clock that times them.
        rounds: the number of times that each side is timed.
        bandwidth: bytes that a copy reads and writes in a second.
        chosen: the sides that are timed beside the substitute.
    """
    row = workload.row()
    device = "cuda" if clock.device.type == "cuda" else "host"
    try:
        check_bits(workload.case, device, repeats=2)
        check_accuracy(workload.case, device)
        return _timed(row, workload, clock, rounds, bandwidth, chosen)
    except ClaimError as error:
        return dataclasses.replace(row, failure=str(error))
    except Exception as error:  # out of memory, say: the other workloads are measured still
        text = str(error).partition("\n")[0]
        return dataclasses.replace(row, failure=f"{type(error).__name__}: {text}")


def _timed(
    row: Row,
    workload: Workload,
    clock: Clock,
    rounds: int,
    bandwidth: float,
    chosen: Collection[str],
) -> Row:
    case = workload.case
    arguments = case.sample.arguments(case.dtype, clock.device)
    able = sides(case, arguments, clock.device)
    times: dict[str, Spread | str] = {}
    times |= dict.fromkeys({*SIDES} - {*able}, "none")
    # A round trip is slow, and takes about the same for every contention.
    unwanted = {*SIDES} - {*chosen, OURS, OURS_IN_PLACE}
    unwanted |= set() if workload.first else {ROUND_TRIP}
    for name in unwanted & {*able}:
        times[name] = "not timed"
        del able[name]
    for name in list(able):
        problem = _problem(able[name])
        if problem is not None:
            times[name] = problem
            del able[name]
    with able[OURS].around():
        ours = able[OURS].run()
    n_bytes = bytes_of(read_by(case.sample.op, arguments)) + bytes_of(ours)
    if COMPOSED in able and not _agree(able[COMPOSED], ours):
        times[COMPOSED] = "inaccurate"
        del able[COMPOSED]
    del ours
    times |= interleaved(able, clock, rounds)
    warm = {name: side for name, side in able.items() if name in WARM and workload.first}
    return dataclasses.replace(
        row,
        n_bytes=n_bytes,
        floor=n_bytes / bandwidth,
        times={name: times[name] for name in SIDES},
        warm=interleaved(warm, clock, rounds, cold=False),
    )


def _agree(side: Timed, ours: Any) -> bool:
    """Compare the side's floating results with ours, up to half of the dtype's digits."""
    with side.around():
        theirs = side.run()
    for mine, other in zip(tensors_of(ours), tensors_of(theirs)):
        if mine.is_floating_point() and mine.numel():
            bound = torch.finfo(mine.dtype).eps ** 0.5 * float(mine.abs().max())
            if mine.shape != other.shape or not torch.allclose(
                mine.double(), other.double(), rtol=0.0, atol=bound
            ):
                return False
    return True


def sides(case: Case, arguments: dict[str, Any], device: torch.device) -> dict[str, Timed]:
    """Every way to run the case, by name."""
    func = resolve(case.sample.op)
    composition = COMPOSITIONS.get(case.sample.op)
    here = partial(call, case.sample, arguments)

    def round_trip() -> Any:
        return moved(call(case.sample, moved(arguments, "cpu")), device)

    mode = DeterministicMode(simulate=None if device.type == "cuda" else "cuda")
    found = {
        ATEN: Timed(here, lambda: deterministic_flag(False)),
        NATIVE: Timed(here, lambda: deterministic_flag(True)),
        OURS: Timed(here, lambda: mode),
        ROUND_TRIP: Timed(round_trip, lambda: deterministic_flag(False)),
    }
    in_place = resolve(IN_PLACE.get(case.sample.op, ""))
    if in_place is not None:
        written = partial(in_place, **{**arguments, "self": arguments["self"].clone()})
        found[ATEN_IN_PLACE] = Timed(written, lambda: deterministic_flag(False))
        found[OURS_IN_PLACE] = Timed(written, lambda: mode)
    if composition is not None:
        composed = partial(composition, **signature_of(func).bind((), arguments))
        found[COMPOSED] = Timed(composed, lambda: deterministic_flag(True))
    return found


def _problem(side: Timed) -> str | None:
    """The reason why a side cannot run; ``None`` if it can."""
    try:
        with side.around():
            side.run()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).partition("\n")[0]
        alert = "does not have a deterministic implementation" in text
        return "raises" if alert else f"raises: {text[:40]}"
    return None
