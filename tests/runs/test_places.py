"""The places of calls: a mode, a recording and an audit say the same of them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from detmode import DeterministicMode, audit, record
from tests.shared.traces import calls

OPERATOR = "aten::index_add"
INDEX = torch.tensor([0, 0, 1])


def added(x: Tensor) -> Tensor:
    return x.index_select(0, INDEX).index_add(0, INDEX, x)


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(0, INDEX).index_add(0, INDEX, x)


def hooked(x: Tensor) -> Tensor:
    y = Adds()(x)
    y.register_hook(lambda gradient: gradient.index_add(0, INDEX, gradient))
    return y


PROGRAMS = {
    "a line": added,
    "a module": nn.Sequential(nn.Sequential(Adds()), nn.Tanh()),
    "a traced graph": nn.Sequential(torch.fx.symbolic_trace(Adds())),
    "an interpreted graph": torch.fx.Interpreter(torch.fx.symbolic_trace(Adds())).run,
    "a hook": hooked,
    "a recomputed forward": lambda x: checkpoint(nn.Sequential(Adds()), x, use_reentrant=False),
    "a forward that is recomputed by itself": (
        lambda x: checkpoint(nn.Sequential(Adds()), x, use_reentrant=True)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_everybody_says_the_same(name, tmp_path):
    """Line and module of a call do not depend on who asks, forward and backward."""

    def program():
        PROGRAMS[name](torch.ones(3, 3, requires_grad=True)).sum().backward()

    with DeterministicMode(simulate="cuda") as mode:
        program()
    rows = [row for row in mode.records if row.overload.startswith(OPERATOR)]
    by_mode = {(row.site, module) for row in rows for module in row.modules or (None,)}
    with record(tmp_path / "run"):
        program()
    recorded = [each for each in calls(tmp_path / "run") if each.overload.startswith(OPERATOR)]
    assert {(call.site, call.module) for call in recorded} == by_mode
    assert {module or "" for _, module in by_mode} <= audit(program).modules.keys()
    assert all(Path(__file__).name in site for site, _ in by_mode)
    assert not any("eval_with_key" in site for site, _ in by_mode)
