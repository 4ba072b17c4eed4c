"""Samples of the backward of nearest interpolation in 3-D."""

from detmode.table.conditions import FLOATING
from detmode.table.inputs import Arguments
from detmode.table.samples import Maker, Sample, Samples, sample


def _backward(make: Maker, batch: int) -> Arguments:
    size, out = [2, 3, 4], [4, 6, 8]
    grad_output = make.normal(batch, 3, *out)
    return {"grad_output": grad_output, "output_size": out, "input_size": [batch, 3, *size]}


def _cases(op: str) -> tuple[Sample, ...]:
    return (
        sample(
            "up",
            lambda m: _backward(m, 2),
            "collisions",
            op=op,
            dtypes=FLOATING,
            variants=("cpu", "mps"),
        ),
        sample("empty", lambda m: _backward(m, 0), "empty", op=op, device="mps"),
    )


SAMPLES = Samples(
    cases=(
        *_cases("aten::upsample_nearest3d_backward"),
        *_cases("aten::_upsample_nearest_exact3d_backward"),
    ),
)
