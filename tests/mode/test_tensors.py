"""Tensors that the mode sees, and as what."""

import re
from contextlib import ExitStack, contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.while_loop import while_loop
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask
from torch.testing._internal.two_tensor import TwoTensor

from detmode import allow
from tests.shared.programs import actions, enlarged, image

aten = torch.ops.aten
INDEX, ONE = torch.tensor([0]), torch.ones(1)
ADDED = ("aten::index_add.default", "substitute")
ENLARGED = ("aten::upsample_bilinear2d_backward.default", "substitute")
ORDERS = pytest.mark.parametrize("order", ["mode inside", "mode outside"])


def test_two_tensors_are_two_calls(mode, substituted):
    """A wrapper subclass desugars first: the mode sees, or refuses, the operators that it calls.

    A TwoTensor makes two calls, in its backward as well.
    """
    x = TwoTensor(image().detach(), image().detach()).requires_grad_()
    with mode() as made:
        y = TwoTensor(torch.zeros(3), torch.ones(3)).index_add(0, INDEX, ONE)
        with pytest.raises(RuntimeError, match="put_"):
            y.put(INDEX, ONE)
        enlarged(x).sum().backward()
    assert isinstance(y, TwoTensor)
    assert (y.a.tolist(), y.b.tolist()) == ([1, 0, 0], [2, 1, 1])
    assert x.grad.a.sum() == 16
    names = ("aten::index_add", "aten::upsample_bilinear2d_backward")
    assert substituted == [name for name in names for _ in range(2)]
    assert actions(made) == [(*ADDED, 2), ("aten::put.default", "error", 1), (*ENLARGED, 2)]


class Named(torch.Tensor):
    """A subclass that only adds methods."""


KINDS = [torch.nn.Parameter, torch.nn.Buffer, lambda x: x.as_subclass(Named).requires_grad_()]


@pytest.mark.parametrize("kind", KINDS, ids=["Parameter", "Buffer", "subclass without dispatch"])
def test_parameters_and_buffers(mode, substituted, kind):
    """Parameters, buffers and such subclasses are plain tensors: substitutes launch on them."""
    x = kind(torch.ones(1, 1, 2, 2))
    with mode() as made:
        y = x.index_add(0, INDEX, torch.ones(1, 1, 2, 2))
        if x.requires_grad:
            enlarged(x).sum().backward()
    assert y.sum() == 8
    assert isinstance(y, Named) == isinstance(x, Named)
    assert substituted[0] == "aten::index_add"
    assert {action for _, action, _ in actions(made)} == {"substitute"}


def test_meta_tensors_are_matched_but_not_launched(mode, substituted):
    """On meta tensors the rows are met and recorded, and no substitute runs."""
    x = torch.ones(1, 1, 2, 2, device="meta", requires_grad=True)
    with mode() as made:
        y = x.index_add(0, torch.tensor([0], device="meta"), torch.ones_like(x))
        enlarged(x).sum().backward()
        y.cumsum(0)
        with pytest.raises(RuntimeError, match="put_"):
            y.put(torch.zeros(1, dtype=torch.int64, device="meta"), y[:1, 0, 0, 0])
    assert substituted == []
    assert y.is_meta
    assert [action for _, action, _ in actions(made)] == [*["substitute"] * 2, "native", "error"]


@contextmanager
def entered(mode, fake, order):
    with ExitStack() as stack:
        for each in (fake, mode) if order == "mode inside" else (mode, fake):
            stack.enter_context(each)
        yield


@ORDERS
def test_fake_cuda_tensors_are_matched_but_not_launched(mode, substituted, order):
    """Fake CUDA tensors meet the rows for CUDA, without ``simulate``, and nothing is launched."""
    made = mode(simulate=None)
    with entered(made, FakeTensorMode(), order):
        x = torch.ones(1, 1, 2, 2, device="cuda")
        y = x.index_add(0, torch.zeros(1, dtype=torch.int64, device="cuda"), x)
        # Autograd itself needs a GPU to run backward on fake CUDA tensors.
        z = aten.upsample_bilinear2d_backward(x, [2, 2], [1, 1, 1, 1], False)
    assert isinstance(y, FakeTensor)
    assert y.device.type == z.device.type == "cuda"
    assert z.shape == (1, 1, 1, 1)
    assert substituted == []
    assert actions(made) == [(*ADDED, 1), (*ENLARGED, 1)]


def test_fake_cuda_tensors_are_refused(mode):
    """A refused operator on fake CUDA tensors raises with PyTorch's text.

    An allowed one does not meet the alert of PyTorch's own tracing rule.
    """
    text = r"^_histc_cuda with floating point input does not have"
    with FakeTensorMode(), mode(simulate=None):
        x = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match=text):
            torch.histc(x)
        with allow("aten::histc"):
            assert torch.histc(x).shape == (100,)


def test_functional_tensors_are_matched_but_not_launched(mode, substituted):
    """AOTAutograd traces with functional and fake tensors: matched, and nothing is launched.

    The traced program launches when it runs.
    """
    from torch._functorch.aot_autograd import aot_function

    launched_while_tracing = []

    def compiler(graph, inputs):
        launched_while_tracing.extend(substituted)
        return graph

    def function(x, index, source):
        y = x.clone()
        y.index_add_(0, index, source)
        return y.cumsum(0)

    inputs = torch.zeros(3), torch.tensor([0]), torch.ones(1)
    with mode() as made:
        y = aot_function(function, compiler)(*inputs)
    assert y.tolist() == [1, 1, 1]
    assert launched_while_tracing == []
    assert substituted == ["aten::index_add"]
    assert ("aten::index_add_.default", "substitute") in [record[:2] for record in actions(made)]


def test_make_fx_does_not_lose_a_launch(mode):
    """Of real tensors make_fx would trace what is around a launch: the call itself is traced.

    What has no path of PyTorch's is refused, and the message says how to trace it.
    """

    def added(x):
        return x.index_add(0, torch.tensor([0, 0]), x[:2])

    def gradient(x):
        return aten.upsample_bilinear2d_backward(x, [4, 4], [1, 1, 2, 2], False)

    with mode() as made:
        graph = make_fx(added)(torch.ones(3))
    x = torch.tensor([1.0, 2, 3])
    assert torch.equal(graph(x), added(x))
    assert "index_add" in graph.code
    assert actions(made) == [("aten::index_add.default", "native", 1)]
    x = torch.ones(1, 1, 4, 4)
    with mode():
        with pytest.raises(RuntimeError, match="tracing_mode='fake'"):
            make_fx(gradient)(x)
        graph = make_fx(gradient, tracing_mode="fake")(x)
    assert torch.equal(graph(x), gradient(x))


@ORDERS
def test_plain_tensors_among_fake_ones_are_not_launched(mode, substituted, order):
    """A plain tensor in a FakeTensorMode that takes it is matched, and nothing is launched."""
    x, made = torch.zeros(3), mode()
    with entered(made, FakeTensorMode(allow_non_fake_inputs=True), order):
        y = x.index_add(0, INDEX, ONE)
    assert isinstance(y, FakeTensor)
    assert substituted == []
    assert actions(made) == [(*ADDED, 1)]


def added(x):
    return x.index_add(0, INDEX, ONE)


def branch(number):
    return lambda x: torch.cond(torch.tensor(number > 0), added, torch.clone, (x,))


def nested(x):
    return torch.cond(torch.tensor(True), branch(1), torch.clone, (x,))


def loop(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, added(x)), (torch.tensor(0), x))[1]


@pytest.mark.parametrize(
    ("program", "count"), [(branch(1), 1), (branch(0), 0), (nested, 1), (loop, 3)]
)
def test_bodies_of_higher_order_operators(mode, substituted, caplog, program, count):
    """The calls that are made in the bodies, and only those, meet the table at their own lines.

    Nothing is said of torch.compile, which these operators use by themselves.
    """
    with mode() as made:
        y = program(torch.zeros(3))
    assert y.tolist() == [count, 0, 0]
    assert substituted == ["aten::index_add"] * count
    (row,) = [row for row in made.records if row.overload == ADDED[0]] or [None]
    if row is None:
        assert count == 0
    else:
        assert (row.action, row.count) == ("substitute", count)
        assert row.site == f"{__file__}:{added.__code__.co_firstlineno + 1}"
    assert not [record for record in caplog.records if record.name == "detmode"]


def test_the_backward_of_a_branch(mode, substituted):
    """It is a branch as well, whose calls the mode decides on."""
    x = image()
    with mode() as made:
        torch.cond(torch.tensor(True), enlarged, lambda x: enlarged(-x), (x,)).sum().backward()
    assert x.grad.sum() == 16
    assert substituted == ["aten::upsample_bilinear2d_backward"]
    # PyTorch 2.8 traces both branches' backwards under the mode, which counts them.
    assert {row[:2] for row in actions(made)} == {ENLARGED}


def test_a_refused_call_in_a_branch(mode):
    """The error is the mode's, with the line in the branch."""

    def put(x):
        return x.put(torch.tensor([0]), torch.ones(1))

    line = f"{__file__}:{put.__code__.co_firstlineno + 1}"
    with mode(), pytest.raises(RuntimeError, match=f"(?s)^put_ does not have.*{re.escape(line)}"):
        torch.cond(torch.tensor(True), put, torch.clone, (torch.ones(3),))


def test_fake_tensors_in_branches(mode, substituted):
    """Of fake tensors PyTorch traces both branches; nothing runs, and nothing is launched."""
    graphs = [make_fx(each)(torch.ones(3)) for each in (added, torch.clone)]
    with FakeTensorMode(allow_non_fake_inputs=True), mode() as made:
        y = torch.ops.higher_order.cond(torch.tensor(True), *graphs, (torch.ones(3),))
    assert isinstance(y, FakeTensor)
    assert (substituted, actions(made)) == ([], [])


def test_pytorchs_alert_guards_the_inside_of_a_higher_order_operator(mode):
    """In the body of a higher-order operator a refused call meets PyTorch's own error."""
    from torch._higher_order_ops.wrap import wrap

    def put(x):
        return x.put(torch.tensor([0]), torch.ones(1))

    with mode(), pytest.raises(RuntimeError, match=r"^put_ does not have"):
        wrap(put, torch.ones(3))


def test_flex_attention_runs(mode):
    """Eager flex_attention, a higher-order operator, gives what it gives without the mode."""
    torch.manual_seed(0)
    q = torch.randn(1, 1, 8, 4)
    expected = F.scaled_dot_product_attention(q, q, q)
    mask = create_block_mask(lambda b, h, m, n: m >= 0, 1, 1, 8, 8, device="cpu").as_tuple()
    with torch.no_grad(), mode(warn_only=True):
        result, *_ = torch.ops.higher_order.flex_attention(
            q, q, q, lambda score, b, h, m, n: score, mask, 0.5, {}
        )
    torch.testing.assert_close(result, expected)


def test_sparse_quantized_and_jagged_tensors_pass(mode):
    """Tensors of other layouts pass where no row means them."""
    nested = torch.nested.nested_tensor([torch.ones(2, 3)] * 2, layout=torch.jagged)
    with mode() as made:
        x = torch.eye(3).to_sparse()
        assert (x @ torch.ones(3, 1)).sum() == 3
        q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
        assert q.dequantize().sum() == 3
        assert (nested * 2).values().sum() == 24
    assert actions(made) == []


@pytest.mark.parametrize("simulate", [None, "cuda"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_simulate_decides_whether_cpu_counts_as_cuda(mode, simulate, device):
    """Without ``simulate`` rows for CUDA do not concern CPU and meta tensors; with it they do."""
    with mode(simulate=simulate) as made:
        torch.ones(3, device=device).cumsum(0)
    assert len(made.records) == (simulate == "cuda")
