"""Values in order on the host runner, over shapes, ties, layouts, dtypes and all three kernels."""

import collections
import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode, default_rules
from detmode.rules.order_statistics import launch
from detmode.rules.order_statistics.ties import SMALLEST_INDEX
from detmode.rules.order_statistics.ways import CAPACITIES, choose
from detmode.table import rule_table as table
from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.samples import Maker
from tests.shared import exact_reductions, needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import ANY_LAYOUT, SEEDS, SPECIAL, in_schedules

pytestmark = needs.compiler

lengths = st.one_of(st.integers(1, 9), st.integers(10, 40), st.sampled_from([63, 130, 600, 2100]))
leading = st.lists(st.integers(0, 4), max_size=2)


@st.composite
def values(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The fewer different values, the more ties; floats may hold special values, or many zeros."""
    make = Maker(dtype, seed=draw(SEEDS))
    low = 0 if dtype is torch.uint8 else -draw(st.integers(0, 3))
    tensor = make.integers(low, draw(st.integers(1, 100)), *shape).to(dtype)
    if draw(st.booleans()):
        tensor = make.normal(*shape)
    if dtype.is_floating_point and tensor.numel() and draw(st.booleans()):
        for value in draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4)):
            part = draw(st.integers(1, tensor.numel()))
            tensor.view(-1)[draw(st.integers(0, part - 1)) :: part] = value
    elif not dtype.is_floating_point and tensor.numel() and draw(st.booleans()):
        ends = torch.iinfo(dtype)
        tensor.view(-1)[:: draw(st.integers(1, tensor.numel()))] = draw(
            st.sampled_from([ends.min, ends.max])
        )
    return draw(ANY_LAYOUT)(tensor)


@st.composite
def ordered(draw: st.DrawFn, dtype: torch.dtype) -> tuple[Tensor, int, int]:
    """A tensor, the dimension that is ordered, and its length."""
    shape, n = draw(leading), draw(lengths)
    dim = draw(st.integers(0, len(shape)))
    return draw(values([*shape[:dim], n, *shape[dim:]], dtype)), dim, n


def ranked(row: Sequence[float]) -> list[float]:
    """In order: -0.0 before 0.0, NaN last."""
    return sorted(
        row, key=lambda x: (math.isnan(x), 0 if math.isnan(x) else x, math.copysign(1, x))
    )


def chosen(row: Sequence[float], kind: str, k: int) -> tuple[float, int]:
    """The value that the operator gives of one slice, and the smallest index that holds it."""
    numbers = sum(not math.isnan(x) for x in row)
    if kind == "median":
        rank = (len(row) - 1) // 2 if numbers == len(row) else len(row) - 1
    elif kind == "nanmedian":
        rank = max(numbers - 1, 0) // 2
    else:
        rank = k - 1
    value = ranked(row)[rank]
    holds = (x == value or (math.isnan(x) and math.isnan(value)) for x in row)
    return value, next(i for i, held in enumerate(holds) if held)


def expected(self: Tensor, dim: int, kind: str, k: int) -> list[tuple[float, int]]:
    """One answer for each slice, in row-major order."""
    grown = self if self.dim() else self.view(1)
    return [
        chosen(row, kind, k)
        for row in grown.movedim(dim, -1).reshape(-1, grown.shape[dim]).tolist()
    ]


KINDS = {"median": launch.MEDIAN, "nanmedian": launch.NANMEDIAN, "kthvalue": launch.KTH}


def ways(n: int, dtype: torch.dtype) -> list[Any]:
    """The ways to select of ``n`` elements: in rows of blocks, whose keys are kept or read again;
    in rows shared by many blocks, or by so few that each thread takes several turns; and in threads
    that keep as many.
    """
    fitting = [size for size, dtypes in CAPACITIES.items() if n <= size and dtype in dtypes]
    shared = [("blocks", -(-n // share), False) for share in (40, 2000)]
    alone = [("block", 64, True), ("block", 256, False)]
    return [*alone, *shared, *(("thread", size, False) for size in fitting)]


@pytest.mark.parametrize(
    ("n", "slices", "dtype", "way"),
    [
        (16, 1, torch.float32, ("thread", 16, False)),
        (17, 1, torch.int64, ("thread", 32, False)),
        (33, 2**14, torch.float32, ("thread", 64, False)),
        (33, 2**14 - 1, torch.float32, ("block", 64, True)),
        (33, 2**14, torch.int64, ("block", 64, True)),
        (513, 1, torch.float32, ("block", 256, True)),
        (8192, 1, torch.float32, ("block", 256, True)),
        (8193, 1, torch.float32, ("block", 1024, False)),
        (2**15, 1, torch.float32, ("block", 1024, False)),
        (2**15 + 1, 1, torch.float32, ("blocks", 9, False)),
        (2**15 + 1, 127, torch.float32, ("blocks", 8, False)),
        (2**15 + 1, 128, torch.float32, ("block", 1024, False)),
        (2**31, 2000, torch.float32, ("blocks", 1, False)),
    ],
)
def test_sizes_choose_a_way(n: int, slices: int, dtype: torch.dtype, way: object) -> None:
    """Short slices are a thread's, rows a block's, and long rows those of many blocks if few."""
    assert choose(n, slices, dtype) == way


@pytest.mark.parametrize("n", [20, 50, 3000])
def test_each_nan_counts(n: int) -> None:
    """One NaN, wherever it stands, and one number among NaNs, decide in each kernel."""
    places = (0, n // 2, n - 1)
    rows = torch.arange(n, 0, -1).repeat(len(places), 1).float()
    one_number = torch.full_like(rows, math.nan)
    for row, place in enumerate(places):
        rows[row, place] = math.nan
        one_number[row, place] = 7.0
    for self, way in product((rows, one_number), ways(n, torch.float32)):
        for kind in ("median", "nanmedian"):
            values, indices = launch.select(kind, self, 1, False, KINDS[kind], way=way)
            wanted = expected(self, 1, kind, 0)
            assert indices.tolist() == [index for _, index in wanted]
            torch.testing.assert_close(
                values, torch.tensor([value for value, _ in wanted]), equal_nan=True
            )


@given(data=st.data(), dtype=exact_reductions.DTYPES, kind=st.sampled_from([*KINDS]))
def test_select(data: st.DataObject, dtype: torch.dtype, kind: str) -> None:
    """The value of the rank and its smallest index, in ATen's form, in any schedule."""
    draw = data.draw
    self, dim, n = draw(ordered(dtype))
    if draw(st.integers(0, 9)) == 0:
        self, dim, n = draw(values([], dtype)), 0, 1
    k, named = draw(st.integers(1, n)), draw(st.sampled_from([dim, dim - max(self.dim(), 1)]))
    where = named, draw(st.booleans())
    arguments = [k, *where] if kind == "kthvalue" else where
    way = draw(st.sampled_from(ways(n, dtype)))
    got = in_schedules(lambda: launch.select(kind, self, *where, KINDS[kind], k, way), draw(SEEDS))
    # ATen's CPU kernel takes a stride of 0 for one of 1.
    form = getattr(torch, kind)(self.contiguous(), *arguments)
    for mine, atens in zip(got, form, strict=True):
        assert (mine.dtype, mine.shape) == (atens.dtype, atens.shape)
        assert mine.is_contiguous()
    assert torch.equal(got[0].double().nan_to_num(1e9), form[0].double().nan_to_num(1e9))
    wanted = expected(self, dim, kind, k)
    for value, index, (true, smallest) in zip(
        got[0].flatten().tolist(), got[1].flatten().tolist(), wanted, strict=True
    ):
        assert index == smallest
        assert (value == true and math.copysign(1, value) == math.copysign(1, true)) or (
            math.isnan(value) and math.isnan(true)
        )


@pytest.mark.parametrize(
    ("self", "arguments", "error"),
    [
        (torch.ones(3, 4), (0,), RuntimeError),
        (torch.ones(3, 4), (5,), RuntimeError),
        (torch.ones(3, 4), (4, 0), RuntimeError),
        (torch.ones(()), (2,), RuntimeError),
        (torch.ones(3, 4), (1, 2), IndexError),
        (torch.ones(3, 0), (1, 1), IndexError),
        (torch.ones(3, 4) > 0, (1,), NotImplementedError),
        (torch.ones(3, 4).cfloat(), (1,), NotImplementedError),
    ],
)
def test_kthvalue_rejects_what_aten_rejects(
    self: Tensor, arguments: Sequence[int], error: type[Exception]
) -> None:
    """With the same type of exception; the versions that substitute it may not run here."""
    for kthvalue in (torch.kthvalue, launch.kthvalue):
        with pytest.raises(error) as caught:
            kthvalue(self, *arguments)
        assert caught.type is error


def test_a_nan_keeps_its_payload() -> None:
    """The NaN is the one at the index, bit for bit."""
    bits = torch.tensor([0, 0x7FC12345, -1, 0x7F800001], dtype=torch.int32)
    for n in (4, 400):
        row = bits.repeat(n // 4).view(torch.float32)
        value, index = launch.median(row, 0)
        assert (value.view(torch.int32).item(), index.item()) == (0x7FC12345, 1)


@pytest.mark.parametrize("name", ["median", "nanmedian", "kthvalue", "mode"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_backward(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own call, and its gradient, which goes to the smallest index."""
    # The last version in which kthvalue is substituted.
    monkeypatch.setattr(table, "TORCH_VERSION", (2, 9))
    x = torch.randint(0, 3, (5, 45)).double().requires_grad_()
    weight = torch.rand(x.select(dim, 0).shape, dtype=torch.float64)
    mode = DeterministicMode(simulate="cuda", rules=default_rules() + SMALLEST_INDEX)
    with mode:
        result = getattr(torch, name)(x, *([4] if name == "kthvalue" else []), dim=dim)
        (result.values * weight).sum().backward()
    overload = f"aten::{name}.{'dim' if 'median' in name else 'default'}"
    assert (overload, "substitute") in [(each.overload, each.action) for each in mode.records]
    wanted = getattr(torch, name)(x, *([4] if name == "kthvalue" else []), dim=dim)
    assert torch.equal(result.values, wanted.values)
    holds = x.detach() == result.values.unsqueeze(dim)
    assert torch.equal(result.indices, holds.int().argmax(dim))
    gradient = torch.zeros_like(x).scatter(
        dim, result.indices.unsqueeze(dim), weight.unsqueeze(dim)
    )
    assert torch.equal(x.grad, gradient)


def stable(run: Callable[[], Any]) -> Any:
    """The result under the rules that are added."""
    with DeterministicMode(simulate="cuda", rules=default_rules() + SMALLEST_INDEX) as mode:
        result = run()
    assert [record.action for record in mode.records] == ["substitute"]
    return result


@given(data=st.data(), dtype=exact_reductions.DTYPES, largest=st.booleans(), in_order=st.booleans())
def test_topk(data: st.DataObject, dtype: torch.dtype, largest: bool, in_order: bool) -> None:
    """Equal values come by ascending index, NaN is the largest value."""
    self, dim, n = data.draw(ordered(dtype))
    k = data.draw(st.integers(0, n))
    got = stable(lambda: torch.topk(self, k, dim, largest, in_order))
    assert got.values.shape == got.indices.shape == torch.topk(self, k, dim).values.shape
    assert got.values.is_contiguous()
    assert got.indices.is_contiguous()
    held = self.gather(dim, got.indices)
    torch.testing.assert_close(got.values, held, rtol=0, atol=0, equal_nan=True)
    numbers = ~held.isnan()
    assert torch.equal(got.values.signbit()[numbers], held.signbit()[numbers])

    def before(row: list[float]) -> list[int]:
        # Without the sign: zeros tie.
        sign = -1 if largest else 1
        key = [(sign * math.isnan(x), 0 if math.isnan(x) else sign * x) for x in row]
        return sorted(range(n), key=lambda i: (key[i], i))[:k]

    rows = self.movedim(dim, -1).reshape(-1, n).tolist()
    assert got.indices.movedim(dim, -1).reshape(len(rows), k).tolist() == [
        before(row) for row in rows
    ]


@given(
    data=st.data(),
    dtype=st.sampled_from(todays_dtypes((*FLOATING, *INTEGRAL, torch.bool))),
    keepdim=st.booleans(),
)
def test_mode(data: st.DataObject, dtype: torch.dtype, keepdim: bool) -> None:
    """The smallest of the most common values, which is ATen's, and its smallest index."""
    self, dim, _ = data.draw(ordered(torch.int64))
    self = (self % 5).to(dtype)
    if dtype.is_floating_point and self.numel() and data.draw(st.booleans()):
        self[self == 4] = math.nan
    got = stable(lambda: torch.mode(self, dim, keepdim))
    form = torch.mode(self, dim, keepdim)
    assert got.values.shape == got.indices.shape == form.values.shape
    rows = self.movedim(dim, -1).reshape(-1, self.shape[dim]).tolist()
    pairs = zip(got.values.flatten().tolist(), got.indices.flatten().tolist(), strict=True)
    for row, (value, index) in zip(rows, pairs, strict=True):
        # Around NaNs ATen's own comparison loses count, so it is no oracle.
        numbers = collections.Counter(x for x in row if not math.isnan(x))
        wanted = min(numbers, key=lambda x: (-numbers[x], x), default=math.nan)
        assert value == wanted or (math.isnan(value) and not numbers)
        assert index == (row.index(wanted) if numbers else 0)
    if not self.isnan().any():
        assert torch.equal(got.values, form.values)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.topk(x, 5, 1),
        lambda x: torch.topk(x, 1, 2),
        lambda x: torch.topk(x > 0, 1),
        lambda x: torch.topk(x.cfloat(), 1),
        lambda x: torch.topk(x[0, 0], 2, 0),
        lambda x: torch.mode(x, 2),
        lambda x: torch.mode(x[:, :0], 1),
        lambda x: torch.mode(x.cfloat(), 1),
    ],
)
def test_ties_reject_what_aten_rejects(run: Callable[[Tensor], Any]) -> None:
    """With an IndexError where ATen has one; for a dtype its versions have three other types."""
    x = torch.ones(3, 4)
    are_of_indices = []
    for rules in (default_rules(), default_rules() + SMALLEST_INDEX):
        with (
            DeterministicMode(simulate="cuda", rules=rules),
            pytest.raises((RuntimeError, IndexError, TypeError)) as caught,
        ):
            run(x)
        are_of_indices.append(caught.type is IndexError)
    assert are_of_indices[0] is are_of_indices[1]


@pytest.mark.parametrize("kind", ["topk", "mode"])
def test_ties_of_no_dimensions(kind: str) -> None:
    """A scalar is a row of one."""
    x = torch.tensor(2.5)
    value, index = stable(lambda: torch.topk(x, 1) if kind == "topk" else torch.mode(x))
    assert (value.item(), index.item(), value.shape, index.shape) == (2.5, 0, (), ())
