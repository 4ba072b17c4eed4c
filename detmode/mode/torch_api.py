"""PyTorch's switches under their own names, for the whole thread instead of a block."""

from __future__ import annotations

from typing import Any

import torch

from detmode.mode.deterministic_mode import DeterministicMode, current_mode
from detmode.mode.options import check_bool
from detmode.reports.report import Report

are_deterministic_algorithms_enabled = torch.are_deterministic_algorithms_enabled
is_deterministic_algorithms_warn_only_enabled = torch.is_deterministic_algorithms_warn_only_enabled
get_deterministic_debug_mode = torch.get_deterministic_debug_mode

_switched_on: DeterministicMode | None = None
_last: DeterministicMode | None = None
"""The mode that was switched on last, which may be off again."""


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False, **options: Any) -> None:
    """As :func:`torch.use_deterministic_algorithms`, with detmode's substitutes.

    ``True`` enters a :class:`DeterministicMode` in this thread until ``False`` leaves it;
    :func:`detmode.report` returns its report, then and later.

    >>> detmode.use_deterministic_algorithms(True, overrides={"torch.histc": "allow"})
    >>> counts = torch.histc(torch.ones(9), bins=3)
    >>> print(detmode.report().verdict)
    not checked: ...
    >>> detmode.use_deterministic_algorithms(False)

    Args:
        mode: whether the mode is to be on.
        warn_only: as of :class:`DeterministicMode`.
        options: the other arguments of :class:`DeterministicMode`, with ``True`` only.

    Raises:
        TypeError: an argument is no bool, in PyTorch's words; or options are given with ``False``.
        ValueError: :class:`DeterministicMode` refuses an option.
        RuntimeError: it would leave the mode while an inner ``with`` block is open.
    """
    global _switched_on, _last
    if not isinstance(mode, bool):
        raise TypeError(
            "_set_deterministic_algorithms(): argument 'mode' (position 1) must be bool, not "
            f"{type(mode).__name__}"
        )
    check_bool("warn_only", warn_only)
    if options and not mode:
        raise TypeError(
            f"use_deterministic_algorithms(False): {', '.join(options)} would change nothing; give "
            "options with True"
        )
    # Before the other one is left, which stays on where an option is refused.
    new = DeterministicMode(warn_only, **options) if mode else None
    if _switched_on is not None:
        # An interrupt may have left it without a word here.
        if _switched_on.is_entered:
            if current_mode() is not _switched_on:
                raise RuntimeError(
                    "use_deterministic_algorithms: another DeterministicMode block is open inside "
                    "this one, or it was switched on in another thread; leave that block first"
                )
            _switched_on.__exit__(None, None, None)
        _switched_on = None
    if new is None:
        torch.use_deterministic_algorithms(False)
    else:
        _switched_on = _last = new
        new.__enter__()


def report() -> Report:
    """Return the report of the innermost mode that acts in this thread.

    Outside of blocks it is that of the mode which :func:`use_deterministic_algorithms` has switched
    on last.

    >>> detmode.use_deterministic_algorithms(True)
    >>> detmode.use_deterministic_algorithms(False)
    >>> len(detmode.report())
    0

    Raises:
        RuntimeError: there is none.
    """
    mode = current_mode() or _last
    if mode is None:
        raise RuntimeError(
            "detmode.report(): no mode is on; call detmode.use_deterministic_algorithms(True) "
            "first, or enter a DeterministicMode"
        )
    return mode.report()


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """As :func:`torch.set_deterministic_debug_mode`: "default" or 0, "warn" or 1, "error" or 2.

    >>> detmode.set_deterministic_debug_mode("warn")
    >>> detmode.get_deterministic_debug_mode()
    1
    >>> detmode.set_deterministic_debug_mode("default")

    Raises:
        TypeError: ``debug_mode`` is neither int nor str, in PyTorch's words.
        RuntimeError: it has another value, in PyTorch's words.
    """
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    if isinstance(debug_mode, str):
        modes = {"default": 0, "warn": 1, "error": 2}
        if debug_mode not in modes:
            raise RuntimeError(
                "invalid value of debug_mode, expected one of `default`, `warn`, `error`, but got "
                f"{debug_mode}"
            )
        debug_mode = modes[debug_mode]
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(
            f"invalid value of debug_mode, expected 0, 1, or 2, but got {debug_mode}"
        )
    use_deterministic_algorithms(debug_mode != 0, warn_only=debug_mode == 1)
