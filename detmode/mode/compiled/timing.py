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
from typing import Any
from unittest import mock

import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from detmode.environment.inductor import INDUCTOR, OPTIONS, Option


def used(option: Option) -> Any:
    """Return the value of an option inside the mode with this PyTorch."""
    if option.used == option.timed and not hasattr(
        importlib.import_module(INDUCTOR), "deterministic"
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
    """Compile inside the block so that timing decides no bits."""
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
        patches = dict(config_patches or {})
        for option in OPTIONS:
            if option.name in patches and patches[option.name] == option.timed:
                _say(option, say_once)
                patches[option.name] = used(option)
        return compile(*args, config_patches=patches or None, **kwargs)

    return with_options


def _say(option: Option, say_once: Callable[[str, str], None]) -> None:
    say_once(
        option.name,
        f"torch.compile: {option.name}={option.timed!r} would let timing decide bits; under "
        f"DeterministicMode {option.instead}",
    )
