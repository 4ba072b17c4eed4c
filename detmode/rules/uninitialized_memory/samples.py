"""Samples of uninitialised memory."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from detmode.table.samples import Maker, Samples, sample


def _quantized(
    make: Maker, *shape: int, size: Sequence[int] = (), dtype: torch.dtype = torch.quint8
) -> dict[str, Any]:
    with warnings.catch_warnings():
        # Quantized tensors are deprecated since 2.13.
        warnings.simplefilter("ignore", UserWarning)
        values = torch.quantize_per_tensor(make.normal(*shape), 0.5, 3, dtype)
    return {"self": values, "size": size}


def _per_channel(make: Maker) -> dict[str, Any]:
    one = torch.ones(2, device=make.device)
    with warnings.catch_warnings():
        # As in `_quantized`.
        warnings.simplefilter("ignore", UserWarning)
        values = torch.quantize_per_channel(make.normal(2, 3), one, 0 * one, 0, torch.qint8)
    return {"self": values, "size": [9]}


def _packed(make: Maker) -> dict[str, Any]:
    weight = torch.quantize_per_tensor(make.normal(3, 4), 0.5, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, make.normal(3))
    x = _quantized(make, 2, 4)["self"]
    return {"X": x, "W_prepack": packed, "Y_scale_i": 0.5, "Y_zero_point_i": 3}


_WRITTEN: dict[str, Callable[[Maker], dict[str, Any]]] = {
    "_quantized::linear": _packed,
    "quantized::linear": _packed,
    "quantized::linear_relu": _packed,
    "aten::reflection_pad2d": lambda make: {
        "self": _quantized(make, 1, 3, 4, 5)["self"],
        "padding": [1, 1, 1, 1],
    },
    "aten::index_select": lambda make: {
        "self": _quantized(make, 3, 4)["self"],
        "dim": 0,
        "index": torch.tensor([2, 0], device="cpu"),
    },
}


_resizes = partial(sample, op="aten::resize", device="cpu")


_MAKE = {
    "aten::empty.memory_format": lambda make: {"size": [3, 4], "dtype": make.dtype},
    "aten::empty_like": lambda make: {"self": make.normal(3, 4)},
    "aten::empty_permuted": lambda make: {"size": [3, 4], "physical_layout": [1, 0]},
    "aten::empty_strided": lambda make: {"size": [3, 4], "stride": [4, 1]},
    "aten::new_empty": lambda make: {"self": make.normal(3), "size": [3, 4]},
    "aten::new_empty_strided": lambda make: {
        "self": make.normal(3),
        "size": [3, 4],
        "stride": [4, 1],
    },
    "aten::resize": lambda make: {"self": make.normal(3), "size": [5, 5]},
}
_UNFILLED: dict[str, Callable[[Maker], dict[str, Any]]] = {
    "aten::empty.memory_format": lambda make: {"size": [9], "dtype": torch.bits8},
    "aten::empty_like": lambda make: {"self": _quantized(make, 4)["self"]},
    "aten::empty_permuted": lambda make: {
        "size": [3, 4],
        "physical_layout": [1, 0],
        "dtype": torch.bits8,
    },
    "aten::empty_strided": lambda make: {"size": [3], "stride": [1], "dtype": torch.bits16},
    "aten::new_empty": lambda make: {"self": make.normal(3), "size": [9], "dtype": torch.bits8},
    "aten::new_empty_strided": lambda make: {
        "self": make.normal(3),
        "size": [3],
        "stride": [1],
        "dtype": torch.bits8,
    },
    "aten::_empty_affine_quantized": lambda make: {
        "size": [9],
        "scale": 0.5,
        "zero_point": 3,
        "dtype": torch.qint32,
    },
    "aten::_empty_per_channel_affine_quantized": lambda make: {
        "size": [3],
        "scales": torch.ones(3, device="cpu"),
        "zero_points": torch.zeros(3, device="cpu"),
        "axis": 0,
        "dtype": torch.qint8,
    },
    "aten::empty_quantized": lambda make: {"size": [9], "qtensor": _quantized(make, 4)["self"]},
}

_OUT: dict[str, Callable[[Maker], dict[str, Any]]] = {
    "aten::_empty_affine_quantized.out": lambda make: {"size": [4]},
    "aten::_empty_per_channel_affine_quantized.out": lambda make: {
        "size": [4],
        "scales": torch.ones(4, device="cpu"),
        "zero_points": torch.zeros(4, device="cpu"),
        "axis": 0,
    },
    "aten::empty_quantized.out": lambda m: {"size": [4], "qtensor": _quantized(m, 4)["self"]},
    "aten::empty_like.out": lambda make: {"self": _quantized(make, 4)["self"]},
    "aten::empty_permuted.out": lambda make: {"size": [4], "physical_layout": [0]},
    "aten::empty_strided.out": lambda make: {"size": [4], "stride": [1]},
    "aten::new_empty.out": lambda make: {"self": make.normal(3), "size": [4]},
    "aten::new_empty_strided.out": lambda m: {"self": m.normal(3), "size": [4], "stride": [1]},
}
_OUTS = {
    op: lambda make, rest=rest: {**rest(make), "out": _quantized(make, 4)["self"]}
    for op, rest in _OUT.items()
}


SAMPLES = Samples(
    cases=(
        *(
            sample(
                "filled", make, op=op, dtypes=(torch.float32, torch.int64), variants=("cpu", "meta")
            )
            for op, make in _MAKE.items()
        ),
        *(sample("not_filled", make, op=op, device="cpu") for op, make in _UNFILLED.items()),
        *(sample("not_filled", make, op=op, device="cpu") for op, make in _OUTS.items()),
        *(sample("written", make, op=op, device="cpu") for op, make in _WRITTEN.items()),
        _resizes("quantized", lambda m: _quantized(m, 4, size=[9]), "odd_sizes"),
        _resizes("quantized_int8", lambda m: _quantized(m, 4, size=[3, 9], dtype=torch.qint8)),
        _resizes("quantized_int32", lambda m: _quantized(m, 4, size=[63], dtype=torch.qint32)),
        _resizes("quantized_smaller", lambda m: _quantized(m, 4, size=[2])),
        _resizes("quantized_empty", lambda m: _quantized(m, 0, size=[2]), "empty"),
    ),
    errors=(_resizes("quantized_per_channel", _per_channel),),
    not_applicable={
        "bench": "ATen's own operator resizes, and PyTorch has it on the CPU alone",
        "collisions": "every new element is written once",
        "non_contiguous": "resizing makes a tensor contiguous",
        "channels_last": "ATen resizes quantized tensors to contiguous ones only",
        "negative_dim": "resizing takes no dimension",
    },
)
