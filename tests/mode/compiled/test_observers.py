"""Recordings, probes and audits of compiled functions, which stay compiled."""

import contextlib

import pytest
import torch
import torch._dynamo.utils
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detmode import DeterministicMode, diff, record
from detmode.runs.probing import Probe
from detmode.runs.trace_file import UNDEFINED, Reader
from tests.shared import needs
from tests.shared.every_mode import OBSERVERS

# The compiler warns, of Python and of itself, by version.
pytestmark = [needs.compiler, pytest.mark.filterwarnings("ignore")]
COMPILED = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"),
    reason="PyTorch 2.8 and 2.9 run it operator by operator inside an observer",
)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def calls(path, *, inside):
    """The calls of a recording by name; those in graphs, or the others."""
    return [
        (call.overload, call.graph) if inside else call.overload
        for call in Reader(path).calls()
        if (call.graph is not None) == inside
    ]


@pytest.mark.parametrize("observer", OBSERVERS)
def test_a_function_first_called_inside_is_compiled_outside(observer, tmp_path):
    """No mode makes Dynamo skip a function for the rest of the program."""
    ran = []

    def backend(gm, inputs):
        def run(*args):
            ran.append(gm)
            return gm.forward(*args)

        return run

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    with OBSERVERS[observer](tmp_path):
        inside = function(torch.ones(3))
    ran.clear()
    assert torch.equal(function(torch.ones(3)), inside)
    assert len(ran) == 1


@torch.library.custom_op("detmode_observed::double", mutates_args=("out",))
def double(x: torch.Tensor, out: torch.Tensor) -> None:
    """An operator of the user's that writes to memory which the caller has not initialized."""
    out.copy_(x.detach() * 2)


def sorted_by(x, w, index):
    doubled = torch.empty_like(x)
    double(x, doubled)
    inverse = torch.empty_like(index)
    inverse[index.argsort()] = torch.arange(len(index))
    unused = torch.empty(4096)
    return (x @ w).sin()[inverse] @ w + doubled, unused


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4) / 4)

    def forward(self, x, index):
        return sorted_by(x, self.w, index)


def train(function, x, index):
    """Two steps; in between, memory that was freed is filled with something else each time."""
    for _ in range(2):
        result, _ = function(x, index)
        result.sum().backward()
        with _disable_current_modes():
            for shape in (4096, 6, (6, 4)):
                torch.randn(shape)


FORWARD, BACKWARD = (f"compiled::Sorting.forward[{way}]" for way in ("forward", "backward"))


def recorded(tmp_path, *names, around=contextlib.nullcontext, inside=contextlib.nullcontext):
    """Record runs of a compiled module that starts each time alike; return it."""
    module, x, index = Sorting(), torch.ones(6, 4), torch.tensor([3, 1, 2, 5, 0, 4])
    function = torch.compile(module)
    for name in names:
        module.zero_grad()
        with around(), record(tmp_path / name), inside():
            train(function, x, index)
    return function


@COMPILED
def test_runs_of_compiled_code_are_the_same(tmp_path):
    """A run that compiles is the same as one that does not; what is undefined is not digested."""
    recorded(tmp_path, "first", "second")
    assert graphs() == 1
    comparison = diff(tmp_path / "first", tmp_path / "second")
    assert comparison.identical, str(comparison)
    inside = calls(tmp_path / "first", inside=True)
    products = [graph for name, graph in inside if name in ("aten::mm.out", "aten::addmm.out")]
    assert products == 2 * (2 * [FORWARD] + 3 * [BACKWARD])
    outside = calls(tmp_path / "first", inside=False)
    assert [name for name in outside if name.startswith("compiled")] == 2 * [FORWARD, BACKWARD]
    first, *_ = (call for call in Reader(tmp_path / "first").calls() if call.overload == FORWARD)
    assert first.site == f"{__file__}:{Sorting.forward.__code__.co_firstlineno}"
    assert [UNDEFINED in side.digests for side in (first.inputs, first.outputs)] == [False, True]
    assert first.outputs.digests.count(UNDEFINED) == 1
    double = next(call for call in Reader(tmp_path / "first").calls() if "double" in call.overload)
    assert [digest == UNDEFINED for digest in double.inputs.digests] == [False, True]
    assert UNDEFINED not in double.mutated.digests


@COMPILED
@pytest.mark.thorough
@pytest.mark.parametrize("where", ["around", "inside"])
def test_twins_are_recorded_as_their_originals(where, tmp_path):
    """Under the mode, whichever is outside, each listed operator has the user's line and module."""
    mode = {where: lambda: DeterministicMode(simulate="cuda", overrides={"aten::mm": "allow"})}
    recorded(tmp_path, "first", "second", **mode)
    assert graphs() == 1
    comparison = diff(tmp_path / "first", tmp_path / "second")
    assert comparison.identical, str(comparison)
    line = sorted_by.__code__.co_firstlineno
    puts = [
        (call.site, call.module, call.graph, UNDEFINED in call.inputs.digests)
        for call in Reader(tmp_path / "first").calls()
        if call.overload == "aten::index_put_.default"
    ]
    assert puts == 2 * [
        (f"{__file__}:{line + 4}", "Sorting", FORWARD, True),
        (f"{__file__}:{line + 6}", "Sorting", BACKWARD, False),
    ]
    assert not any("detmode_twin" in name for name, _ in calls(tmp_path / "first", inside=True))


def scaled(before, after):
    """A function whose compiled code has a factor between two products, and one after them."""

    def product(x, w):
        return ((x @ w).sin() * before) @ w * after

    return product


@COMPILED
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("factors", "weight", "kind", "operator"),
    [
        ((1.5, 1.0), 1.0, "fused", "aten::mm.out"),
        ((1.0, 1.5), 1.0, "graph", "compiled::product[forward]"),
        ((1.0, 1.0), 1.5, "inputs", "compiled::product[forward]"),
    ],
    ids=["between", "after", "data"],
)
def test_a_divergence_is_named_to_the_graph(factors, weight, kind, operator, tmp_path):
    """The graph, its number, the call in it; and how to find the operator."""
    x = torch.ones(4, 4)
    for name, given, start in (("first", (1.0, 1.0), 1.0), ("second", factors, weight)):
        torch._dynamo.reset()
        function, w = torch.compile(scaled(*given)), torch.eye(4) * start
        with record(tmp_path / name):
            function(x, w if kind != "inputs" else x)
            function(x, w)
    found = diff(tmp_path / "first", tmp_path / "second")
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.call.overload) == (kind, operator)
    assert str(found.divergence.graph) == f"compiled::product[forward]@{int(kind == 'inputs')}"
    assert found.divergence.call.site == f"{__file__}:{scaled.__code__.co_firstlineno + 3}"
    assert ("TORCH_COMPILE_DISABLE=1" in str(found)) == (kind != "inputs")
    assert "--dump compiled" not in str(found)


@COMPILED
@pytest.mark.thorough
def test_a_probe_repeats_the_calls_in_a_graph():
    """Twins and extern calls are repeated; the report says that graphs are not."""
    with Probe(1) as probe, DeterministicMode(simulate="cuda", overrides={"aten::mm": "allow"}):
        train(torch.compile(Sorting()), torch.ones(6, 4), torch.tensor([3, 1, 2, 5, 0, 4]))
    report = probe.report()
    assert report.varied == 0, str(report)
    names = {overload for overload, _ in probe._counts}
    assert {"aten::index_put_.default", "aten::mm.default"} <= names
    assert "4  compiled graphs" in str(report)


TWICE = """
import sys, torch, detmode

def step(x, w, index):
    total = torch.zeros(3, 4).index_add(0, index, x @ w)
    return total.sin() @ w

torch.manual_seed(0)
w = torch.randn(4, 4, requires_grad=True)
function = torch.compile(step)
with detmode.record(sys.argv[1]), detmode.DeterministicMode(simulate="cuda"):
    function(torch.randn(5, 4), w, torch.tensor([0, 1, 1, 2, 0])).sum().backward()
print(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"])
"""


@COMPILED
@pytest.mark.thorough
def test_cold_and_warm_caches_give_the_same_recording(run_python, tmp_path):
    """Calls that only the compiling process makes are not recorded, and graphs keep their names."""
    (tmp_path / "program.py").write_text(TWICE)
    folder = str(tmp_path / "cache")
    hits = []
    for name in ("first", "second"):
        done = run_python(
            "program.py", name, TORCHINDUCTOR_CACHE_DIR=folder, CUBLAS_WORKSPACE_CONFIG=":4096:8"
        )
        assert done.returncode == 0, done.stderr
        hits.append(int(done.stdout))
    assert hits[0] == 0
    assert hits[1] > 0
    comparison = diff(tmp_path / "first", tmp_path / "second")
    assert comparison.same > 10
    assert comparison.identical, str(comparison)
