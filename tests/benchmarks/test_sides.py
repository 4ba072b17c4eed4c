"""One workload after the other on the host runner: what is timed, and what is not."""

import dataclasses
import math
from typing import Any

import pytest
import sides
import timing
import torch
from compositions import COMPOSITIONS
from sides import (
    ATEN,
    ATEN_IN_PLACE,
    COMPOSED,
    IN_PLACE,
    NATIVE,
    OURS,
    OURS_IN_PLACE,
    ROUND_TRIP,
    SIDES,
    WARM,
    Workload,
    inputs,
    measure,
    timed_families,
    workloads,
)
from timing import Clock, Spread, bytes_of

from detmode.mode import listed
from detmode.rules.avg_pool3d import samples as avg_pool3d_samples
from detmode.table.rule_table import resolve
from detmode.table.samples import Maker
from detmode.verify.cases import ClaimError, cases, run_substituted, samples_of
from detmode.verify.claims import same_bits

CPU = torch.device("cpu")
LOADED = [name for name in timed_families() if inputs([name], [torch.float32], sizes="tests")]
"""The families of which a loaded library has an operator."""


def only(family: str, dtype: torch.dtype = torch.float32) -> list[Workload]:
    found = inputs([family], [dtype], sizes="tests")
    return [each for input in found for each in workloads(input, CPU)]


@pytest.fixture
def workload() -> Workload:
    return only("avg_pool3d")[0]


def test_every_side_is_timed(workload: Workload, clock: Clock) -> None:
    """ATen, its deterministic path, the substitute, the composition and the round trip.

    The floor is the bytes that a kernel has to read and to write, once, over the bandwidth: of
    ``self`` a gradient has the sizes only.
    """
    arguments = workload.case.sample.arguments(torch.float32)
    row = measure(workload, clock, 3, bandwidth=2e9)
    assert row.failure is None
    assert row.n_bytes == arguments["grad_output"].nbytes + arguments["self"].nbytes
    assert row.floor == row.n_bytes / 2e9
    assert tuple(row.times) == SIDES
    times = dict(row.times)
    assert [times.pop(name) for name in (ATEN_IN_PLACE, OURS_IN_PLACE)] == ["none", "none"]
    for time in (*times.values(), *row.warm.values()):
        assert time.count == 3
        assert 0 < time.low <= time.median <= time.high


def test_forms_in_place_are_timed(clock: Clock) -> None:
    """In place an operator is timed as ATen's and as the substitute, cold and with warm inputs.

    The inputs of the other sides are as before.
    """
    (workload,) = [each for each in only("put") if not each.contention]
    kept = workload.case.sample.arguments(torch.float32)["self"].clone()
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert isinstance(row.times[ATEN_IN_PLACE], Spread)
    assert isinstance(row.times[OURS_IN_PLACE], Spread)
    assert {*row.warm} == {*WARM}
    assert torch.equal(workload.case.sample.arguments(torch.float32)["self"], kept)
    for op, form in IN_PLACE.items():
        assert resolve(form) is not None, op


UNREAD = {
    case.sample.op: case
    for case in cases()
    if case.dtype is torch.float32
    and "_backward" in case.sample.op
    and not sides.read_by(case.sample.op, {"self": None})
}


@pytest.mark.parametrize("op", UNREAD)
def test_what_is_not_counted_is_not_read(op: str) -> None:
    """NaN in the inputs that the floor leaves out changes no bit."""
    sample = UNREAD[op].sample
    spoilt = sample.but("spoilt", self=lambda self: torch.full_like(self, math.nan))
    ours = run_substituted(sample, torch.float32)
    assert same_bits(run_substituted(spoilt, torch.float32), ours)


@pytest.mark.parametrize("family", LOADED)
def test_an_input_of_every_family_is_timed(family: str, clock: Clock) -> None:
    """The claims hold for what is timed, and its bytes are known: sparse tensors' too."""
    row = measure(only(family)[-1], clock, 2, bandwidth=1e9, chosen=[ATEN])
    assert row.failure is None
    assert isinstance(row.times[OURS], Spread)
    assert row.n_bytes > 0


def test_bytes_of_sparse_tensors() -> None:
    """Those of the positions and of the values, whatever the layout."""
    dense = torch.eye(4)
    layouts = {"sparse_coo": 4 * 16, "sparse_csr": 5 * 8 + 4 * 8, "sparse_csc": 5 * 8 + 4 * 8}
    for name, positions in layouts.items():
        sparse = dense.to_sparse(layout=getattr(torch, name))
        assert bytes_of([sparse, sparse]) == positions + 4 * 4
    blocks = dense.to_sparse_bsr((2, 2))
    assert bytes_of(blocks) == 3 * 8 + 2 * 8 + 2 * 16


@pytest.mark.skipif(not listed.AVAILABLE, reason="an override falls back by get_kernel")
# PyTorch warns of every kernel that replaces one.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_atens_kernel_is_the_one_that_programs_get() -> None:
    """A kernel that ``torch._native`` puts in its place is timed as ATen, and nowhere else."""
    ran = []

    def scatter_add(keys: torch.DispatchKeySet, *args: Any) -> Any:
        if not torch.are_deterministic_algorithms_enabled():
            ran.append(args)
        return aten.call_boxed(keys, *args)

    case = next(each.case for each in only("scatter") if each.case.sample.op == "aten::scatter_add")
    sample = case.sample
    able = sides.sides(case, sample.make(Maker(torch.float32)), CPU)
    aten = torch.library.get_kernel("aten::scatter_add", "CPU")
    library = torch.library.Library("aten", "IMPL", "CPU")
    try:
        library.impl("scatter_add", scatter_add, "CPU", with_keyset=True)
        met = {}
        for name in (ATEN, NATIVE, OURS):
            ran.clear()
            with able[name].around():
                able[name].run()
            met[name] = len(ran)
    finally:
        library._destroy()
    assert met == {ATEN: 1, NATIVE: 0, OURS: 0}


@pytest.mark.parametrize("check", ["check_bits", "check_accuracy"])
def test_no_time_without_the_claim(
    check: str, workload: Workload, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is timed if bits vary or the error is too large, and the row says why."""

    def refuse(*_: object, **__: object) -> None:
        raise ClaimError("it does not hold")

    monkeypatch.setattr(sides, check, refuse)
    monkeypatch.setattr(sides, "interleaved", lambda *_: pytest.fail("it was timed"))
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert row.failure == "it does not hold"
    assert row.times == {}


def test_claims_are_checked_on_what_is_timed(workload: Workload, clock: Clock) -> None:
    """A kernel that is wrong for these inputs is caught: the arguments are those of the times."""
    sample = workload.case.sample
    arguments = sample.arguments(torch.float32)
    made = []

    def make(maker: object) -> dict[str, object]:
        made.append(maker)
        return arguments

    kept = dataclasses.replace(sample, make=make)
    case = dataclasses.replace(workload.case, sample=kept)
    assert measure(Workload(case), clock, 2, bandwidth=1e9).failure is None
    # Bits twice; the substitute, ATen and the truth for accuracy; the times.
    assert len(made) == 6


def test_a_side_that_raises_says_so(clock: Clock) -> None:
    """An operator without a deterministic path has no time there; the others have.

    The round trip, which is slow and moves the same bytes for each contention, is timed once.
    """
    row = measure(only("put")[1], clock, 2, bandwidth=1e9)
    assert row.times[NATIVE] == "raises"
    assert row.times[ROUND_TRIP] == "not timed"
    assert all(isinstance(row.times[side], Spread) for side in (ATEN, OURS, COMPOSED))


def test_a_wrong_composition_has_no_time(
    workload: Workload, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A composition by hand is timed only if it gives the operator's result."""

    def wrong(grad_output: torch.Tensor, self: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.ones_like(self)

    op = workload.case.sample.op
    monkeypatch.setitem(COMPOSITIONS, op, wrong)
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert row.times[COMPOSED] == "inaccurate"
    assert isinstance(row.times[OURS], Spread)
    monkeypatch.delitem(COMPOSITIONS, op)
    assert measure(workload, clock, 2, bandwidth=1e9).times[COMPOSED] == "none"


def test_an_error_is_no_end(
    workload: Workload, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of one workload is in its row."""

    def fail(*_: object) -> None:
        raise MemoryError("no family\nfor it")

    monkeypatch.setattr(sides, "bytes_of", fail)
    row = measure(workload, clock, 2, bandwidth=1e9)
    assert row.failure == "MemoryError: no family"


def test_contention_is_varied_in_float32() -> None:
    """Scattered sums have their own index and three others; other dtypes only their own."""
    kinds = [each.contention for each in only("scatter") if "scatter_add" in str(each)]
    assert kinds == ["", "distinct", "zipf", "one"]
    assert {each.contention for each in only("scatter", torch.float16)} == {""}
    assert {each.contention for each in only("avg_pool3d")} == {""}


def test_bench_sizes_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample of ``bench`` in each dtype that it has among those that are asked for."""
    samples = samples_of("avg_pool3d")
    small = dataclasses.replace(samples.bench[0], make=samples.cases[0].make)
    chosen = dataclasses.replace(samples, bench=(small,))
    monkeypatch.setattr(avg_pool3d_samples, "SAMPLES", chosen)
    found = inputs(["avg_pool3d"], [torch.float32, torch.float64, torch.float16])
    assert [(each.case.sample.name, each.case.dtype, each.first) for each in found] == [
        (small.name, torch.float32, True),
        (small.name, torch.float16, False),
    ]
    (made,) = workloads(found[1], CPU)
    assert (made.case.sample.name, made.case.dtype, made.first) == (
        small.name,
        torch.float16,
        False,
    )


def test_sizes_are_known_before_anything_is_made() -> None:
    """So that the largest can be first."""
    for each in inputs(["avg_pool3d", "put"], [torch.float32], sizes="tests"):
        sample = each.case.sample
        made = timing.tensors_of(sample.arguments(torch.float32))
        assert sides.n_bytes(sample) == sum(value.nbytes for value in made)


def test_values_are_made_on_the_device() -> None:
    """As many of the same dtypes as a Maker's, in the same range; the same each time."""
    for dtype in (torch.float32, torch.float16, torch.int64, torch.complex64):
        values = sides.DeviceMaker(dtype, CPU).normal(50, 20)
        assert torch.equal(values, sides.DeviceMaker(dtype, CPU).normal(50, 20))
        theirs = Maker(dtype).normal(50, 20)
        assert (values.dtype, values.shape) == (theirs.dtype, theirs.shape)
    counts = sides.DeviceMaker(torch.float32, CPU).integers(2, 5, 300).unique()
    assert counts.tolist() == [2, 3, 4]


def test_every_family_with_a_substitute_is_walked() -> None:
    """At both sizes: a family that is left out would look as if it had no cost."""
    # torchvision's operators are not everywhere.
    substituted = {case.family for case in cases()}
    for sizes in ("bench", "tests"):
        assert substituted == {each.case.family for each in inputs(sizes=sizes)}


def test_tensors_move_with_their_strides() -> None:
    """An expanded index is expanded on the other device too."""
    index = torch.arange(3)[:, None].expand(3, 4)
    shifted = torch.arange(20.0)[3:].as_strided((2, 3), (1, 4))
    moved = sides.moved({"index": [index, shifted], "dim": 0}, "meta")
    assert [(each.shape, each.stride()) for each in moved["index"]] == [
        ((3, 4), (1, 0)),
        ((2, 3), (1, 4)),
    ]
    assert [each.untyped_storage().nbytes() for each in moved["index"]] == [3 * 8, 10 * 4]
    assert moved["dim"] == 0
    assert sides.moved(index, "cpu") is index
