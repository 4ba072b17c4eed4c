"""Inductor's options with which timing would decide bits, and their values inside the mode."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

INDUCTOR = "torch._inductor.config"


class Option(NamedTuple):
    """An option with which timing decides bits, or would.

    Attributes:
        name: as in ``torch.compile(options=...)``.
        timed: the value with which timing decides.
        used: the value that holds inside the mode; ``timed`` itself where ``deterministic`` changes
            the meaning of the option.
        instead: the effect inside the mode, and how to choose otherwise; one line.
        by_default: true if PyTorch itself sets ``timed``: then the mode speaks of it only where it
            is given to one ``torch.compile``.
        module: the module that has the option.
    """

    name: str
    timed: Any
    used: Any
    instead: str
    by_default: bool = False
    module: str = INDUCTOR


_GEMM = (
    "ATen's kernels run where templates are candidates; to have a template (PyTorch 2.10 or "
    "newer), name its backend alone in max_autotune_gemm_backends: the first one is used"
)
_TUNED = "no reduction is tuned; pointwise kernels are, with PyTorch 2.10 or newer"

OPTIONS = (
    Option("deterministic", False, True, "it stays on", by_default=True),
    Option("shape_padding", True, True, "no matrix is padded", by_default=True),
    Option("max_autotune", True, True, _GEMM),
    Option("max_autotune_gemm", True, True, _GEMM),
    Option("max_autotune_pointwise", True, True, _TUNED),
    Option("coordinate_descent_tuning", True, True, _TUNED),
    Option("benchmark_fusion", True, False, "all fusions that Inductor proposes are made"),
    Option("benchmark_combo_kernel", True, False, "kernels are combined without being timed"),
    Option(
        "combo_kernel_per_subkernel_blocks",
        True,
        False,
        "the parts of a combined kernel share their block sizes, which are not tuned",
    ),
    Option(
        "triton.multi_kernel",
        1,
        0,
        "a reduction has the one form that Inductor's heuristics name; 2 and 3 name a form too",
    ),
    Option(
        "activation_memory_budget_runtime_estimator",
        "profile",
        "flops",
        "what is recomputed in backward is chosen by counting operations",
        module="torch._functorch.config",
    ),
)


def value_of(option: Option) -> Any:
    """Return the value of an option; ``None`` if its module is not loaded, or lacks it.

    Importing the module would load the compiler, which takes seconds.
    """
    return getattr(sys.modules.get(option.module), option.name, None)
