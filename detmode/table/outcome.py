"""The outcome of a call, in the words of overrides and reports: an action, and a guarantee."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

ActionName: TypeAlias = Literal["allow", "warn", "error", "native", "substitute"]
"""An action on a call: what an override asks for, and what a report tells of."""


class Guarantee(str, Enum):
    """The scope within which a result has the same bits, named as in NVIDIA's CCCL.

    It equals its text, and prints as it:

    >>> print(detmode.RUN_TO_RUN, detmode.RUN_TO_RUN == "run_to_run")
    run_to_run True
    """

    RUN_TO_RUN = "run_to_run"
    """The same bits in every run on the same GPU model with the same software."""
    GPU_TO_GPU = "gpu_to_gpu"
    """The same bits on any GPU."""

    def __str__(self) -> str:
        return self.value


RUN_TO_RUN = Guarantee.RUN_TO_RUN
GPU_TO_GPU = Guarantee.GPU_TO_GPU
