"""Samples of convolutions."""

from typing import Any

from detmode.rules.convolution import CALLER_DECIDES, FUSED
from detmode.table.inputs import of_schema
from detmode.table.samples import Maker, Samples, made_by


def _call(
    make: Maker,
    op: str,
    *,
    transposed: bool = False,
    deterministic: bool = True,
    benchmark: bool = False,
) -> dict[str, Any]:
    known = {
        **dict.fromkeys(("input", "self"), make.normal(2, 3, 7, 6)),
        "weight": make.normal(3, 4, 3, 3) if transposed else make.normal(4, 3, 3, 3),
        "bias": make.normal(4),
        **{name: [1, 1] for name in ("stride", "padding", "dilation")},
        "transposed": transposed,
        "output_padding": [0, 0],
        "groups": 1,
        **dict.fromkeys(("grad_output", "z"), make.normal(2, 4, 7, 6)),
        "alpha": 1.0,
        "bias_sizes": [4],
        "output_mask": [True, True, True],
        "deterministic": deterministic,
        "benchmark": benchmark,
        **dict.fromkeys(("cudnn_enabled", "allow_tf32"), True),
    }
    return of_schema(op, known)


def _of(op: str, name: str, **more: Any) -> Any:
    return made_by(_call, op=op, variants=("cpu",))(name, op, **more)


SAMPLES = Samples(
    cases=(
        _of("aten::convolution", "forward"),
        _of("aten::convolution", "transposed", transposed=True),
        _of("aten::convolution_backward", "backward"),
        *(
            _of(op, name, transposed="transpose" in op, **settings)
            for op in CALLER_DECIDES
            for name, settings in (
                ("deterministic", {}),
                ("nondeterministic", {"deterministic": False}),
                ("timed", {"benchmark": True}),
            )
        ),
        *(_of(op, "fused") for op in FUSED),
    ),
)
