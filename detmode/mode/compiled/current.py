"""The mode for which the current thread compiles graphs."""

from __future__ import annotations

from torch._functorch._aot_autograd.schemas import AOTConfig

import detmode
from detmode.mode.base_mode import BaseMode
from detmode.mode.levels import innermost_mode

AT_ONCE = "force_non_lazy_backward_lowering"
"""The field of AOTAutograd's configuration by which a backward is compiled with its forward."""

CAN_COMPILE = hasattr(AOTConfig, AT_ONCE)
"""False for PyTorch 2.8, which compiles a backward when it first runs, outside of the hook."""


def key_of(mode: BaseMode) -> str:
    """Return what decides which operators stay whole."""
    if not mode.compiles_for:
        mode.compiles_for = (
            f"{detmode.__version__} {mode.table.digest} {mode.overrides} {mode.simulate}"
            if mode.compiles and CAN_COMPILE
            else "operator by operator"
        )
    return mode.compiles_for


class _Thread:
    """The purpose for which the current thread compiles graphs.

    In the autograd threads of its backward activation checkpointing calls compiled functions again.
    """

    @property
    def mode(self) -> BaseMode | None:
        """The innermost mode."""
        return innermost_mode()

    @property
    def key(self) -> str | None:
        """Dynamo guards on it."""
        mode = self.mode
        return None if mode is None else key_of(mode)


thread = _Thread()
