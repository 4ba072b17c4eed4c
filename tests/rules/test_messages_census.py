"""Each alert of PyTorch's, met through the user's own call, with PyTorch's exact words."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import needs
import pytest
import table_facts as facts
import torch
import torch.nn.functional as F
from test_alerts import UNREACHABLE
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from detmode import DeterministicMode, cuda
from detmode.environment.versions import parse_version
from detmode.mode.messages import alert_text
from detmode.table.names import overload_name
from detmode.table.rule_table import TORCH_VERSION

aten = torch.ops.aten


@dataclass(frozen=True)
class Alerting:
    """One call that alerts.

    Args:
        name: what is called.
        caller: PyTorch's caller name.
        op: the overload that alerts, as the dispatcher sees it.
        run: the call, on CPU tensors.
        since: the first PyTorch version that alerts.
        on_cpu: whether PyTorch alerts on the CPU too.
    """

    name: str
    caller: str
    op: str
    run: Callable[[], Any]
    since: str = "2.8"
    on_cpu: bool = False


def leaf(*shape: int) -> torch.Tensor:
    """A tensor that wants a gradient."""
    return torch.randn(*shape, requires_grad=True)


def zeros(*shape: int) -> torch.Tensor:
    """Indices, classes, bins: everything collides."""
    return torch.zeros(*shape, dtype=torch.int64)


def backward(result: Any) -> None:
    """Run the backward of a result, of its first tensor if there are several."""
    (result[0] if isinstance(result, tuple) else result).sum().backward()


def pooled(n: int, *, stride: int = 1) -> tuple[Any, ...]:
    """Arguments of the backward of max pooling over n dimensions."""
    input, window = torch.randn(1, 1, *(5,) * n), ([3] * n, [stride] * n, [0] * n, [1] * n, False)
    output, indices = aten.max_pool3d_with_indices(input, *window)
    return torch.ones_like(output), input, *window, indices


def fractional(n: int) -> tuple[Any, ...]:
    """Arguments of the backward of fractional max pooling over n dimensions."""
    input, op = torch.randn(1, 1, *(5,) * n), getattr(aten, f"fractional_max_pool{n}d")
    output, indices = op(input, [2] * n, [3] * n, torch.rand(1, 1, n))
    return torch.ones_like(output), input, [2] * n, [3] * n, indices


def padded(n: int) -> tuple[Any, ...]:
    """Arguments of the backward of padding n dimensions."""
    return torch.ones(1, 1, *(6,) * n), torch.randn(1, 1, *(4,) * n), [1, 1] * n


def to_grad_input(op: Any, *arguments: Any) -> None:
    """Call an operator's grad_input variant."""
    op.grad_input(*arguments, grad_input=torch.empty_like(arguments[1]))


def ctc(lengths: Callable[[list[int]], Any]) -> None:
    """A CTC loss and its backward, with lengths as tuples or tensors."""
    log_probs = leaf(8, 2, 4).log_softmax(2)
    targets = torch.tensor([[1, 1, 2], [3, 3, 3]])
    backward(F.ctc_loss(log_probs, targets, lengths([8, 8]), lengths([3, 3])))


def quantized_resize() -> None:
    """Grow a quantized tensor."""
    with warnings.catch_warnings():
        # Quantized tensors are deprecated since 2.13.
        warnings.simplefilter("ignore", UserWarning)
        values = torch._empty_affine_quantized([4], scale=1.0, zero_point=0, dtype=torch.quint8)
    values.resize_(9)


def interpolate(mode: str, n: int, **more: Any) -> None:
    """Interpolate n dimensions to a larger size, and back."""
    backward(F.interpolate(leaf(1, 1, *(4,) * n), size=(7,) * n, mode=mode, **more))


ALERTING = (
    Alerting(
        "AdaptiveAvgPool2d",
        "adaptive_avg_pool2d_backward_cuda",
        "aten::_adaptive_avg_pool2d_backward.default",
        lambda: backward(nn.AdaptiveAvgPool2d(3)(leaf(1, 1, 4, 4))),
    ),
    Alerting(
        "AdaptiveAvgPool1d",
        "adaptive_avg_pool2d_backward_cuda",
        "aten::_adaptive_avg_pool2d_backward.default",
        lambda: backward(nn.AdaptiveAvgPool1d(3)(leaf(1, 1, 4))),
    ),
    Alerting(
        "interpolate-area",
        "adaptive_avg_pool2d_backward_cuda",
        "aten::_adaptive_avg_pool2d_backward.default",
        lambda: interpolate("area", 2),
    ),
    Alerting(
        "AdaptiveAvgPool3d",
        "adaptive_avg_pool3d_backward_cuda",
        "aten::_adaptive_avg_pool3d_backward.default",
        lambda: backward(nn.AdaptiveAvgPool3d(3)(leaf(1, 1, 4, 4, 4))),
    ),
    Alerting(
        "adaptive_avg_pool3d_backward.grad_input",
        "adaptive_avg_pool3d_backward_out_cuda",
        "aten::adaptive_avg_pool3d_backward.grad_input",
        lambda: to_grad_input(
            aten.adaptive_avg_pool3d_backward, torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 4, 4, 4)
        ),
    ),
    Alerting(
        "AdaptiveMaxPool2d",
        "adaptive_max_pool2d_backward_cuda",
        "aten::adaptive_max_pool2d_backward.default",
        lambda: backward(nn.AdaptiveMaxPool2d(3)(leaf(1, 1, 4, 4))),
    ),
    Alerting(
        "AdaptiveMaxPool1d",
        "adaptive_max_pool2d_backward_cuda",
        "aten::adaptive_max_pool2d_backward.default",
        lambda: backward(nn.AdaptiveMaxPool1d(3)(leaf(1, 1, 4))),
    ),
    Alerting(
        "AvgPool3d",
        "avg_pool3d_backward_cuda",
        "aten::avg_pool3d_backward.default",
        lambda: backward(nn.AvgPool3d(2)(leaf(1, 1, 4, 4, 4))),
    ),
    Alerting(
        "MaxPool3d",
        "max_pool3d_with_indices_backward_cuda",
        "aten::max_pool3d_with_indices_backward.default",
        lambda: backward(nn.MaxPool3d(3)(leaf(1, 1, 5, 5, 5))),
    ),
    Alerting(
        "max_pool3d_with_indices_backward.grad_input",
        "max_pool3d_with_indices_backward_out_cuda",
        "aten::max_pool3d_with_indices_backward.grad_input",
        lambda: to_grad_input(aten.max_pool3d_with_indices_backward, *pooled(3)),
    ),
    Alerting(
        "FractionalMaxPool2d",
        "fractional_max_pool2d_backward_cuda",
        "aten::fractional_max_pool2d_backward.default",
        lambda: backward(nn.FractionalMaxPool2d(2, output_size=3)(leaf(1, 1, 5, 5))),
    ),
    Alerting(
        "fractional_max_pool2d_backward.grad_input",
        "fractional_max_pool2d_backward_cuda",
        "aten::fractional_max_pool2d_backward.grad_input",
        lambda: to_grad_input(aten.fractional_max_pool2d_backward, *fractional(2)),
    ),
    Alerting(
        "FractionalMaxPool3d",
        "fractional_max_pool3d_backward_cuda",
        "aten::fractional_max_pool3d_backward.default",
        lambda: backward(nn.FractionalMaxPool3d(2, output_size=3)(leaf(1, 1, 5, 5, 5))),
    ),
    Alerting(
        "fractional_max_pool3d_backward.grad_input",
        "fractional_max_pool3d_backward_out_cuda",
        "aten::fractional_max_pool3d_backward.grad_input",
        lambda: to_grad_input(aten.fractional_max_pool3d_backward, *fractional(3)),
    ),
    Alerting(
        "MaxUnpool1d",
        "max_unpooling2d_forward_out",
        "aten::max_unpool2d.default",
        lambda: nn.MaxUnpool1d(2)(torch.randn(1, 1, 4), zeros(1, 1, 4)),
        on_cpu=True,
    ),
    Alerting(
        "MaxUnpool2d",
        "max_unpooling2d_forward_out",
        "aten::max_unpool2d.default",
        lambda: nn.MaxUnpool2d(2)(torch.randn(1, 1, 4, 4), zeros(1, 1, 4, 4)),
        on_cpu=True,
    ),
    Alerting(
        "MaxUnpool3d",
        "max_unpooling3d_forward_out",
        "aten::max_unpool3d.default",
        lambda: nn.MaxUnpool3d(2)(torch.randn(1, 1, 2, 2, 2), zeros(1, 1, 2, 2, 2)),
        on_cpu=True,
    ),
    Alerting(
        "EmbeddingBag-max",
        "embedding_bag_backward_cuda_max",
        "aten::_embedding_bag_backward.default",
        lambda: backward(nn.EmbeddingBag(5, 3, mode="max")(zeros(2, 4))),
    ),
    Alerting(
        "grid_sample-2d",
        "grid_sampler_2d_backward_cuda",
        "aten::grid_sampler_2d_backward.default",
        lambda: backward(F.grid_sample(leaf(1, 1, 4, 4), leaf(1, 5, 5, 2), align_corners=False)),
    ),
    Alerting(
        "grid_sample-3d",
        "grid_sampler_3d_backward_cuda",
        "aten::grid_sampler_3d_backward.default",
        lambda: backward(
            F.grid_sample(leaf(1, 1, 4, 4, 4), leaf(1, 5, 5, 5, 3), align_corners=False)
        ),
    ),
    Alerting(
        "cudnn_grid_sampler_backward",
        "cudnn_grid_sampler_backward",
        "aten::cudnn_grid_sampler_backward.default",
        lambda: aten.cudnn_grid_sampler_backward(
            torch.ones(1, 1, 4, 4), torch.ones(1, 5, 5, 2), torch.ones(1, 1, 5, 5)
        ),
        since="2.13",
    ),
    *(
        Alerting(
            f"index_reduce-{reduce}-{'int' if dtype is torch.int64 else 'float'}",
            "index_reduce_cuda",
            "aten::index_reduce_.default",
            lambda reduce=reduce, dtype=dtype: torch.ones(4, dtype=dtype).index_reduce_(
                0, zeros(3), torch.ones(3, dtype=dtype), reduce
            ),
        )
        for reduce in ("prod", "mean", "amax", "amin")
        for dtype in (torch.float32, torch.int64)
    ),
    Alerting(
        "ctc_loss-tuples",
        "ctc_loss_backward_gpu",
        "aten::_ctc_loss_backward.default",
        lambda: ctc(tuple),
    ),
    Alerting(
        "ctc_loss-tensors",
        "ctc_loss_backward_gpu",
        "aten::_ctc_loss_backward.Tensor",
        lambda: ctc(torch.tensor),
    ),
    *(
        Alerting(
            f"nll_loss-{reduction}-{len(sizes) + 2}d",
            "nll_loss2d_forward_out_cuda_template",
            "aten::nll_loss2d_forward.default",
            lambda reduction=reduction, sizes=sizes: F.nll_loss(
                torch.randn(1, 3, *sizes), zeros(1, *sizes), reduction=reduction
            ),
        )
        for reduction in ("mean", "sum")
        for sizes in ((4,), (4, 4), (4, 4, 4))
    ),
    Alerting(
        "CrossEntropyLoss-images",
        "nll_loss2d_forward_out_cuda_template",
        "aten::nll_loss2d_forward.default",
        lambda: nn.CrossEntropyLoss()(torch.randn(1, 3, 4, 4), zeros(1, 4, 4)),
    ),
    *(
        Alerting(
            f"ReflectionPad{n}d",
            f"reflection_pad{n}d_backward_out_cuda",
            f"aten::reflection_pad{n}d_backward.default",
            lambda n=n: backward(F.pad(leaf(1, 1, *(4,) * n), (1, 1) * n, mode="reflect")),
        )
        for n in (1, 3)
    ),
    *(
        Alerting(
            f"reflection_pad{n}d_backward.grad_input",
            f"reflection_pad{n}d_backward_out_cuda",
            f"aten::reflection_pad{n}d_backward.grad_input",
            lambda n=n: to_grad_input(getattr(aten, f"reflection_pad{n}d_backward"), *padded(n)),
        )
        for n in (1, 3)
    ),
    *(
        Alerting(
            f"ReplicationPad{n}d",
            f"replication_pad{n}d_backward_cuda",
            f"aten::replication_pad{n}d_backward.default",
            lambda n=n: backward(F.pad(leaf(1, 1, *(4,) * n), (1, 1) * n, mode="replicate")),
        )
        for n in (1, 2, 3)
    ),
    *(
        Alerting(
            f"replication_pad{n}d_backward.grad_input",
            f"replication_pad{n}d_backward_{'' if n == 1 else 'out_'}cuda",
            f"aten::replication_pad{n}d_backward.grad_input",
            lambda n=n: to_grad_input(getattr(aten, f"replication_pad{n}d_backward"), *padded(n)),
        )
        for n in (1, 2, 3)
    ),
    *(
        Alerting(
            f"scatter-{reduce}-{'int' if dtype is torch.int64 else 'float'}",
            "scatter_reduce_cuda_kernel",
            "aten::scatter_.reduce",
            lambda reduce=reduce, dtype=dtype: torch.ones(4, dtype=dtype).scatter_(
                0, zeros(3), torch.ones(3, dtype=dtype), reduce=reduce
            ),
        )
        for reduce, dtype in (
            ("multiply", torch.float32),
            ("multiply", torch.int64),
            ("add", torch.int64),
        )
    ),
    *(
        Alerting(
            f"scatter_reduce-prod-{'int' if dtype is torch.int64 else 'float'}",
            "scatter_reduce_cuda_prod_",
            "aten::scatter_reduce.two",
            lambda dtype=dtype: torch.scatter_reduce(
                torch.ones(4, dtype=dtype), 0, zeros(3), torch.ones(3, dtype=dtype), "prod"
            ),
        )
        for dtype in (torch.float32, torch.int64)
    ),
    Alerting(
        "histc",
        "_histc_cuda with floating point input",
        "aten::histc.default",
        lambda: torch.histc(torch.randn(9)),
    ),
    Alerting(
        "histc-empty",
        "_histc_cuda with floating point input",
        "aten::histc.default",
        lambda: torch.histc(torch.randn(0), max=1),
    ),
    Alerting(
        "bincount-weights",
        "_bincount_cuda",
        "aten::bincount.default",
        lambda: torch.bincount(zeros(9), torch.randn(9)),
    ),
    *(
        Alerting(
            f"{name}-dim",
            "median CUDA with indices output",
            f"aten::{name}.dim",
            lambda name=name: getattr(torch, name)(torch.randn(3, 3), 0),
        )
        for name in ("median", "nanmedian")
    ),
    Alerting(
        "median-out",
        "median CUDA with indices output",
        "aten::median.dim_values",
        lambda: torch.median(torch.randn(3, 3), 0, out=(torch.empty(3), zeros(3))),
    ),
    Alerting(
        "interpolate-linear",
        "upsample_linear1d_backward_out_cuda",
        "aten::upsample_linear1d_backward.default",
        lambda: interpolate("linear", 1),
    ),
    Alerting(
        "interpolate-bilinear",
        "upsample_bilinear2d_backward_out_cuda",
        "aten::upsample_bilinear2d_backward.default",
        lambda: interpolate("bilinear", 2),
    ),
    Alerting(
        "interpolate-bilinear-antialias",
        "upsample_bilinear2d_aa_backward_out_cuda",
        "aten::_upsample_bilinear2d_aa_backward.default",
        lambda: interpolate("bilinear", 2, antialias=True),
    ),
    Alerting(
        "interpolate-bicubic",
        "upsample_bicubic2d_backward_out_cuda",
        "aten::upsample_bicubic2d_backward.default",
        lambda: interpolate("bicubic", 2),
    ),
    Alerting(
        "interpolate-bicubic-antialias",
        "upsample_bicubic2d_aa_backward_out_cuda",
        "aten::_upsample_bicubic2d_aa_backward.default",
        lambda: interpolate("bicubic", 2, antialias=True),
    ),
    Alerting(
        "interpolate-trilinear",
        "upsample_trilinear3d_backward_out_cuda",
        "aten::upsample_trilinear3d_backward.default",
        lambda: interpolate("trilinear", 3),
    ),
    Alerting(
        "put_",
        "put_",
        "aten::put_.default",
        lambda: torch.ones(4).put_(zeros(3), torch.ones(3)),
        on_cpu=True,
    ),
    Alerting(
        "put_-accumulate",
        "put_",
        "aten::put_.default",
        lambda: torch.ones(4).put_(zeros(3), torch.ones(3), accumulate=True),
    ),
    Alerting(
        "put_-empty",
        "put_",
        "aten::put_.default",
        lambda: torch.ones(4).put_(zeros(0), torch.ones(0)),
        on_cpu=True,
    ),
    Alerting(
        "take",
        "put_",
        "aten::put.default",
        lambda: backward(torch.take(leaf(4), zeros(3))),
    ),
    Alerting(
        "quantized-resize_",
        "quantized_resize_cpu_",
        "aten::resize_.default",
        quantized_resize,
        on_cpu=True,
    ),
)
ALERTING = tuple(each for each in ALERTING if parse_version(each.since) <= TORCH_VERSION)

SILENT: dict[str, Callable[[], Any]] = {
    "AdaptiveAvgPool2d-to-one": lambda: backward(nn.AdaptiveAvgPool2d(1)(leaf(1, 1, 4, 4))),
    "AdaptiveAvgPool3d-to-one": lambda: backward(nn.AdaptiveAvgPool3d(1)(leaf(1, 1, 4, 4, 4))),
    "AdaptiveMaxPool3d-even": lambda: backward(nn.AdaptiveMaxPool3d(2)(leaf(1, 1, 4, 4, 4))),
    "MaxPool2d": lambda: backward(nn.MaxPool2d(3, 1)(leaf(1, 1, 5, 5))),
    "AvgPool2d": lambda: backward(nn.AvgPool2d(3, 1)(leaf(1, 1, 5, 5))),
    "ReflectionPad2d": lambda: backward(nn.ReflectionPad2d(1)(leaf(1, 1, 4, 4))),
    "interpolate-nearest": lambda: interpolate("nearest", 2),
    "EmbeddingBag-sum": lambda: backward(nn.EmbeddingBag(5, 3, mode="sum")(zeros(2, 4))),
    "Embedding": lambda: backward(nn.Embedding(5, 3)(zeros(2, 4))),
    "nll_loss-none": lambda: backward(
        F.nll_loss(leaf(1, 3, 4, 4), zeros(1, 4, 4), reduction="none")
    ),
    "nll_loss-2d-input": lambda: backward(F.nll_loss(leaf(4, 3), zeros(4))),
    "bincount": lambda: torch.bincount(zeros(9)),
    "median": lambda: torch.median(torch.randn(9)),
    "topk": lambda: torch.topk(torch.randn(9), 3),
    "sort": lambda: torch.sort(torch.randn(9)),
    "cumsum": lambda: torch.cumsum(torch.randn(9), 0),
    "cumsum-int": lambda: torch.cumsum(zeros(9), 0),
    "cumprod-int": lambda: torch.cumprod(zeros(9), 0),
    "cumprod-rows": lambda: torch.cumprod(torch.randn(3, 9), 1),
    "index_add": lambda: torch.ones(4).index_add_(0, zeros(3), torch.ones(3)),
    "index_copy": lambda: torch.ones(4).index_copy_(0, zeros(3), torch.ones(3)),
    "index_put": lambda: torch.ones(4).index_put_((zeros(3),), torch.ones(3)),
    "index_put-accumulate": lambda: torch.ones(4).index_put_(
        (zeros(3),), torch.ones(3), accumulate=True
    ),
    "getitem": lambda: backward(leaf(4)[zeros(3)]),
    "gather": lambda: backward(torch.gather(leaf(4), 0, zeros(3))),
    "index_select": lambda: backward(torch.index_select(leaf(4), 0, zeros(3))),
    "repeat_interleave": lambda: backward(torch.repeat_interleave(leaf(4), 2)),
    "scatter": lambda: torch.ones(4).scatter_(0, zeros(3), torch.ones(3)),
    "scatter-value": lambda: torch.ones(4).scatter_(0, zeros(3), 2.0, reduce="multiply"),
    "scatter-add": lambda: torch.ones(4).scatter_(0, zeros(3), torch.ones(3), reduce="add"),
    "scatter-multiply-empty": lambda: torch.ones(4).scatter_(
        0, zeros(0), torch.ones(0), reduce="multiply"
    ),
    "scatter_add": lambda: torch.ones(4).scatter_add_(0, zeros(3), torch.ones(3)),
    "scatter_reduce-amax": lambda: torch.scatter_reduce(
        torch.ones(4), 0, zeros(3), torch.ones(3), "amax"
    ),
    "scatter_reduce-prod-empty": lambda: torch.scatter_reduce(
        torch.ones(4), 0, zeros(0), torch.ones(0), "prod"
    ),
    "Conv2d": lambda: backward(nn.Conv2d(1, 2, 3)(leaf(1, 1, 5, 5))),
    "ConvTranspose2d": lambda: backward(nn.ConvTranspose2d(1, 2, 3)(leaf(1, 1, 5, 5))),
    "LayerNorm": lambda: backward(nn.LayerNorm(4)(leaf(3, 4))),
    "empty": lambda: torch.empty(3),
    "resize_": lambda: torch.ones(3).resize_(9),
}
"""Calls that people fear and PyTorch does not alert on: as if on CUDA they pass without a word."""

WITHOUT_CPU_KERNEL = ("cudnn_grid_sampler_backward",)
WITHOUT_FAKE_TENSORS = ("quantized-resize_",)


def each_of(alerting: Iterable[Alerting]) -> pytest.MarkDecorator:
    """Parametrise by some of the calls, by their names."""
    return pytest.mark.parametrize("each", [pytest.param(each, id=each.name) for each in alerting])


def may_lack_kernel(each: Alerting) -> AbstractContextManager[object]:
    """Let what has no CPU kernel end, after the message, in PyTorch's error."""
    return suppress(NotImplementedError) if each.name in WITHOUT_CPU_KERNEL else nullcontext()


class _Catch(TorchDispatchMode):
    """Keeps the arguments of the calls of one overload."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.caught: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if overload_name(func) == self.op:
            self.caught.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def as_cuda(each: Alerting) -> Callable[[], Any]:
    """The call that alerts, as the dispatcher sees it, with fake CUDA tensors."""
    with _Catch(each.op) as catch, suppress(NotImplementedError):
        each.run()
    assert catch.caught, f"{each.name} does not call {each.op} on PyTorch {torch.__version__}"
    func, args, kwargs = catch.caught[0]

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    with FakeTensorMode(allow_fallback_kernels=False):
        args, kwargs = tree_map_only(torch.Tensor, fake, (args, kwargs))
    return lambda: func(*args, **kwargs)


def alert_given(run: Callable[[], Any], mode: DeterministicMode) -> list[str]:
    """The texts of the warnings that PyTorch or detmode gives about determinism."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mode:
            run()
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if "deterministic" in text or "vary between runs" in text]


@each_of(ALERTING)
def test_raises(each: Alerting) -> None:
    """As if on CUDA, the user's call raises PyTorch's message to the letter."""
    with DeterministicMode(simulate="cuda", substitute=False):  # noqa: SIM117
        with pytest.raises(RuntimeError) as caught:
            each.run()
    # The place tells that detmode raised, and not PyTorch's own alert after it.
    assert str(caught.value).startswith(alert_text(each.caller, warn=False) + "\n  at ")


@each_of(ALERTING)
def test_warns(each: Alerting) -> None:
    """Under warn_only it warns with PyTorch's text, once, and goes on."""
    mode = DeterministicMode(warn_only=True, simulate="cuda", substitute=False)
    with may_lack_kernel(each):
        texts = alert_given(each.run, mode)
        assert len(texts) == 1
        assert texts[0].startswith(alert_text(each.caller, warn=True) + "\n  at ")
    assert [record.alert for record in mode.records if record.action == "warn"] == [each.caller]


@needs.compiler
@each_of(ALERTING)
def test_runs_substituted(each: Alerting) -> None:
    """With substitutes the call runs in strict mode, forward and backward, without a word."""
    mode = DeterministicMode(simulate="cuda")
    assert alert_given(each.run, mode) == []
    actions = {(record.overload, record.action) for record in mode.records}
    assert (each.op, "substitute") in actions
    assert {action for _, action in actions} <= {"substitute", "native"}


@each_of(each for each in ALERTING if each.name not in WITHOUT_FAKE_TENSORS)
def test_fake_cuda_tensors_raise(each: Alerting) -> None:
    """Fake CUDA tensors meet the same message, without simulate and without a GPU."""
    run = as_cuda(each)
    with DeterministicMode(substitute=False):  # noqa: SIM117
        with pytest.raises(RuntimeError) as caught:
            run()
    assert str(caught.value).startswith(alert_text(each.caller, warn=False) + "\n  at ")


@each_of(each for each in ALERTING if each.name not in WITHOUT_FAKE_TENSORS)
def test_fake_cuda_tensors_warn(each: Alerting) -> None:
    """The same under warn_only."""
    run = as_cuda(each)
    mode = DeterministicMode(warn_only=True, substitute=False)
    # What comes after the warning is PyTorch's own tracing, which may need CUDA.
    with suppress(NotImplementedError, RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mode:
            run()
    assert [record.alert for record in mode.records if record.action == "warn"] == [each.caller]


@each_of(each for each in ALERTING if each.on_cpu)
def test_cpu_raises(each: Alerting) -> None:
    """On the CPU itself, PyTorch's four CPU alerts are raised."""
    with DeterministicMode(substitute=False):  # noqa: SIM117
        with pytest.raises(RuntimeError) as caught:
            each.run()
    assert str(caught.value).startswith(alert_text(each.caller, warn=False) + "\n  at ")


@each_of(each for each in ALERTING if each.on_cpu)
def test_cpu_is_substituted(each: Alerting, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four have substitutes on the CPU, which need no compiler there."""
    monkeypatch.setattr(cuda, "unavailable", lambda device_type: "nothing can be launched")
    mode = DeterministicMode()
    assert alert_given(each.run, mode) == []
    assert "substitute" in {record.action for record in mode.records}


@each_of(each for each in ALERTING if not each.on_cpu)
def test_cpu_is_silent(each: Alerting) -> None:
    """What varies on CUDA only passes on the CPU."""
    mode = DeterministicMode(substitute=False)
    with may_lack_kernel(each):
        assert alert_given(each.run, mode) == []


@pytest.mark.parametrize("name", SILENT)
def test_no_false_alarm(name: str) -> None:
    """What does not vary, or has a native path, passes without a word as if on CUDA."""
    mode = DeterministicMode(simulate="cuda", substitute=False)
    assert alert_given(SILENT[name], mode) == []
    assert {record.action for record in mode.records} <= {"native"}


def test_every_alert_is_met() -> None:
    """The calls above meet every caller name that the running PyTorch has."""
    version = ".".join(map(str, TORCH_VERSION))
    if version not in facts.FACTS:
        pytest.skip(f"no facts about PyTorch {version}")
    known = {*facts.FACTS[version]["cpu"], *facts.FACTS[version]["cuda"]} - set(UNREACHABLE)
    met = {each.caller for each in ALERTING} | {"kthvalue CUDA"}
    assert sorted(known - met) == [], "add a call that meets it to ALERTING"
