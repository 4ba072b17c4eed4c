"""put on the host runner and on the CPU, over shapes, strides, dtypes and indices."""

from collections.abc import Sequence
from typing import Any

import needs
import pytest
import torch
from exact_sums import assert_exact
from hypothesis import given
from hypothesis import strategies as st
from last_wins import EVERY, assert_last_wins, words
from strategies import (
    LAYOUTS,
    SEEDS,
    in_place_and_not,
    same_bits,
    tensors,
)
from torch import Tensor

from detmode import DeterministicMode, Substitute
from detmode.rules.put import RULES, launch
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import back_to_front
from detmode.table.samples import Maker


@st.composite
def calls(
    draw: st.DrawFn, values: Any, dtypes: Sequence[torch.dtype]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``self``, ``index`` and ``source`` in any layout, and where each source goes."""
    counts = st.sampled_from([[], [0], [1], [9], [40], [130], [4, 6], [5, 3, 2]])
    dtype, n = draw(st.sampled_from(dtypes)), draw(counts)
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 30]), max_size=3))
    self = draw(st.sampled_from([Tensor.contiguous, back_to_front]))(draw(values(shape, dtype)))
    spread, make = draw(st.integers(1, self.numel())), Maker(dtype, seed=draw(SEEDS))
    index = make.integers(draw(st.sampled_from([-spread, 0])), spread, *n)
    to = torch.where(index < 0, index + self.numel(), index)
    return self, draw(LAYOUTS)(index), draw(values(n, dtype)), to


@needs.compiler
@given(call=calls(words, EVERY), seed=SEEDS)
def test_last(call: tuple[Tensor, ...], seed: int) -> None:
    """The last source of each element stays, bit by bit, in any schedule, in place and not."""
    self, index, source, to = call
    got = in_place_and_not(launch.put, self, index, source, seed=seed)
    assert got.stride() == self.stride()
    assert_last_wins(got, self, to, source)


@given(call=calls(words, EVERY))
def test_last_on_cpu(call: tuple[Tensor, ...]) -> None:
    """On the CPU the same stays, without a kernel, in all three variants."""
    self, index, source, to = call
    with DeterministicMode() as mode:
        got = self.put(index, source)
        target = self.clone().put_(index, source)
        written = torch.ops.aten.put.out(self, index, source, out=torch.empty_like(self))
    assert {record.action for record in mode.records if "put" in record.overload} == {"substitute"}
    assert_last_wins(got, self, to, source)
    assert same_bits(target, got)
    assert same_bits(written, got)
    assert got.stride() == self.stride()


@needs.compiler
@given(call=calls(tensors, FLOATING + COMPLEX), seed=SEEDS)
def test_sums(call: tuple[Tensor, ...], seed: int) -> None:
    """Sums are exact but for their rounding, in any schedule, in place and not."""
    self, index, source, to = call
    got = in_place_and_not(launch.put, self, index, source, True, seed=seed)
    assert_exact(got, self, to, source)


def test_last_on_cpu_at_size() -> None:
    """So many elements that ATen's own kernel takes all threads: the last one still stays."""
    index = torch.arange(1 << 20) % 7
    source = torch.arange(1 << 20)
    with DeterministicMode():
        got = torch.zeros(7, dtype=torch.int64).put_(index, source)
    assert got.tolist() == [source[index == i].max() for i in range(7)]


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
