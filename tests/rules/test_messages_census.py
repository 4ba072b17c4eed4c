"""Each alert of PyTorch's, met through the user's own call, with PyTorch's exact words."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from detmode import DeterministicMode, cuda
from detmode.mode.messages import alert_text
from detmode.table.names import overload_name
from detmode.table.rule_table import TORCH_VERSION
from tests.rules.test_alerts import UNREACHABLE
from tests.shared import needs
from tests.shared import table_facts as facts

aten = torch.ops.aten
Call = Callable[[], Any]
"""On CPU tensors; the backward of a result that wants a gradient belongs to it."""


def leaf(*shape: int) -> torch.Tensor:
    """A tensor that wants a gradient."""
    return torch.randn(*shape, requires_grad=True)


def zeros(*shape: int) -> torch.Tensor:
    """Indices, classes, bins: everything collides."""
    return torch.zeros(*shape, dtype=torch.int64)


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


def ctc(lengths: Callable[[list[int]], Any]) -> torch.Tensor:
    """A CTC loss and its backward, with lengths as tuples or tensors."""
    log_probs = leaf(8, 2, 4).log_softmax(2)
    targets = torch.tensor([[1, 1, 2], [3, 3, 3]])
    return F.ctc_loss(log_probs, targets, lengths([8, 8]), lengths([3, 3]))


def interpolate(mode: str, n: int, **more: Any) -> torch.Tensor:
    """Interpolate n dimensions to a larger size."""
    return F.interpolate(leaf(1, 1, *(4,) * n), size=(7,) * n, mode=mode, **more)


def pad(mode: str, n: int) -> torch.Tensor:
    """Pad n dimensions."""
    return F.pad(leaf(1, 1, *(4,) * n), (1, 1) * n, mode=mode)


def pads(caller: str, op: str, mode: str, n: int, caller_of_out: str) -> dict[Any, dict[str, Call]]:
    """The two calls by which n dimensions' padding alerts."""
    into = getattr(aten, op)
    return {
        (caller, f"{op}.default"): {f"{mode}-{n}d": lambda: pad(mode, n)},
        (caller_of_out, f"{op}.grad_input"): {
            f"{op}.grad_input": lambda: to_grad_input(into, *padded(n))
        },
    }


def in_both_dtypes(name: str, run: Callable[[torch.Tensor, torch.Tensor], Any]) -> dict[str, Call]:
    """A call with floats and with integers: where it writes, and what."""
    return {
        f"{name}-{kind}": lambda dtype=dtype: run(
            torch.ones(4, dtype=dtype), torch.ones(3, dtype=dtype)
        )
        for kind, dtype in (("float", torch.float32), ("int", torch.int64))
    }


CALLS: dict[tuple[str, str], dict[str, Call]] = {
    ("adaptive_avg_pool2d_backward_cuda", "_adaptive_avg_pool2d_backward.default"): {
        "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(3)(leaf(1, 1, 4, 4)),
        "AdaptiveAvgPool1d": lambda: nn.AdaptiveAvgPool1d(3)(leaf(1, 1, 4)),
        "interpolate-area": lambda: interpolate("area", 2),
    },
    ("adaptive_avg_pool3d_backward_cuda", "_adaptive_avg_pool3d_backward.default"): {
        "AdaptiveAvgPool3d": lambda: nn.AdaptiveAvgPool3d(3)(leaf(1, 1, 4, 4, 4))
    },
    ("adaptive_avg_pool3d_backward_out_cuda", "adaptive_avg_pool3d_backward.grad_input"): {
        "adaptive_avg_pool3d_backward.grad_input": lambda: to_grad_input(
            aten.adaptive_avg_pool3d_backward, torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 4, 4, 4)
        )
    },
    ("adaptive_max_pool2d_backward_cuda", "adaptive_max_pool2d_backward.default"): {
        "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d(3)(leaf(1, 1, 4, 4)),
        "AdaptiveMaxPool1d": lambda: nn.AdaptiveMaxPool1d(3)(leaf(1, 1, 4)),
    },
    ("avg_pool3d_backward_cuda", "avg_pool3d_backward.default"): {
        "AvgPool3d": lambda: nn.AvgPool3d(2)(leaf(1, 1, 4, 4, 4))
    },
    ("max_pool3d_with_indices_backward_cuda", "max_pool3d_with_indices_backward.default"): {
        "MaxPool3d": lambda: nn.MaxPool3d(3)(leaf(1, 1, 5, 5, 5))
    },
    ("max_pool3d_with_indices_backward_out_cuda", "max_pool3d_with_indices_backward.grad_input"): {
        "max_pool3d_with_indices_backward.grad_input": lambda: to_grad_input(
            aten.max_pool3d_with_indices_backward, *pooled(3)
        )
    },
    ("fractional_max_pool2d_backward_cuda", "fractional_max_pool2d_backward.default"): {
        "FractionalMaxPool2d": lambda: nn.FractionalMaxPool2d(2, 3)(leaf(1, 1, 5, 5))
    },
    ("fractional_max_pool2d_backward_cuda", "fractional_max_pool2d_backward.grad_input"): {
        "fractional_max_pool2d_backward.grad_input": lambda: to_grad_input(
            aten.fractional_max_pool2d_backward, *fractional(2)
        )
    },
    ("fractional_max_pool3d_backward_cuda", "fractional_max_pool3d_backward.default"): {
        "FractionalMaxPool3d": lambda: nn.FractionalMaxPool3d(2, 3)(leaf(1, 1, 5, 5, 5))
    },
    ("fractional_max_pool3d_backward_out_cuda", "fractional_max_pool3d_backward.grad_input"): {
        "fractional_max_pool3d_backward.grad_input": lambda: to_grad_input(
            aten.fractional_max_pool3d_backward, *fractional(3)
        )
    },
    ("max_unpooling2d_forward_out", "max_unpool2d.default"): {
        "MaxUnpool1d": lambda: nn.MaxUnpool1d(2)(torch.randn(1, 1, 4), zeros(1, 1, 4)),
        "MaxUnpool2d": lambda: nn.MaxUnpool2d(2)(torch.randn(1, 1, 4, 4), zeros(1, 1, 4, 4)),
    },
    ("max_unpooling3d_forward_out", "max_unpool3d.default"): {
        "MaxUnpool3d": lambda: nn.MaxUnpool3d(2)(torch.randn(1, 1, 2, 2, 2), zeros(1, 1, 2, 2, 2))
    },
    ("embedding_bag_backward_cuda_max", "_embedding_bag_backward.default"): {
        "EmbeddingBag-max": lambda: nn.EmbeddingBag(5, 3, mode="max")(zeros(2, 4))
    },
    ("grid_sampler_2d_backward_cuda", "grid_sampler_2d_backward.default"): {
        "grid_sample-2d": lambda: F.grid_sample(
            leaf(1, 1, 4, 4), leaf(1, 5, 5, 2), align_corners=False
        )
    },
    ("grid_sampler_3d_backward_cuda", "grid_sampler_3d_backward.default"): {
        "grid_sample-3d": lambda: F.grid_sample(
            leaf(1, 1, 4, 4, 4), leaf(1, 5, 5, 5, 3), align_corners=False
        )
    },
    ("cudnn_grid_sampler_backward", "cudnn_grid_sampler_backward.default"): {
        "cudnn_grid_sampler_backward": lambda: aten.cudnn_grid_sampler_backward(
            torch.ones(1, 1, 4, 4), torch.ones(1, 5, 5, 2), torch.ones(1, 1, 5, 5)
        )
    },
    ("index_reduce_cuda", "index_reduce_.default"): {
        name: call
        for reduce in ("prod", "mean", "amax", "amin")
        for name, call in in_both_dtypes(
            f"index_reduce-{reduce}",
            lambda into, source, reduce=reduce: into.index_reduce_(0, zeros(3), source, reduce),
        ).items()
    },
    ("ctc_loss_backward_gpu", "_ctc_loss_backward.default"): {"ctc_loss": lambda: ctc(tuple)},
    ("ctc_loss_backward_gpu", "_ctc_loss_backward.Tensor"): {
        "ctc_loss-tensors": lambda: ctc(torch.tensor)
    },
    ("nll_loss2d_forward_out_cuda_template", "nll_loss2d_forward.default"): {
        "CrossEntropyLoss": lambda: nn.CrossEntropyLoss()(leaf(1, 3, 4, 4), zeros(1, 4, 4)),
        **{
            f"nll_loss-{reduction}-{n}d": lambda n=n, reduction=reduction: F.nll_loss(
                torch.randn(1, 3, *(4,) * n), zeros(1, *(4,) * n), reduction=reduction
            )
            for reduction in ("mean", "sum")
            for n in (1, 2, 3)
        },
    },
    **{
        key: calls
        for n in (1, 3)
        for name in (f"reflection_pad{n}d_backward",)
        for key, calls in pads(f"{name}_out_cuda", name, "reflect", n, f"{name}_out_cuda").items()
    },
    **{
        key: calls
        for n, out in ((1, ""), (2, "out_"), (3, "out_"))
        for name in (f"replication_pad{n}d_backward",)
        for key, calls in pads(f"{name}_cuda", name, "replicate", n, f"{name}_{out}cuda").items()
    },
    ("scatter_reduce_cuda_kernel", "scatter_.reduce"): {
        "scatter-add-int": lambda: zeros(4).scatter_(0, zeros(3), zeros(3), reduce="add"),
        **in_both_dtypes(
            "scatter-multiply",
            lambda into, source: into.scatter_(0, zeros(3), source, reduce="multiply"),
        ),
    },
    ("scatter_reduce_cuda_prod_", "scatter_reduce.two"): in_both_dtypes(
        "scatter_reduce-prod", lambda into, source: into.scatter_reduce(0, zeros(3), source, "prod")
    ),
    ("_histc_cuda with floating point input", "histc.default"): {
        "histc": lambda: torch.histc(torch.randn(9)),
        "histc-empty": lambda: torch.histc(torch.randn(0), max=1),
    },
    ("_bincount_cuda", "bincount.default"): {
        "bincount-weights": lambda: torch.bincount(zeros(9), torch.randn(9))
    },
    ("median CUDA with indices output", "median.dim"): {
        "median-dim": lambda: torch.median(torch.randn(3, 3), 0)
    },
    ("median CUDA with indices output", "nanmedian.dim"): {
        "nanmedian-dim": lambda: torch.nanmedian(torch.randn(3, 3), 0)
    },
    ("median CUDA with indices output", "median.dim_values"): {
        "median-out": lambda: torch.median(torch.randn(3, 3), 0, out=(torch.empty(3), zeros(3)))
    },
    **{
        (f"upsample_{name}_backward_out_cuda", f"{private}upsample_{name}_backward.default"): {
            f"interpolate-{name}": lambda mode=mode, n=n, more=more: interpolate(mode, n, **more)
        }
        for name, private, mode, n, more in (
            ("linear1d", "", "linear", 1, {}),
            ("bilinear2d", "", "bilinear", 2, {}),
            ("bilinear2d_aa", "_", "bilinear", 2, {"antialias": True}),
            ("bicubic2d", "", "bicubic", 2, {}),
            ("bicubic2d_aa", "_", "bicubic", 2, {"antialias": True}),
            ("trilinear3d", "", "trilinear", 3, {}),
        )
    },
    ("put_", "put_.default"): {
        "put_": lambda: torch.ones(4).put_(zeros(3), torch.ones(3)),
        "put_-accumulate": lambda: torch.ones(4).put_(zeros(3), torch.ones(3), accumulate=True),
        "put_-empty": lambda: torch.ones(4).put_(zeros(0), torch.ones(0)),
    },
    ("put_", "put.default"): {"take": lambda: torch.take(leaf(4), zeros(3))},
    ("quantized_resize_cpu_", "resize_.default"): {
        "quantized-resize_": lambda: torch._empty_affine_quantized(
            [4], scale=1.0, zero_point=0, dtype=torch.quint8
        ).resize_(9)
    },
}
"""By PyTorch's caller name, and the overload that alerts, the calls that people make."""

ON_CPU = ("MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "put_", "put_-empty", "quantized-resize_")
"""Calls on which PyTorch alerts on the CPU too."""
SINCE = {"cudnn_grid_sampler_backward": (2, 13)}
"""The first PyTorch version that alerts, where it is not the oldest that is supported."""


@dataclass(frozen=True)
class Alerting:
    """One call that alerts.

    Args:
        name: the name that is called.
        caller: PyTorch's caller name.
        op: the overload that alerts, as the dispatcher sees it.
        run: makes the call.
    """

    name: str
    caller: str
    op: str
    run: Call

    def __str__(self) -> str:
        return self.name

    @property
    def may_end_in(self) -> type[Exception] | tuple[()]:
        """PyTorch's error of a call that has no CPU kernel."""
        return NotImplementedError if "cudnn" in self.name else ()


def run(call: Call) -> None:
    """Make a call, and the backward of its first tensor."""
    for tensor in tree_leaves(call())[:1]:
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            tensor.sum().backward()


ALERTING = [
    Alerting(name, caller, f"aten::{op}", partial(run, call))
    for (caller, op), calls in CALLS.items()
    if SINCE.get(caller, (0,)) <= TORCH_VERSION
    for name, call in calls.items()
]

SILENT: dict[str, Call] = {
    "AdaptiveAvgPool2d-to-one": lambda: nn.AdaptiveAvgPool2d(1)(leaf(1, 1, 4, 4)),
    "AdaptiveAvgPool3d-to-one": lambda: nn.AdaptiveAvgPool3d(1)(leaf(1, 1, 4, 4, 4)),
    "AdaptiveMaxPool3d-even": lambda: nn.AdaptiveMaxPool3d(2)(leaf(1, 1, 4, 4, 4)),
    "MaxPool2d": lambda: nn.MaxPool2d(3, 1)(leaf(1, 1, 5, 5)),
    "AvgPool2d": lambda: nn.AvgPool2d(3, 1)(leaf(1, 1, 5, 5)),
    "ReflectionPad2d": lambda: nn.ReflectionPad2d(1)(leaf(1, 1, 4, 4)),
    "interpolate-nearest": lambda: interpolate("nearest", 2),
    "EmbeddingBag-sum": lambda: nn.EmbeddingBag(5, 3, mode="sum")(zeros(2, 4)),
    "Embedding": lambda: nn.Embedding(5, 3)(zeros(2, 4)),
    "nll_loss-none": lambda: F.nll_loss(leaf(1, 3, 4, 4), zeros(1, 4, 4), reduction="none"),
    "nll_loss-2d-input": lambda: F.nll_loss(leaf(4, 3), zeros(4)),
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
    "getitem": lambda: leaf(4)[zeros(3)],
    "gather": lambda: torch.gather(leaf(4), 0, zeros(3)),
    "index_select": lambda: torch.index_select(leaf(4), 0, zeros(3)),
    "repeat_interleave": lambda: torch.repeat_interleave(leaf(4), 2),
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
    "Conv2d": lambda: nn.Conv2d(1, 2, 3)(leaf(1, 1, 5, 5)),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(1, 2, 3)(leaf(1, 1, 5, 5)),
    "LayerNorm": lambda: nn.LayerNorm(4)(leaf(3, 4)),
    "empty": lambda: torch.empty(3),
    "resize_": lambda: torch.ones(3).resize_(9),
}
"""Calls that people fear and PyTorch does not alert on: as if on CUDA they pass without a word."""

MEETINGS = [
    pytest.param(each, place, id=f"{each}-{place}")
    for each in ALERTING
    for place, does in (
        ("simulated", True),
        ("fake", "quantized" not in each.name),
        ("cpu", each.name in ON_CPU),
    )
    if does
]
"""Every call, as if on CUDA, with fake CUDA tensors, and on the CPU if it alerts there."""


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


def as_cuda(each: Alerting) -> Call:
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


def alert_given(
    run: Call, mode: DeterministicMode, may_end_in: type[Exception] | tuple[()] = ()
) -> list[str]:
    """The texts of the warnings that PyTorch or detmode gives about determinism."""
    with warnings.catch_warnings(record=True) as caught, suppress(may_end_in):
        warnings.simplefilter("always")
        with mode:
            run()
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if "deterministic" in text or "vary between runs" in text]


def met(each: Alerting, place: str, **settings: Any) -> tuple[Call, DeterministicMode]:
    """The call at one of the places, and a mode that alerts there as PyTorch does."""
    simulate = "cuda" if place == "simulated" else None
    mode = DeterministicMode(simulate=simulate, substitute=False, **settings)
    return as_cuda(each) if place == "fake" else each.run, mode


@pytest.mark.parametrize(("each", "place"), MEETINGS)
def test_raises(each: Alerting, place: str) -> None:
    """The user's call raises PyTorch's message to the letter."""
    run, mode = met(each, place)
    with mode, pytest.raises(RuntimeError) as caught:
        run()
    # The place tells that detmode raised, and not PyTorch's own alert after it.
    assert str(caught.value).startswith(alert_text(each.caller, warn=False) + "\n  at ")


@pytest.mark.parametrize(("each", "place"), MEETINGS)
def test_warns(each: Alerting, place: str) -> None:
    """Under warn_only it warns with PyTorch's text, once, and goes on."""
    run, mode = met(each, place, warn_only=True)
    # With fake tensors, what comes after the warning is PyTorch's own tracing, which may need CUDA.
    texts = alert_given(run, mode, RuntimeError if place == "fake" else each.may_end_in)
    assert len(texts) == 1
    assert texts[0].startswith(alert_text(each.caller, warn=True) + "\n  at ")
    assert [record.alert for record in mode.records if record.action == "warn"] == [each.caller]


@needs.compiler
@pytest.mark.parametrize("each", ALERTING, ids=str)
def test_runs_substituted(each: Alerting) -> None:
    """With substitutes the call runs in strict mode, forward and backward, without a word."""
    mode = DeterministicMode(simulate="cuda")
    assert alert_given(each.run, mode) == []
    actions = {(record.overload, record.action) for record in mode.records}
    assert (each.op, "substitute") in actions
    assert {action for _, action in actions} <= {"substitute", "native"}


@pytest.mark.parametrize("each", ALERTING, ids=str)
def test_cpu(each: Alerting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that vary there have a substitute, which needs no compiler; the others pass."""
    monkeypatch.setattr(cuda, "unavailable", lambda device_type: "nothing can be launched")
    mode = DeterministicMode(substitute=each.name in ON_CPU)
    assert alert_given(each.run, mode, each.may_end_in) == []
    assert ("substitute" in {record.action for record in mode.records}) == (each.name in ON_CPU)


@pytest.mark.parametrize("name", SILENT)
def test_no_false_alarm(name: str) -> None:
    """Calls that do not vary, or have a native path, pass without a word as if on CUDA."""
    mode = DeterministicMode(simulate="cuda", substitute=False)
    assert alert_given(lambda: run(SILENT[name]), mode) == []
    assert {record.action for record in mode.records} <= {"native"}


def test_every_alert_is_met() -> None:
    """The calls above meet every caller name that the running PyTorch has."""
    version = ".".join(map(str, TORCH_VERSION))
    if version not in facts.FACTS:
        pytest.skip(f"no facts about PyTorch {version}")
    known = {*facts.FACTS[version]["cpu"], *facts.FACTS[version]["cuda"]} - set(UNREACHABLE)
    called = {each.caller for each in ALERTING} | {"kthvalue CUDA"}
    assert sorted(known - called) == [], "add a call that meets it to CALLS"
