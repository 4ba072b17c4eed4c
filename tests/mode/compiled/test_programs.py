"""The ways in which programs use torch.compile: each meets the table as eager code does."""

import threading
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from detmode import DeterministicMode
from detmode.mode.compiled import hooks, lowering
from detmode.verify.claims import same_bits
from tests.mode.compiled.test_compiled import COMPILED, graphs, rows
from tests.shared import needs

pytestmark = [
    needs.compiler,
    # The compiler warns, of Python and of itself, by version.
    pytest.mark.filterwarnings("ignore"),
    COMPILED,
    pytest.mark.usefixtures("no_caches"),
]
INDUCTOR = pytest.param("inductor", marks=pytest.mark.thorough)
BACKENDS = ["aot_eager", INDUCTOR]


class Block(nn.Module):
    """Listed operators, forward and backward."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.AdaptiveAvgPool1d(3), nn.Linear(3, 4))

    def forward(self, x, index):
        return x.index_add(0, index, self.inner(x + self.words(index)))


class Stack(nn.Module):
    def __init__(self, make=Block, call=lambda block, *args: block(*args)):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(make() for _ in range(3))
        self.call = call

    def forward(self, x, index):
        for block in self.blocks:
            x = self.call(block, x, index)
        return x.sum()


def train(net, size=5, call=None):
    """A step of a net: the loss and the gradients."""
    torch.manual_seed(size)
    leaf, index = torch.randn(size, 4, requires_grad=True), torch.randint(0, 5, (size,))
    net.zero_grad()
    loss = (net if call is None else call)(leaf, index)
    loss.backward()
    return [loss.detach(), leaf.grad, *(each.grad for each in net.parameters())]


def inside(function, **options):
    """Return the result of a function inside the mode, and the mode."""
    with DeterministicMode(True, simulate="cuda", **options) as mode:
        return function(), mode


def compare(eager, compiled, backend):
    """The same rows; bits where nothing is fused, and in any order of threads."""
    expected, told = inside(eager)
    got, mode = inside(compiled)
    again, _ = inside(compiled, schedule_seed=3)
    assert rows(mode) == rows(told)
    assert rows(mode)
    assert same_bits(got, again)
    if backend != "inductor":
        assert same_bits(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_regions_share_a_graph(backend):
    """Blocks compiled each for itself share one graph, and are reported with their own paths."""
    net, regional = Stack(), Stack()
    for block in regional.blocks:
        block.compile(backend=backend)
    compare(partial(train, net), partial(train, regional), backend)
    assert graphs() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_regions(backend):
    """Calls in a region of a compiled function are seen, under the path of its first caller."""
    if not hasattr(torch.compiler, "nested_compile_region"):
        pytest.skip("this PyTorch has no nested_compile_region")
    net = Stack()
    _, told = inside(partial(train, net))
    nested = Stack(call=lambda block, *args: torch.compiler.nested_compile_region(block)(*args))
    _, mode = inside(partial(train, nested, call=torch.compile(nested, backend=backend)))
    counts = [{row.overload: row.count for row in each.records} for each in (told, mode)]
    listed = "aten::index_add.default", "aten::embedding_dense_backward.default"
    assert [[count.get(name) for name in listed] for count in counts] == [[3, 3]] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dynamic_shapes(backend):
    """Sizes are dynamic inside as outside: one graph each."""
    net = Stack()
    compiled = torch.compile(net, dynamic=True, backend=backend)

    def several(call=None):
        return [each for size in (5, 7, 9) for each in train(net, size, call)]

    several(compiled)
    assert graphs() == 1
    compare(several, partial(several, compiled), backend)
    assert graphs() == 2


def added(x, index):
    return x.index_add(0, index, x)


between_graphs = torch.compiler.disable(added)


def broken(x, index):
    x = x.index_add(0, index, x)
    if x.sum() > 0:
        x = x * 2
    x = x.cumsum(0)
    print(end="")
    return between_graphs(x, index).index_copy(0, index[:1], x[:1]).sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_breaks(backend):
    """Listed operators on both sides of a break, and between graphs, have their lines."""
    net = nn.Linear(4, 4)

    def step(function):
        return train(net, call=lambda x, index: function(net(x), index))

    compare(partial(step, broken), partial(step, torch.compile(broken, backend=backend)), backend)
    assert graphs() > 1


def saved(context, op, *args, **kwargs):
    kept = op in (torch.ops.aten.index_add.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "selective", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["whole", "selective"]
)
def test_checkpoints_inside(backend, selective):
    """Calls that a compiled backward makes again are counted again, as in eager code."""
    options = {"use_reentrant": False}
    if selective:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, saved)
    net = Stack(call=partial(checkpoint, **options))
    compiled = torch.compile(net, backend=backend)
    compare(partial(train, net), partial(train, net, call=compiled), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoints_around(backend):
    """A compiled block that backward calls again is the same graph, in the block's own module."""
    net = Stack(call=partial(checkpoint, use_reentrant=False, early_stop=False))
    regional = Stack(call=partial(checkpoint, use_reentrant=False, early_stop=False))
    for block in regional.blocks:
        block.compile(backend=backend)
    compare(partial(train, net), partial(train, regional), backend)
    assert graphs() == 1


class Deep(torch.autograd.Function):
    """Backward in backward: from a depth of 60 on, PyTorch runs it in another thread."""

    @staticmethod
    def forward(ctx, x, depth, call):
        ctx.rest = depth - 1, call
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        depth, call = ctx.rest
        with torch.enable_grad():
            if depth:
                Deep.apply(torch.ones(1, requires_grad=True), depth, call).backward()
            else:
                call()
        return grad, None, None


def test_autograds_threads_compile_for_the_mode():
    """An autograd thread that recomputes a function, as for a checkpoint, uses the mode's graph."""
    threads, x, index = [], torch.ones(5, 4), torch.tensor([0, 0, 1, 2, 3])
    compiled = torch.compile(added, backend="aot_eager")

    def call():
        threads.append(threading.get_ident())
        compiled(x, index)

    def run():
        call()
        Deep.apply(torch.ones(1, requires_grad=True), 70, call).backward()

    _, mode = inside(run)
    assert len(set(threads)) == 2
    assert list(rows(mode).values()) == [2], rows(mode)
    assert graphs() == 1


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_autograd(backend):
    """Its rows are those of eager; the line is the one that calls backward."""
    from torch._dynamo.compiled_autograd import _enable

    net = Stack()
    expected, told = inside(partial(train, net))
    with _enable(torch.compile(backend=backend)):
        got, mode = inside(partial(train, net))
    counts = [
        {(row.overload, row.action): row.count for row in each.records if row.modules or row.alert}
        for each in (told, mode)
    ]
    backward = {key: row for key, row in counts[0].items() if "backward" in key[0]}
    found = {row.overload: row for row in mode.records}
    for (overload, action), count in backward.items():
        row = found[overload]
        assert (row.action, row.count) == (action, count)
        assert row.site == f"{__file__}:{train.__code__.co_firstlineno + 6}"
    assert len(backward) == 2
    if backend != "inductor":
        assert same_bits(got, expected)


def test_forward_and_backward_on_two_sides():
    """A backward compiled outside is refused inside, in words; one compiled inside runs outside."""
    net = Stack()
    compiled, index = torch.compile(net, backend="aot_eager"), torch.tensor([0, 0, 1])
    x = torch.ones(3, 4, requires_grad=True)
    loss = compiled(x, index)
    with pytest.raises(RuntimeError, match="forward was called outside") as raised:
        inside(loss.backward)
    assert "use_deterministic_algorithms(True)" in str(raised.value.__cause__)
    loss, mode = inside(lambda: compiled(x, index))
    inside_rows = rows(mode)
    loss.backward()
    assert rows(mode) == inside_rows


@pytest.mark.parametrize("captures", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_flex_attention_adds_by_atomics_to_what_it_captures(captures):
    """The compiled backward of a learned bias is a row of the report; without one there is none."""
    from torch.nn.attention import flex_attention as flex

    def attend(query, bias):
        def score(score, batch, head, row, column):
            return score + bias[row, column] if captures else score + row - column

        return flex.flex_attention(query, query, query, score_mod=score)

    def backward(gm, inputs):
        lowering._put_twins(hooks.thread.mode, lambda *_: None, [])(None, gm)
        gm.recompile()
        return gm.forward

    compiled = torch.compile(
        attend, backend=aot_autograd(fw_compiler=lambda gm, _: gm.forward, bw_compiler=backward)
    )
    query = torch.randn(1, 2, 16, 8, requires_grad=True)
    bias = torch.randn(16, 16, requires_grad=True)
    # PyTorch has no backward for the CPU; this one is traced, and runs operator by operator.
    with mock.patch.object(flex, "_validate_device"):
        _, mode = inside(lambda: compiled(query, bias).sum().backward())
    found = [row.action for row in mode.records if row.overload.startswith("detmode::flex")]
    assert found == ["warn"] * captures


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_transforms_autocast_and_inference(backend):
    """torch.func, autocast, no_grad and inference_mode, inside and around compiled functions."""
    source, index = torch.randn(2, 5, 4), torch.tensor([0, 0, 1, 2, 3])

    def summed(x):
        return x.index_add(0, index, x).cumsum(0)

    def mapped(x):
        total = torch.func.grad(lambda each: summed(each).sin().sum())
        return torch.func.vmap(summed)(x) + torch.func.vmap(total)(x)

    def cast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return summed(x[0] @ x[1].t())

    for function in (mapped, cast):
        compiled = torch.compile(function, backend=backend)
        for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):

            def call(function, context=context):
                with context():
                    return [function(source).clone()]

            compare(partial(call, function), partial(call, compiled), backend)


@pytest.mark.thorough
@pytest.mark.parametrize("whole", [False, True], ids=["step", "whole"])
def test_optimizers(whole):
    """A compiled optimizer, and a compiled training step: as many graphs as without the mode."""

    def run(compiled):
        net = Stack()
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)

        def step():
            train(net)
            optimizer.step()

        def parts():
            train(net)
            update()

        update = torch.compile(optimizer.step) if compiled else optimizer.step
        each = parts if not whole else torch.compile(step) if compiled else step
        for _ in range(3):
            each()
        return [value.detach().clone() for value in net.parameters()]

    run(compiled=True)
    outside = graphs()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    expected, told = inside(lambda: run(compiled=False))
    got, mode = inside(lambda: run(compiled=True))
    assert graphs() == outside
    again, _ = inside(lambda: run(compiled=True), schedule_seed=3)
    assert rows(mode) == rows(told)
    assert same_bits(got, again)
    # Adam divides by the square root of small squares, which magnifies rounding.
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("method", ["__call__", "forward"])
def test_a_module_of_torchs_is_the_one_that_calls(method, backend):
    """It has the path that eager code gives it, each time.

    Dynamo calls it in a wrapper; in ``forward``, without a frame of any module.
    """

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.compile(nn.Upsample(scale_factor=2, mode="bilinear"), backend=backend)

        def forward(self, x):
            return getattr(self.up, method)(x)

    def run():
        outer = Outer()
        for _ in range(3):
            outer(torch.ones(1, 1, 2, 2, requires_grad=True)).sum().backward()

    (row,) = (row for row in inside(run)[1].records if row.alert)
    assert row.modules == {"Outer.up": 3}
