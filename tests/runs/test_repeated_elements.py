"""Tensors that repeat themselves in memory, as ``expand`` makes them, cost what they are."""

import pytest
import torch

import detmode
from detmode import DeterministicMode, diff, record
from detmode.bits.difference import difference
from detmode.runs.dump_file import dumps_of
from detmode.runs.probing import Probe

HUGE = 1 << 42
"""Elements that no machine has memory for."""


def masked() -> list[torch.Tensor]:
    """Calls that take a mask of one byte, and views of it."""
    mask = torch.ones((), dtype=torch.bool).expand(2, HUGE)
    row = torch.arange(3.0).expand(HUGE, 3)
    detmode.end_step(mask=mask)
    return [mask.new_ones(3), mask[:, :3].clone(), row.new_zeros(2), row[:2].clone()]


@pytest.mark.parametrize("level", ["call", "module", "step"])
def test_recorded(level, tmp_path):
    """A recording digests each element once."""
    for folder in ("first", "second"):
        with record(tmp_path / folder, level=level):
            masked()
    assert diff(tmp_path / "first", tmp_path / "second").identical


def test_probed():
    """A probe copies and compares each element once."""
    probing = Probe(1)
    with probing:
        masked()
    report = probing.report()
    assert not report.rows
    assert "not repeated" not in {each.reason for each in report.passed_over}
    with DeterministicMode(recheck=1.0):
        masked()


def test_dumped(tmp_path):
    """A dump has each element once, along a dimension of size 1."""
    with record(tmp_path / "run", dump=["aten::new_ones@0"]) as recording:
        masked()
    assert not recording.not_dumped
    (dump,) = dumps_of(tmp_path / "run")
    assert dump.arrays["input 0"][1].shape == (1, 1)


@pytest.mark.parametrize("level", ["call", "step"])
@pytest.mark.parametrize("kind", ["values", "repeats", "order"])
def test_what_differs_is_seen(kind, level, tmp_path):
    """Other values, other numbers of repeats, and an order of its own have other digests."""
    x = torch.tensor([[1.0, 2.0]])
    sides = {
        "values": (x.expand(3, 2), (x + 1).expand(3, 2)),
        "repeats": (x.expand(3, 2), x.expand(4, 2)),
        "order": (x.expand(2, 2), x.t().expand(2, 2)),
    }[kind]
    for folder, side in zip(("first", "second"), sides):
        with record(tmp_path / folder, level=level):
            detmode.end_step(tensor=side.detach())
            side.clone()
    assert not diff(tmp_path / "first", tmp_path / "second").identical


def test_difference_of_what_repeats():
    """It is found whether the strides agree or not."""
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    both = difference(x.expand(4, 2), y.expand(4, 2))
    one = difference(x.expand(4, 2), y.expand(4, 2).contiguous())
    assert both is not None
    assert one is not None
    assert (both[0], one[0]) == (1, 4)
    assert difference(x.expand(4, 2), x.expand(4, 2).contiguous()) is None
