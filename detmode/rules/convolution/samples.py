"""Samples of convolutions."""

from functools import partial
from typing import Any

from detmode.table.samples import Maker, Samples, sample


def _convolution(make: Maker, *, transposed: bool = False, **more: object) -> dict[str, Any]:
    return {
        "input": make.normal(2, 3, 7, 6),
        "weight": make.normal(3, 4, 3, 3) if transposed else make.normal(4, 3, 3, 3),
        "bias": make.normal(4),
        "stride": [1, 1],
        "padding": [1, 1],
        "dilation": [1, 1],
        "transposed": transposed,
        "output_padding": [0, 0],
        "groups": 1,
        **more,
    }


def _backward(make: Maker) -> dict[str, Any]:
    forward = _convolution(make)
    del forward["bias"]
    return {
        "grad_output": make.normal(2, 4, 7, 6),
        **forward,
        "bias_sizes": [4],
        "output_mask": [True, True, True],
    }


def _decided(make: Maker, op: str, *, deterministic: bool, benchmark: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "benchmark": benchmark,
        "deterministic": deterministic,
        "cudnn_enabled": True,
    }
    if op == "aten::_convolution.deprecated":
        return _convolution(make, **settings)
    settings["allow_tf32"] = True
    if op == "aten::_convolution":
        return _convolution(make, **settings)
    del settings["cudnn_enabled"]
    return _cudnn(make, transposed="transpose" in op, **settings)


def _cudnn(make: Maker, *, transposed: bool = False, **more: object) -> dict[str, Any]:
    arguments = _convolution(make, transposed=transposed)
    del arguments["bias"], arguments["transposed"]
    if not transposed:
        del arguments["output_padding"]
    arguments["self"] = arguments.pop("input")
    return {**arguments, **more}


_DECIDED = ("_convolution", "_convolution.deprecated", "cudnn_convolution")
_FUSED = ("aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu")


def _fused(make: Maker, op: str) -> dict[str, Any]:
    more: dict[str, Any] = {"bias": make.normal(4)}
    if op == _FUSED[1]:
        more.update(z=make.normal(2, 4, 7, 6), alpha=1.0)
    return _cudnn(make, **more)


SAMPLES = Samples(
    cases=(
        *(
            sample(name, make, op=f"aten::{op}", variants=("cpu",))
            for name, op, make in (
                ("forward", "convolution", _convolution),
                ("transposed", "convolution", lambda make: _convolution(make, transposed=True)),
                ("backward", "convolution_backward", _backward),
            )
        ),
        *(
            sample(
                name,
                partial(
                    _decided, op=f"aten::{op}", deterministic=deterministic, benchmark=benchmark
                ),
                op=f"aten::{op}",
                variants=("cpu",),
            )
            for op in (*_DECIDED, "cudnn_convolution_transpose")
            for name, deterministic, benchmark in (
                ("deterministic", True, False),
                ("nondeterministic", False, False),
                ("timed", True, True),
            )
        ),
        *(sample("fused", partial(_fused, op=op), op=op, variants=("cpu",)) for op in _FUSED),
    ),
)
