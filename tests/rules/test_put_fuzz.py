"""put on the host runner and on the CPU, over shapes, strides, dtypes and indices."""

from __future__ import annotations

import needs
import pytest
import torch
from exact_sums import SEEDS, assert_exact, laid_out, same_bits
from hypothesis import given
from hypothesis import strategies as st
from last_wins import EVERY, LAYOUTS, WAYS, assert_last_wins, filled, in_schedules

from detmode import DeterministicMode, Substitute
from detmode.cuda import unavailable
from detmode.rules.put import RULES, launch
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Maker

needs.compiler = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
shapes = st.lists(st.sampled_from([1, 2, 3, 7, 30]), max_size=3)
counts = st.sampled_from([[], [0], [1], [9], [40], [130], [4, 6], [5, 3, 2]])


@st.composite
def calls(
    draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``self``, ``index`` and ``source``, in any layout."""
    dtype, seed = draw(st.sampled_from(dtypes)), draw(SEEDS)
    shape, n = draw(shapes), draw(counts)
    self = laid_out(filled(dtype, shape, seed), draw(st.sampled_from(["contiguous", "transposed"])))
    size = self.numel()
    spread = draw(st.integers(1, size))
    index = Maker(dtype, seed=seed).integers(draw(st.sampled_from([-spread, 0])), spread, *n)
    source = laid_out(filled(dtype, n, seed + 1), draw(LAYOUTS))
    return self, laid_out(index, draw(LAYOUTS)), source


def positions(self: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Where each source goes."""
    return torch.where(index < 0, index + self.numel(), index)


@needs.compiler
@given(call=calls(EVERY), elects=WAYS, seed=SEEDS)
def test_last(
    call: tuple[torch.Tensor, torch.Tensor, torch.Tensor], elects: bool | None, seed: int
) -> None:
    """The last source of each element stays, bit by bit, in any schedule, in place and not."""
    self, index, source = call
    got = in_schedules(lambda: launch.put(self, index, source), elects, seed)
    target = self.clone()
    assert launch.put(target, index, source, out=target) is target
    assert same_bits(target, got)
    assert got.stride() == self.stride()
    assert_last_wins(got, self, positions(self, index), source)


@given(call=calls(EVERY))
def test_last_on_cpu(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """On the CPU the same stays, without a kernel, in all three variants."""
    self, index, source = call
    with DeterministicMode() as mode:
        got = self.put(index, source)
        target = self.clone().put_(index, source)
        written = torch.ops.aten.put.out(self, index, source, out=torch.empty_like(self))
    assert {record.action for record in mode.records if "put" in record.overload} == {"substitute"}
    assert_last_wins(got, self, positions(self, index), source)
    assert same_bits(target, got)
    assert same_bits(written, got)
    assert got.stride() == self.stride()


def test_last_on_cpu_at_size() -> None:
    """So many elements that ATen's own kernel takes all threads: the last one still stays."""
    index = torch.arange(1 << 20) % 7
    source = torch.arange(1 << 20)
    with DeterministicMode():
        got = torch.zeros(7, dtype=torch.int64).put_(index, source)
    assert got.tolist() == [source[index == i].max() for i in range(7)]


@needs.compiler
@given(call=calls(FLOATING + COMPLEX), seed=SEEDS, data=st.data())
def test_sums(
    call: tuple[torch.Tensor, torch.Tensor, torch.Tensor], seed: int, data: st.DataObject
) -> None:
    """Sums are exact but for their rounding, in any schedule."""
    _, index, _ = call
    self, source = (
        Maker(x.dtype, seed=seed + i).normal(*x.shape) for i, x in enumerate((call[0], call[2]))
    )
    source = laid_out(source, data.draw(LAYOUTS))
    got = in_schedules(lambda: launch.put(self, index, source, True), None, seed)
    assert_exact(got, self, positions(self, index), source)


@pytest.mark.parametrize("dtype", [*INTEGRAL, torch.bool], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    """Integers and bools add as ATen adds them, wrapping around, without an alert."""
    maker = Maker(dtype, seed=1)
    self, source = maker.normal(9), maker.normal(500)
    index = maker.integers(-9, 9, 500)
    with DeterministicMode(simulate="cuda") as mode:
        got = self.clone().put_(index, source, accumulate=True)
        also = self.put(index, source, accumulate=True)
    assert [record.action for record in mode.records] == ["substitute", "substitute"]
    assert torch.equal(got, self.put(index, source, accumulate=True))
    assert torch.equal(also, got)


@needs.compiler
def test_take_backward() -> None:
    """The backward of ``torch.take`` adds reproducibly."""
    x = torch.randn(3, 4, requires_grad=True)
    index = torch.tensor([[0, -1, 5], [5, 5, 11]])
    with DeterministicMode(simulate="cuda") as mode:
        (torch.take(x, index) * torch.arange(6.0).view(2, 3)).sum().backward()
    assert [(r.overload, r.action) for r in mode.records] == [("aten::put.default", "substitute")]
    expected = torch.zeros(12)
    expected[[0, 5, 11]] = torch.tensor([0.0, 9.0, 6.0])
    assert x.grad is not None
    assert torch.equal(x.grad.view(-1), expected)


@pytest.mark.parametrize("simulate", [None, pytest.param("cuda", marks=needs.compiler)])
def test_rejects_what_aten_rejects(simulate: str | None) -> None:
    """Overlapping memory is an error in place; the empty call passes."""
    x, index = torch.zeros(4), torch.tensor([0, 1])
    with DeterministicMode(simulate=simulate):
        for source in (x[:2], x[1:3]):
            with pytest.raises(RuntimeError, match="single memory location"):
                x.put_(index, source)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(4).put_(index, torch.ones(2))
        assert torch.equal(x.put_(index[:0], torch.ones(0)), torch.zeros(4))


def test_cpu_row_launches_nothing() -> None:
    """The CPU's substitute is a composition of operators, which need no compiler."""
    (row,) = [rule for rule in RULES if "on('cpu') & " in str(rule.when)]
    assert isinstance(row.action, Substitute)
    assert not row.action.launches
