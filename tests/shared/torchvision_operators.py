"""torchvision's backward operators: its own where it is installed, else ones that stand for them.

torchvision is no requirement of the tests. The stand-ins have its schemas, its shape rules, and on
the CPU the families' references.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from detmode.verify.cases import samples_of

FAMILIES = ("deform_conv2d", "roi_pools")
POOLED = "SymInt pooled_height, SymInt pooled_width"
SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
PAIRS = ", ".join(
    f"SymInt {name}_{axis}" for name in ("stride", "pad", "dilation") for axis in "hw"
)
SCHEMAS = (
    f"_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, {POOLED}, {SIZES}, "
    "int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, {POOLED}, "
    f"{SIZES}) -> Tensor",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, "
    f"float spatial_scale, {POOLED}, int sampling_ratio, {SIZES}) -> Tensor",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, "
    f"float spatial_scale, {POOLED}, {SIZES}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, "
    f"Tensor mask, Tensor bias, {PAIRS}, SymInt groups, SymInt offset_groups, bool use_mask) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, "
    f"{POOLED}, int sampling_ratio, bool aligned) -> Tensor",
)
"""torchvision's own, of 0.29."""


INSTALLED = importlib.util.find_spec("torchvision") is not None


@contextmanager
def operators() -> Iterator[None]:
    """Inside, ``torch.ops.torchvision`` has the operators."""
    if INSTALLED:
        importlib.import_module("torchvision")
        yield
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    for family in FAMILIES:
        for op, reference in samples_of(family).references.items():
            name = op.partition("::")[2]
            library.impl(name, _rounding_once(reference), "CPU")
            library.impl(name, _deform_meta if "deform" in name else _pool_meta, "Meta")
    library.impl("roi_align", _roi_align_meta, "Meta")
    try:
        yield
    finally:
        library._destroy()


def _rounding_once(reference: Callable[..., Any]) -> Callable[..., Any]:
    """``reference``, in float where it is asked for float16."""

    def run(grad: Tensor, *arguments: Any) -> Any:
        if grad.dtype is not torch.float16:
            return reference(grad, *arguments)
        results = reference(grad.float(), *(_wide(argument) for argument in arguments))
        if isinstance(results, Tensor):
            return results.half()
        return tuple(result.half() for result in results)

    return run


def _wide(value: Any) -> Any:
    halved = isinstance(value, Tensor) and value.dtype is torch.float16
    return value.float() if halved else value


def _pool_meta(grad: Tensor, rois: Tensor, *arguments: Any) -> Tensor:
    torch._check(grad.dtype == rois.dtype, lambda: "grad and rois have different types")
    # sampling_ratio comes before the sizes in one operator and behind them in another.
    given = [value for value in arguments if isinstance(value, int) and type(value) is not bool]
    first = 3 if len(given) == 7 and not isinstance(arguments[-1], bool) else 2
    return grad.new_empty(given[first : first + 4])


def _roi_align_meta(input: Tensor, rois: Tensor, scale: float, *arguments: Any) -> Tensor:
    return input.new_empty(rois.shape[0], input.shape[1], *arguments[:2])


def _deform_meta(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in arguments[:5])
