"""put on the host runner and on the CPU, over shapes, strides, dtypes and indices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detmode import DeterministicMode, Substitute
from detmode.rules.put import RULES
from detmode.table.conditions import INTEGRAL
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.destinations import placed
from tests.shared.last_wins import EVERY, assert_last_wins, words
from tests.shared.strategies import same_bits


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_last_on_cpu(data: st.DataObject, dtype: torch.dtype) -> None:
    """On the CPU the last source of a place stays, without a kernel, in all three variants."""
    call = data.draw(placed(words, dtype))
    self, index, source = call.arguments
    with DeterministicMode() as mode:
        got = self.put(index, source)
        target = self.clone().put_(index, source)
        written = torch.ops.aten.put.out(self, index, source, out=torch.empty_like(self))
    assert {record.action for record in mode.records if "put" in record.overload} == {"substitute"}
    assert_last_wins(got, self, call.to, source)
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
