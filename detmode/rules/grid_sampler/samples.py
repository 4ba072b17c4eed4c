"""Samples of the backward of grid sampling."""

from functools import partial
from typing import Any

from detmode.sample import Maker, Sample


def _sampled(make: Maker, sizes: tuple[int, ...]) -> dict[str, Any]:
    n = len(sizes)
    return {
        "grad_output": make.normal(2, 3, *sizes),
        "input": make.normal(2, 3, *(4,) * n),
        "grid": make.normal(2, *sizes, n).clamp(-2, 2),
        "interpolation_mode": 0,
        "padding_mode": 0,
        "align_corners": False,
        "output_mask": [True, True],
    }


def _cudnn(make: Maker) -> dict[str, Any]:
    grid = make.normal(2, 6, 5, 2).clamp(-1, 1)
    return {"self": make.normal(2, 3, 4, 4), "grid": grid, "grad_output": make.normal(2, 3, 6, 5)}


SAMPLES = (
    *(
        Sample(
            name=name,
            op=f"aten::grid_sampler_{len(sizes)}d_backward",
            make=partial(_sampled, sizes=sizes),
            covers=("collisions",),
            device=device,
        )
        for sizes in ((6, 5), (3, 6, 5))
        for name, device in (
            ("more_samples_than_pixels", "cuda"),
            ("metal", "mps"),
            ("host", "cpu"),
        )
    ),
    Sample(name="cudnn", op="aten::cudnn_grid_sampler_backward", make=_cudnn),
    Sample(name="host", op="aten::cudnn_grid_sampler_backward", make=_cudnn, device="cpu"),
)
