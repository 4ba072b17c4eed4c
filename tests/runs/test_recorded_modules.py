"""The module of each recorded call, forward and backward, and of calls made again."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from detmode import record
from detmode.sites.module_path import ModulePaths
from tests.shared.traces import calls


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


class Block(nn.Module):
    """Every call of every block is on one of these lines."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.softplus(self.linear(x))
        y[:, :2].mul_(2)
        if self.inner is not None:
            y = self.inner(y)
        return y.sin()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = Block()
        self.first = Block()
        self.nested = Block(Block())
        self.twice = nn.ModuleList([shared, nn.Sequential(shared)])

    def forward(self, x: Tensor) -> Tensor:
        for module in (self.first, self.nested, *self.twice):
            x = module(x)
        return Double.apply(x)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.ceil()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.floor()


BLOCKS = ["Net.first", "Net.nested.inner", "Net.nested", "Net.twice.0", "Net.twice.1.0"]


def modules(path: Path, overload: str) -> list[str | None]:
    return [call.module for call in calls(path, overload)]


def train(path: Path, net: nn.Module) -> Path:
    with record(path):
        loss = net(torch.ones(2, 4)).sum()
        loss.argmax()  # makes no node, and is not taken for the one that made the last
        loss.backward()
    return path


def test_module_of_each_call(path):
    """One line in several blocks has the path of each, in forward and backward, written in place.

    A module that is in two places of the model has both paths.
    """
    train(path, Net())
    entered = ["Net.first", "Net.nested", "Net.nested.inner", "Net.twice.0", "Net.twice.1.0"]
    assert modules(path, "aten::sin.default") == BLOCKS
    assert modules(path, "aten::softplus.default") == entered
    assert modules(path, "aten::addmm.default") == [f"{block}.linear" for block in entered]
    assert modules(path, "aten::softplus_backward.default") == entered[::-1]
    cosines = calls(path, "aten::cos.default")
    assert [call.module for call in cosines] == BLOCKS[::-1]
    assert {call.site for call in cosines} == {
        call.site for call in calls(path, "aten::sin.default")
    }
    # Writing to a view makes a node of another kind; its backward copies.
    assert modules(path, "aten::clone.default") == entered[::-1]
    # A function's own backward.
    assert modules(path, "aten::floor.default") == ["Net"]
    assert modules(path, "aten::sum.default")[0] is None
    (total,), expand = calls(path, "aten::sum.default"), calls(path, "aten::expand.default")[0]
    assert expand.site == total.site


class Gradient(nn.Module):
    """Runs a backward inside its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.autograd.grad(self.inner(x).sum(), x)[0]


def test_backward_inside_a_forward(path):
    """The module is that of the forward call, not the one that runs the backward."""
    with record(path):
        Gradient(Net())(torch.ones(2, 4, requires_grad=True))
    assert modules(path, "aten::floor.default") == ["Gradient.inner"]
    assert modules(path, "aten::cos.default") == [
        block.replace("Net", "Gradient.inner") for block in BLOCKS[::-1]
    ]


def test_same_modules_in_each_run(path, tmp_path):
    """Two runs of one program have the same modules, whatever was recorded or called before."""
    net = Net()
    net.nested(torch.ones(1, 4))
    train(path, net)
    with record(tmp_path / "between"):
        net.twice[1](torch.ones(1, 4))
    net.zero_grad()
    train(tmp_path / "again", net)
    first, again = (
        [(call.overload, call.module) for call in calls(each)]
        for each in (path, tmp_path / "again")
    )
    assert first == again
    assert None not in modules(tmp_path / "between", "aten::sin.default")
    assert modules(tmp_path / "between", "aten::sin.default") == ["Sequential.0"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_forward_has_the_modules_of_the_first(reentrant, path):
    """Activation checkpointing calls a module alone in backward: it is the one of the model."""

    class Checkpointed(Net):
        def forward(self, x):
            for module in (self.first, self.nested):
                x = checkpoint(module, x, use_reentrant=reentrant)
            return x

    with record(path):
        Checkpointed()(torch.ones(2, 4, requires_grad=True)).sum().backward()
    names = [f"Checkpointed.{name}" for name in ("first", "nested.inner", "nested")]
    again = modules(path, "aten::sin.default")[3:]
    assert modules(path, "aten::sin.default")[:3] == names
    # The other way stops where all that backward needs is there: before the last call.
    assert again == ([names[1], names[2], names[0]] if reentrant else [names[1]])
    assert modules(path, "aten::cos.default") == [names[2], names[1], names[0]]


def test_paths_of_modules_that_are_gone():
    """No module is kept alive, and one at the address of another has a name of its own."""
    paths = ModulePaths()
    for kind in (nn.ReLU, nn.Tanh) * 20:
        module = nn.Sequential(kind())
        expected = f"Sequential.0.{kind.__name__}"
        assert paths.of([module, module[0], kind()], recomputed=False) == expected
        gone = weakref.ref(module)
        del module
        assert gone() is None
    assert not paths._called.children
    assert not paths.known
