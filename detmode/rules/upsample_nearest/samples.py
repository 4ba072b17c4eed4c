"""Samples of the backward of nearest interpolation in 3-D."""

from detmode.table.conditions import FLOATING
from detmode.table.inputs import Arguments
from detmode.table.samples import Maker, Sample, Samples, made_by, sample


def _backward(make: Maker, batch: int) -> Arguments:
    size, out = [2, 3, 4], [4, 6, 8]
    grad_output = make.normal(batch, 3, *out)
    return {"grad_output": grad_output, "output_size": out, "input_size": [batch, 3, *size]}


def _cases(op: str) -> tuple[Sample, ...]:
    case = made_by(_backward, op=op, dtypes=FLOATING)
    return (
        case("up", 2, covers="collisions", variants=("cpu", "mps")),
        sample("empty", lambda m: _backward(m, 0), "empty", op=op, device="mps"),
    )


SAMPLES = Samples(
    cases=(
        *_cases("aten::upsample_nearest3d_backward"),
        *_cases("aten::_upsample_nearest_exact3d_backward"),
    ),
)
