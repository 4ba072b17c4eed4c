"""``torch.jit.trace`` inside a mode records the operators that it records outside."""

import copy
import io
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch import nn

from detmode import DeterministicMode, record
from tests.shared.every_mode import MODES
from tests.shared.selection import todays_forms


class Cells(nn.Module):
    """Cells of recurrent networks, of which each is several operators to the tracer."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 4)])

    def forward(self, x):
        state = torch.zeros_like(x)
        hidden, state = self.cells[0](x, (state, state))
        return self.cells[2](self.cells[1](hidden, state), state)


class Writes(nn.Module):
    """Calls that return nothing, and those that the tracer records in its own way."""

    def forward(self, x):
        y, z = x.detach().clone(), torch.zeros_like(x)
        torch._foreach_add_([y, z], 1.5)
        z.copy_(y * 2)
        z[0] = x[1]
        return z + y.sigmoid_() + 1


IMAGE, ROWS = (1, 3, 8, 8), (2, 4)
MODULES = {
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 3),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        IMAGE,
    ),
    "cells": (Cells(), ROWS),
    "writes": (Writes(), ROWS),
}


GRADS = {"grad": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def operators(traced):
    """The operators of a traced graph, in order."""
    return [node.kind() for node in traced.inlined_graph.nodes()]


@pytest.mark.parametrize(("module", "mode", "grad"), todays_forms(product(MODULES, MODES, GRADS)))
def test_the_graph_is_that_of_no_mode(module, mode, grad, tmp_path):
    """A traced module has the same operators, and computes on other inputs what the module does."""
    module, shape = MODULES[module]
    module = copy.deepcopy(module)
    module(torch.ones(shape))  # a lazy one learns its sizes
    module, x, y = module.eval(), torch.rand(shape), torch.rand(shape)
    with GRADS[grad]():
        expected = torch.jit.trace(module, x)
        with MODES[mode](tmp_path):
            traced = torch.jit.trace(module, x)
    assert operators(traced) == operators(expected)
    with torch.no_grad():
        assert torch.equal(traced(y), expected(y))


def test_methods_are_traced(tmp_path):
    """``torch.jit.trace_module`` traces each method it is asked for."""
    module, x, y = nn.Conv1d(2, 2, 3), torch.rand(1, 2, 8), torch.rand(1, 2, 8)
    for make in MODES.values():
        with make(tmp_path):
            traced = torch.jit.trace_module(module, {"forward": x})
        assert torch.equal(traced.forward(y), module(y))


def test_a_traced_graph_is_shown_inside():
    """A graph that has a number as a constant is printed inside a mode."""
    with DeterministicMode():
        traced = torch.jit.trace(lambda x: x + 1, torch.rand(3))
        shown = str(traced.graph)
    assert "aten::add" in shown


def test_what_a_mode_does_itself_is_not_recorded(tmp_path):
    """The graph has a call once, also where a mode observes or repeats it."""
    with record(tmp_path / "trace"), DeterministicMode(simulate="cuda", recheck=1.0):
        traced = torch.jit.trace(nn.Conv2d(3, 4, 3), torch.rand(IMAGE))
    assert operators(traced).count("aten::_convolution") == 1


def test_onnx_sees_the_operators():
    """The exporter by TorchScript gets a graph that depends on its input."""
    pytest.importorskip("onnx", reason="PyTorch writes no file without the package onnx")
    import onnx

    written = io.BytesIO()
    with DeterministicMode(simulate="cuda"):
        torch.onnx.export(nn.Conv2d(3, 4, 3).eval(), (torch.rand(IMAGE),), written, dynamo=False)
    graph = onnx.load_from_string(written.getvalue()).graph
    assert [node.op_type for node in graph.node] == ["Conv"]
