"""Inductor's options with which timing would decide bits, and what holds inside the mode instead.

Most of it Inductor does itself under its option ``deterministic``: it runs ATen's kernel where
others are candidates, pads no matrix, and gives each reduction one configuration. The rest of the
options would raise under it, or are options that it does not know of.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

_INDUCTOR = "torch._inductor.config"


class Option(NamedTuple):
    """An option with which timing decides bits, or would.

    Attributes:
        name: as in ``torch.compile(options=...)``.
        timed: the value with which timing decides.
        used: the value that holds inside the mode; ``timed`` itself where ``deterministic`` changes
            the meaning of the option.
        instead: the effect inside the mode, and how to choose otherwise; one line.
        module: the module that has the option.
    """

    name: str
    timed: Any
    used: Any
    instead: str
    module: str = _INDUCTOR


_GEMM = (
    "ATen's kernels run where templates are candidates; to have a template, name its backend alone "
    "in max_autotune_gemm_backends: the first one is used"
)

OPTIONS = (
    Option("deterministic", False, True, "it stays on"),
    Option("max_autotune", True, True, _GEMM),
    Option("max_autotune_gemm", True, True, _GEMM),
    Option(
        "coordinate_descent_tuning",
        True,
        True,
        "pointwise kernels alone are tuned; a reduction keeps one configuration",
    ),
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
        "torch._functorch.config",
    ),
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
                if option.timed:
                    _say(option, say_once)
                stack.enter_context(config.patch({option.name: option.used}))
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
                given[option.name] = option.used
        return compile(*args, config_patches=given or None, **kwargs)

    return with_options


def _say(option: Option, say_once: Callable[[str, str], None]) -> None:
    say_once(
        option.name,
        f"torch.compile: {option.name}={option.timed!r} would let timing decide bits; under "
        f"DeterministicMode {option.instead}",
    )
