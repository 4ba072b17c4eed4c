"""Which tensors the mode sees, and as what."""

from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten


def actions(mode):
    return [(record.overload, record.action, record.count) for record in mode.records]


class Logged(torch.Tensor):
    """A wrapper subclass that desugars to the tensor inside."""

    calls: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func._schema.name)
        args, kwargs = tree_map(
            lambda x: x.inner if isinstance(x, Logged) else x, (args, kwargs or {})
        )
        return tree_map(
            lambda x: Logged(x) if isinstance(x, torch.Tensor) else x, func(*args, **kwargs)
        )


def test_a_wrapper_subclass_desugars_first(mode):
    """The subclass gets the call; the mode then sees the operator on the tensor inside, once."""
    Logged.calls.clear()
    x = Logged(torch.ones(3))
    with mode() as made:
        y = x.cumsum(0)
    assert isinstance(y, Logged)
    assert y.inner.tolist() == [1, 2, 3]
    assert Logged.calls == ["aten::cumsum"]
    assert actions(made) == [("aten::cumsum.default", "native", 1)]


def test_a_wrapper_subclass_is_refused_inside(mode):
    """What is refused is refused for subclasses, too."""
    x = Logged(torch.zeros(3))
    with mode() as made, pytest.raises(RuntimeError, match="put_"):
        x.put(torch.tensor([0]), torch.ones(1))
    assert actions(made) == [("aten::put.default", "error", 1)]


def test_two_tensors_are_two_calls(mode):
    """A TwoTensor makes two calls, each of which meets the table."""
    x = TwoTensor(torch.zeros(3), torch.ones(3))
    with mode() as made:
        y = x.index_add(0, torch.tensor([0]), torch.ones(1))
    assert isinstance(y, TwoTensor)
    assert (y.a.tolist(), y.b.tolist()) == ([1, 0, 0], [2, 1, 1])
    assert actions(made) == [("aten::index_add.default", "substitute", 2)]


def test_two_tensor_backward(mode, substituted):
    """The backward of a subclass desugars as well, and meets the substitutes."""
    image = torch.ones(1, 1, 2, 2)
    x = TwoTensor(image.clone(), image.clone()).requires_grad_()
    with mode() as made:
        F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()
    assert x.grad.a.sum() == 16
    assert substituted == ["aten::upsample_bilinear2d_backward"] * 2
    assert {action for _, action, _ in actions(made)} == {"substitute"}


def test_a_subclass_without_dispatch_is_plain(mode):
    """A subclass that only adds methods counts as the plain tensor it is."""

    class Named(torch.Tensor):
        pass

    with mode() as made:
        y = torch.ones(3).as_subclass(Named).cumsum(0)
    assert type(y) is Named
    assert actions(made) == [("aten::cumsum.default", "native", 1)]


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer])
def test_parameters_and_buffers(mode, substituted, kind):
    """Parameters and buffers are plain tensors: substitutes launch on them."""
    x = kind(torch.ones(1, 1, 2, 2))
    index, source = torch.tensor([0]), torch.ones(1, 1, 2, 2)
    with mode() as made:
        y = x.index_add(0, index, source)
        if kind is torch.nn.Parameter:
            F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()
    assert y.sum() == 8
    assert substituted[0] == "aten::index_add"
    assert {action for _, action, _ in actions(made)} == {"substitute"}


def test_meta_tensors_are_matched_but_not_launched(mode, substituted):
    """On meta tensors the rows are met and recorded, and no substitute runs."""
    x = torch.ones(1, 1, 2, 2, device="meta", requires_grad=True)
    with mode() as made:
        y = x.index_add(0, torch.tensor([0], device="meta"), torch.ones_like(x))
        F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()
        y.cumsum(0)
        with pytest.raises(RuntimeError, match="put_"):
            y.put(torch.zeros(1, dtype=torch.int64, device="meta"), y[:1, 0, 0, 0])
    assert substituted == []
    assert y.is_meta
    assert [action for _, action, _ in actions(made)] == [
        "substitute",
        "substitute",
        "native",
        "error",
    ]


@pytest.mark.parametrize("order", ["mode inside", "mode outside"])
def test_fake_cuda_tensors_are_matched_but_not_launched(mode, substituted, order):
    """Fake CUDA tensors meet the rows for CUDA, without ``simulate``, and nothing is launched."""
    made, fake = mode(simulate=None), FakeTensorMode()
    first, second = (fake, made) if order == "mode inside" else (made, fake)
    with first, second:
        x = torch.ones(1, 1, 2, 2, device="cuda")
        y = x.index_add(0, torch.zeros(1, dtype=torch.int64, device="cuda"), x)
        # Autograd itself needs a GPU to run backward on fake CUDA tensors.
        z = aten.upsample_bilinear2d_backward(x, [2, 2], [1, 1, 1, 1], False)
    assert isinstance(y, FakeTensor)
    assert y.device.type == z.device.type == "cuda"
    assert z.shape == (1, 1, 1, 1)
    assert substituted == []
    assert [action for _, action, _ in actions(made)] == ["substitute", "substitute"]


def test_fake_cuda_tensors_are_refused(mode):
    """A refused operator on fake CUDA tensors raises with PyTorch's text."""
    text = r"^_histc_cuda with floating point input does not have"
    with FakeTensorMode(), mode(simulate=None), pytest.raises(RuntimeError, match=text):
        torch.histc(torch.ones(3, device="cuda"))


def test_an_allowed_call_on_fake_cuda_tensors(mode):
    """An allowed call does not meet the alert of PyTorch's own tracing rule."""
    with FakeTensorMode(), mode(simulate=None, overrides={"aten::histc": "allow"}):
        assert torch.histc(torch.ones(3, device="cuda")).shape == (100,)


@pytest.mark.parametrize("order", ["mode outside", "mode inside"])
def test_functionalize(mode, substituted, order):
    """Under ``functionalize`` the functional form is met, with the right result."""

    def function(x):
        y = x.clone()
        y.index_add_(0, torch.tensor([0, 0]), torch.ones(2))
        return y.cumsum(0)

    made = mode()
    with made:
        y = torch.func.functionalize(function)(torch.zeros(3))
    assert y.tolist() == [2, 2, 2]
    assert substituted == ["aten::index_add"]
    assert actions(made) == [
        ("aten::index_add.default", "substitute", 1),
        ("aten::cumsum.default", "native", 1),
    ]


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


def test_make_fx_traces_through_the_mode(mode):
    """Tracing with make_fx under the mode works and the rows are met."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode() as made:
        graph = make_fx(lambda x: x.cumsum(0) + 1)(torch.ones(3))
    assert "cumsum" in graph.code
    assert ("aten::cumsum.default", "native") in [record[:2] for record in actions(made)]


def test_make_fx_does_not_lose_a_launch(mode):
    """Of real tensors make_fx would trace what is around a launch: the call itself is traced."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def added(x):
        return x.index_add(0, torch.tensor([0, 0]), x[:2])

    with mode() as made:
        graph = make_fx(added)(torch.ones(3))
    x = torch.tensor([1.0, 2, 3])
    assert torch.equal(graph(x), added(x))
    assert "index_add" in graph.code
    assert actions(made) == [("aten::index_add.default", "native", 1)]


def test_make_fx_of_real_tensors_refuses_what_only_a_launch_can_do(mode):
    """What has no path of PyTorch's is refused, and the message says how to trace it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(x):
        return aten.upsample_bilinear2d_backward(x, [4, 4], [1, 1, 2, 2], False)

    x = torch.ones(1, 1, 4, 4)
    with mode():
        with pytest.raises(RuntimeError, match="tracing_mode='fake'"):
            make_fx(gradient)(x)
        graph = make_fx(gradient, tracing_mode="fake")(x)
    assert torch.equal(graph(x), gradient(x))


@pytest.mark.parametrize("order", ["mode inside", "mode outside"])
def test_plain_tensors_among_fake_ones_are_not_launched(mode, substituted, order):
    """A plain tensor in a FakeTensorMode that takes it is matched, and nothing is launched."""
    x, index, source = torch.zeros(3), torch.tensor([0]), torch.ones(1)
    made, fake = mode(), FakeTensorMode(allow_non_fake_inputs=True)
    first, second = (fake, made) if order == "mode inside" else (made, fake)
    with first, second:
        y = x.index_add(0, index, source)
    assert isinstance(y, FakeTensor)
    assert substituted == []
    assert actions(made) == [("aten::index_add.default", "substitute", 1)]


@pytest.mark.parametrize("predicate", [True, False])
def test_cond_passes_through(mode, caplog, predicate):
    """``torch.cond`` runs its branch as it does without the mode.

    PyTorch runs the branch below the mode, which therefore does not see the operators in it;
    PyTorch's flag is on, and its own alert guards them. Nothing is said of torch.compile, which
    cond uses by itself.
    """
    branches = (lambda x: x.cumsum(0), lambda x: x.flip(0).cumsum(0).flip(0))
    with mode() as made:
        y = torch.cond(torch.tensor(predicate), *branches, (torch.ones(3),))
    assert y.tolist() == ([1, 2, 3] if predicate else [3, 2, 1])
    assert actions(made) == []
    assert caplog.records == []


def test_pytorchs_alert_guards_the_inside_of_a_higher_order_operator(mode):
    """In the body of a higher-order operator a refused call meets PyTorch's own error."""
    from torch._higher_order_ops.wrap import wrap

    def put(x):
        return x.put(torch.tensor([0]), torch.ones(1))

    with mode(), pytest.raises(RuntimeError, match=r"^put_ does not have"):
        wrap(put, torch.ones(3))


def test_flex_attention_runs(mode):
    """Eager flex_attention, a higher-order operator, gives what it gives without the mode."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.manual_seed(0)
    q = torch.randn(1, 1, 8, 4)
    expected = F.scaled_dot_product_attention(q, q, q)
    with torch.no_grad(), mode(warn_only=True):
        result = torch.ops.higher_order.flex_attention(
            q,
            q,
            q,
            lambda score, b, h, m, n: score,
            _full_block_mask(8),
            0.5,
            {},
        )[0]
    assert callable(flex_attention)
    torch.testing.assert_close(result, expected)


def _full_block_mask(length):
    from torch.nn.attention.flex_attention import create_block_mask

    mask = create_block_mask(lambda b, h, m, n: m >= 0, 1, 1, length, length, device="cpu")
    return mask.as_tuple()


@pytest.fixture
def process_group(tmp_path):
    """One process that is a whole group."""
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:torch.*")
def test_dtensor(mode, process_group):
    """A DTensor desugars to its local tensors, on which the table is met."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.ones(3), mesh, [Replicate()])
    with mode() as made:
        y = x.cumsum(0)
    assert y.to_local().tolist() == [1, 2, 3]
    # DTensor also runs it on a fake tensor, to learn the shape.
    assert {record[:2] for record in actions(made)} == {("aten::cumsum.default", "native")}


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning")
def test_sparse_and_quantized_tensors_pass(mode):
    """Tensors of other layouts pass where no row means them."""
    with mode() as made:
        x = torch.eye(3).to_sparse()
        assert (x @ torch.ones(3, 1)).sum() == 3
        q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
        assert q.dequantize().sum() == 3
    assert actions(made) == []


def test_nested_tensors_pass(mode):
    """Jagged tensors, a subclass with a dispatch of its own, run as without the mode."""
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    with mode():
        y = (x * 2).values()
    assert y.sum() == 18


@pytest.mark.parametrize("simulate", [None, "cuda"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_simulate_decides_whether_cpu_counts_as_cuda(mode, simulate, device):
    """Without ``simulate`` rows for CUDA do not concern CPU and meta tensors; with it they do."""
    with mode(simulate=simulate) as made:
        torch.ones(3, device=device).cumsum(0)
    assert len(made.records) == (simulate == "cuda")
