"""Inductor's options with which timing would decide bits, and their values inside the mode.

Most of it Inductor does itself under its option ``deterministic`` (PyTorch 2.10 and newer): it runs
ATen's kernel where others are candidates, pads no matrix, and gives each reduction one
configuration. Of the other options some would raise under it, and some it does not know of.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

_INDUCTOR = "torch._inductor.config"


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
    module: str = _INDUCTOR


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


def used(option: Option) -> Any:
    """Return the value of an option inside the mode with this PyTorch."""
    if option.used == option.timed and not hasattr(
        importlib.import_module(_INDUCTOR), "deterministic"
    ):
        # PyTorch 2.9: nothing changes its meaning.
        return False
    return option.used


def say_what_may_vary(gm: torch.fx.GraphModule, say_once: Callable[[str, str], None]) -> None:
    """Say what timing or earlier runs decide about a graph, and the mode cannot fix.

    The mode neither sees what the user's own Triton kernels do, nor chooses for them. And which
    sizes are dynamic is decided before it knows of the graph.
    """
    if torch.compiler.config.job_id is not None:
        say_once(
            "job_id",
            "torch.compile: torch.compiler.config.job_id is set (TORCH_COMPILE_JOB_ID), so PyTorch "
            "remembers which sizes varied in earlier runs: a later run may compile other code, "
            "with other bits; unset it",
        )
    for node in gm.graph.nodes:
        number = node.kwargs.get("kernel_idx")
        kernel: Any = None if number is None else kernel_side_table.get_kernel(number)
        if len(getattr(kernel, "configs", ())) > 1:
            say_once(
                f"triton kernel {number}",
                f"torch.compile: the Triton kernel {kernel.base_fn.__name__} has "
                f"{len(kernel.configs)} configurations, of which timing chooses: its results may "
                "vary between runs; give it one to fix it",
            )


@contextlib.contextmanager
def decides_nothing(say_once: Callable[[str, str], None]) -> Iterator[None]:
    """Compile inside the block so that timing decides no bits.

    Args:
        say_once: takes a topic and a text, for an option that the user has given.
    """
    from torch._inductor import compile_fx

    with contextlib.ExitStack() as stack:
        for option in OPTIONS:
            config: Any = importlib.import_module(option.module)
            # Not every PyTorch has them all.
            if hasattr(config, option.name) and getattr(config, option.name) == option.timed:
                if not option.by_default:
                    _say(option, say_once)
                stack.enter_context(config.patch({option.name: used(option)}))
        replaced = _replace_options(compile_fx.compile_fx, say_once)
        stack.enter_context(mock.patch.object(compile_fx, "compile_fx", replaced))
        yield


def _replace_options(
    compile: Callable[..., Any], say_once: Callable[[str, str], None]
) -> Callable[..., Any]:
    """Return Inductor's entry, which sets the options of one ``torch.compile`` on top of all."""

    @functools.wraps(compile)
    def with_options(
        *args: Any, config_patches: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        given = dict(config_patches or {})
        for option in OPTIONS:
            if option.name in given and given[option.name] == option.timed:
                _say(option, say_once)
                given[option.name] = used(option)
        return compile(*args, config_patches=given or None, **kwargs)

    return with_options


def _say(option: Option, say_once: Callable[[str, str], None]) -> None:
    say_once(
        option.name,
        f"torch.compile: {option.name}={option.timed!r} would let timing decide bits; under "
        f"DeterministicMode {option.instead}",
    )
