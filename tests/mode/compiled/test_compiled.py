"""Functions given to torch.compile stay compiled, and their calls meet the table as in eager."""

import contextlib
import operator
import re

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from detmode import DeterministicMode, Native, Rule, allow, default_rules
from detmode.mode.compiled import hooks, lowering
from detmode.sites.graph_nodes import text_of
from detmode.verify.claims import same_bits
from tests.shared import compiled_functions as functions
from tests.shared import needs
from tests.shared.compiled_functions import FUNCTIONS, run
from tests.shared.programs import in_another_thread

pytestmark = [
    needs.compiler,
    # PyTorch's compilers warn of much that no test is about, and of more in each version.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("no_caches"),
]
COMPILED = pytest.mark.skipif(not hooks.CAN_COMPILE, reason="PyTorch 2.8 compiles nothing")
# Inductor starts a C++ compiler.
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
UNEQUAL = {
    "adaptive_avg_pool2d": "aten::_adaptive_avg_pool2d",
    "cross_entropy2d": "aten::_log_softmax_backward_data",
    "logcumsumexp": "aten::exp",
    "nll_loss2d": "aten::nll_loss2d_backward",
}
"""Functions whose bits are not eager's, and the operator, in no row, that Inductor generates.

The gradient of ``nll_loss2d`` has -0.0 for 0.0; the others are rounded otherwise.
"""
SINCE_2_10 = re.compile("sparse-(mm|mv|bmm|.*-blocks)")
"""Functions that no Inductor before that of PyTorch 2.10 compiles."""


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def rows(mode):
    """The report's rows, but for calls that only make memory: compiled code makes its own."""
    return {
        (row.overload, row.action, row.site, row.outer_site, tuple(sorted(row.modules.items()))): (
            row.count
        )
        for row in mode.records
        if row.family != "uninitialized_memory"
    }


class Net(nn.Module):
    """Operators of many families, in modules, forward and backward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d((5, 3)))
        self.words = nn.Embedding(9, 4)

    def forward(self, image, index):
        pooled = self.layers(image)
        large = nn.functional.interpolate(pooled, size=(6, 6), mode="bilinear")
        picked = large.flatten(2)[0].t()[index] * self.words(index % 9)
        sums = image.new_zeros(8, 4).index_add(0, index % 8, picked)
        return sums.flatten().cumsum(0).sum() + large.square().sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_is_reported_as_in_eager(backend):
    """Rows, counts, lines, modules; without fusing, bits. And the same bits in any schedule."""
    net, arguments = Net(), (torch.randn(2, 3, 8, 8), functions.below(36, 40))
    with DeterministicMode(simulate="cuda") as eager:
        expected = run(net, arguments)
    got = []
    compiled = torch.compile(net, backend=backend)
    for seed in range(3):
        with DeterministicMode(simulate="cuda", schedule_seed=seed) as mode:
            got.append(run(compiled, arguments))
        assert rows(mode) == rows(eager)
    assert len(rows(mode)) == 8
    assert all(same_bits(got[0], other) for other in got)
    if backend != "inductor":
        assert same_bits(got[0], expected)
    assert graphs() == 1


@pytest.mark.parametrize("target", [torch.ops.aten.index_put, torch.ops.aten.index_put_])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        (torch.index_put, "aten::index_put.default"),
        ("index_put_", "aten::index_put_.default"),
        (operator.setitem, "aten::index_put_.default"),
    ],
)
def test_a_call_has_the_name_that_the_user_wrote(target, source, name):
    """Graphs have functional variants of in-place calls, and Inductor makes others in-place."""
    node = torch.fx.Graph().call_function(target.default)
    node.meta["source_fn_stack"] = [("index_put", source)]
    assert text_of(node).rpartition("|")[2] == name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["module", "function"])
def test_pytorchs_own_code_is_reported_by_its_caller(name, backend):
    """Compiled modules and functions of torch.nn have the line of the call, and their own path."""
    called, given = {
        "module": (nn.Sequential(nn.Identity(), nn.Upsample((6, 6), mode="bilinear")), ()),
        "function": (nn.functional.interpolate, ((6, 6), None, "bilinear")),
    }[name]

    def step(call):
        result = call(torch.ones(1, 1, 3, 3, requires_grad=True), *given)
        result.sum().backward()

    seen = []
    for call in (called, torch.compile(called, backend=backend)):
        with DeterministicMode(True, simulate="cuda") as mode:
            step(call)
        seen.append(rows(mode))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1


@pytest.mark.thorough
@COMPILED
@pytest.mark.parametrize("name", UNEQUAL)
def test_only_generated_operators_differ_from_eager(name):
    """Called whole, the one operator in whose generated code bits may differ gives eager's.

    In that code they do with the instructions of AVX-512, and need not on other CPUs.
    """
    function, make = FUNCTIONS[name]
    arguments, equal = make(), []
    # An override of a forward without a row would reach only its backward; a row keeps it whole.
    rule = Rule(op=UNEQUAL[name], action=Native(), guarantee="run_to_run", because="kept whole")
    whole = {"rules": default_rules() + [rule]} if name == "adaptive_avg_pool2d" else {}
    whole = whole or {"overrides": {UNEQUAL[name]: "allow"}}
    for options in ({}, whole):
        with DeterministicMode(True, simulate="cuda", **options):
            expected = run(function, arguments)
            equal.append(same_bits(run(torch.compile(function), arguments), expected))
    assert equal[1]
    assert not equal[0] or torch.backends.cpu.get_cpu_capability() != "AVX512"


def added(x, index, source):
    return x.index_add(0, index, source).sin()


def arguments():
    return torch.randn(6, 3), torch.tensor([1, 1, 2]), torch.randn(3, 3)


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_switching_compiles_nothing_anew(first):
    """A function has one graph for inside and one for outside, wherever it was called first."""
    function, given = torch.compile(added, backend="aot_eager"), arguments()
    seen = []
    for inside in [first == "inside", first != "inside"] * 2:
        if inside:
            with DeterministicMode(simulate="cuda") as mode:
                function(*given)
            assert [row.count for row in mode.records] == [1]
        else:
            function(*given)
        seen.append(graphs())
    assert seen == [1, 2, 2, 2]
    with DeterministicMode(simulate="cuda", warn_only=True, schedule_seed=3):
        function(*given)
    told = DeterministicMode(simulate="cuda", overrides={"aten::sin": "warn"})
    with pytest.warns(match="aten::sin"), told as mode:
        function(*given)
    assert [row.overload for row in mode.records] == [
        "aten::index_add.default",
        "aten::sin.default",
    ]


@COMPILED
def test_a_thread_outside_has_its_own_code():
    """Code that one thread compiles inside a mode is not run by another outside of it."""
    function, given = torch.compile(added, backend="aot_eager"), arguments()
    with DeterministicMode(simulate="cuda") as mode:
        function(*given)
        in_another_thread(function, *given)
    assert [row.count for row in mode.records] == [1]
    assert graphs() == 2


@pytest.mark.thorough
@COMPILED
def test_the_users_options_are_kept():
    """A pass of the user's runs inside the mode, where Inductor is deterministic."""
    import torch._inductor.config as inductor

    seen = []

    def note(graph):
        seen.append((getattr(inductor, "deterministic", None), inductor.epilogue_fusion))

    options = {"post_grad_custom_pre_pass": note, "epilogue_fusion": False}
    # Inductor leaves the call to ATen on a CPU, and starts no C++ compiler.
    function = torch.compile(torch.cumsum, options=options, fullgraph=True)
    with DeterministicMode(simulate="cuda") as mode:
        function(torch.ones(3), 0)
    function(torch.ones(3), 0)
    inside, outside = (True, False) if hasattr(inductor, "deterministic") else (None, None)
    assert seen == [(inside, False), (outside, False)]
    assert [(row.overload, row.count) for row in mode.records] == [("aten::cumsum.default", 1)]


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.tail = (
            nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear")),
            nn.Tanh(),
        )

    def forward(self, x):
        return nn.functional.interpolate(self.tail(self.head(x)), scale_factor=2, mode="bilinear")


@COMPILED
@pytest.mark.parametrize("backend", BACKENDS)
def test_overrides_of_a_module(backend):
    """A path means the calls of a module, and their backward, as in eager code."""
    net = Halves()

    def step(run):
        run(torch.ones(1, 1, 3, 3, requires_grad=True)).sum().backward()

    compiled = torch.compile(net, backend=backend)
    modes = [
        DeterministicMode(simulate="cuda", overrides={"Halves.head": action})
        for action in ("allow", "native")
    ]
    before = graphs()
    for mode in modes:
        with mode:
            step(compiled)
        actions = {row.module: row.action for row in mode.records if "upsample" in row.overload}
        assert actions == {
            "Halves": "substitute",
            "Halves.head.0": mode.module_overrides["Halves.head"],
        }
    assert graphs() == before + 1


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[COMPILED, pytest.mark.thorough])]
)
def test_decisions_are_made_at_each_call(backend):
    """Refusals, warnings, overrides and allow regions act on code that is compiled already."""
    function, given = torch.compile(added, backend=backend), arguments()
    refused = {"simulate": "cuda", "substitute": False, "overrides": {"aten::index_add": "error"}}
    with DeterministicMode(**refused) as mode:
        with pytest.raises(RuntimeError, match="index_add") as raised:
            function(*given)
        with allow("aten::index_add"):
            function(*given)
    line = added.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}" in str(raised.value)
    assert [(row.action, row.count) for row in mode.records] == [("error", 1), ("allow", 1)]
    with DeterministicMode(simulate="cuda", overrides={"aten::sin": "warn"}) as mode:
        function(*given)
    assert [row.overload for row in mode.records][1:] == ["aten::sin.default"]


def test_operator_by_operator():
    """With ``compile=False`` the mode sees every operator, and outside the function is compiled."""
    function, given = torch.compile(added, backend="aot_eager"), arguments()
    with DeterministicMode(
        simulate="cuda", compile=False, overrides={"aten::sin": "allow"}
    ) as mode:
        inside = function(*given)
    assert [row.overload for row in mode.records] == [
        "aten::index_add.default",
        "aten::sin.default",
    ]
    with DeterministicMode(simulate="cuda"):
        assert same_bits([inside], [added(*given)])
    function(*given)
    assert graphs() == 2


@pytest.mark.parametrize("what", ["made", "entered", "allow"])
def test_a_block_inside_a_compiled_function(what):
    """Dynamo traces neither the making nor the entering of a block; its calls meet the table."""
    outer, entered = (DeterministicMode(simulate="cuda") for _ in range(2))
    modes = [outer, entered]

    def block():
        if what == "made":
            modes.append(DeterministicMode(simulate="cuda"))
            return modes[-1]
        return entered if what == "entered" else allow("aten::index_add")

    def function(x, index, source):
        with block():
            inside = added(x * 2, index, source)
        return inside + 1

    compiled, given = torch.compile(function, backend="aot_eager"), arguments()
    with outer:
        results = [each(*given) for each in (function, compiled, compiled)]
    assert same_bits([results[0]] * 2, results[1:])
    calls = [(row.overload, row.action, row.count) for mode in modes for row in mode.records]
    action = "allow" if what == "allow" else "substitute"
    assert sum(count for _, _, count in calls) == 3
    assert {each[:2] for each in calls} == {("aten::index_add.default", action)}


@pytest.mark.parametrize("names", [["aten::upsample_bilinear2d"], []], ids=["allowed", "refused"])
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[COMPILED, pytest.mark.thorough])]
)
def test_a_region_reaches_the_backward(backend, names):
    """Operators allowed around a compiled forward are allowed in its backward, outside."""
    enlarged = nn.Upsample(scale_factor=2, mode="bilinear")
    function, x = torch.compile(enlarged, backend=backend), torch.ones(1, 1, 3, 3)
    with DeterministicMode(True, simulate="cuda", substitute=False) as mode:
        with allow(*names) if names else contextlib.nullcontext():
            result = function(x.requires_grad_())
        result.sum().backward()
    overload, action = "aten::upsample_bilinear2d_backward.default", "allow" if names else "warn"
    assert [key[:2] for key in rows(mode)] == [(overload, action)]


@pytest.mark.thorough
@COMPILED
def test_nothing_of_the_compilers_stays_changed():
    """After a compilation, decompositions and lowering are PyTorch's own, failed or not."""
    from torch._inductor import compile_fx, graph

    def state():
        kernels = [sorted(map(str, func.py_kernels)) for func in lowering._python_kernels()]
        return compile_fx.select_decomp_table, graph.GraphLowering.__init__, kernels

    def failing(gm, inputs):
        raise ValueError("a backend of the user's")

    before = state()
    with DeterministicMode(simulate="cuda"):
        torch.compile(added, backend="inductor")(*arguments())
        with pytest.raises(Exception, match="a backend of the user's"):
            torch.compile(added, backend=failing, fullgraph=True)(*arguments())
    assert state() == before
    assert hooks.thread.key is None


@COMPILED
def test_what_is_traced_takes_no_detour():
    """F.interpolate of a tensor that is not on the CPU is the plain operator to a compiler too."""
    traced = []

    def compiler(gm, inputs):
        traced.append({str(node.target) for node in gm.graph.nodes})
        return make_boxed_func(gm.forward)

    enlarged = torch.compile(
        nn.Upsample(scale_factor=2, mode="bilinear"), backend=aot_autograd(fw_compiler=compiler)
    )
    with DeterministicMode(simulate="cuda"):
        enlarged(torch.ones(1, 1, 3, 3, device="meta", requires_grad=True))
    forward, _ = traced
    assert {"aten.upsample_bilinear2d.default", "aten.upsample_bilinear2d.vec"} & forward
    assert "aten._unsafe_index.Tensor" not in forward
