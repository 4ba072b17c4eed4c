"""PyTorch's own settings: read, set for a block, restored whatever happens inside."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

import torch

_get_flag = torch._C._get_deterministic_algorithms
_get_warn_only = torch._C._get_deterministic_algorithms_warn_only
_set_flag = torch._C._set_deterministic_algorithms
_get_fill = torch._C._get_deterministic_fill_uninitialized_memory
_set_fill = torch._C._set_deterministic_fill_uninitialized_memory


@dataclass
class Settings:
    """Every setting that the mode touches, as it was read."""

    deterministic: bool
    warn_only: bool
    fill_uninitialized_memory: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    inductor_deterministic: bool | None

    @classmethod
    def read(cls) -> Settings:
        """The settings as they are now."""
        return cls(
            deterministic=_get_flag(),
            warn_only=_get_warn_only(),
            fill_uninitialized_memory=_get_fill(),
            cudnn_deterministic=torch._C._get_cudnn_deterministic(),
            cudnn_benchmark=torch._C._get_cudnn_benchmark(),
            inductor_deterministic=getattr(_inductor_config(), "deterministic", None),
        )

    def restore(self) -> None:
        """Set everything back. The C setters also work where ``torch.backends`` is frozen."""
        _set_flag(self.deterministic, warn_only=self.warn_only)
        _set_fill(self.fill_uninitialized_memory)
        torch._C._set_cudnn_deterministic(self.cudnn_deterministic)
        torch._C._set_cudnn_benchmark(self.cudnn_benchmark)
        if self.inductor_deterministic is not None:
            _inductor_config().deterministic = self.inductor_deterministic


def _inductor_config() -> Any:
    # torch.use_deterministic_algorithms imports the same module; older versions lack the field.
    import torch._inductor.config as config

    return config


class Block:
    """The settings of one entered mode.

    The settings belong to the process and several threads may have entered modes, so blocks may end
    in another order than that of their beginnings. A block that ends while a later one is open
    leaves what it had saved to the next: whoever is last to leave restores the first state.
    """

    _open: ClassVar[list[Block]] = []
    _lock = threading.Lock()

    def __init__(self, warn_only: bool, fill_uninitialized_memory: bool | None) -> None:
        with Block._lock:
            self._saved = Settings.read()
            try:
                torch.use_deterministic_algorithms(True, warn_only=warn_only)
                torch._C._set_cudnn_deterministic(True)
                torch._C._set_cudnn_benchmark(False)
                if fill_uninitialized_memory is not None:
                    _set_fill(fill_uninitialized_memory)
            except BaseException:
                self._saved.restore()
                raise
            Block._open.append(self)

    def close(self) -> None:
        """Restore what was found, or leave it to the block that was opened next."""
        with Block._lock:
            position = Block._open.index(self)
            del Block._open[position]
            if position < len(Block._open):
                Block._open[position]._saved = self._saved
            else:
                self._saved.restore()


class flag:
    """PyTorch's deterministic flag for the length of one call, and back as it was."""

    __slots__ = ("_before", "_mode", "_warn_only")

    def __init__(self, mode: bool, *, warn_only: bool = False) -> None:
        self._mode = mode
        self._warn_only = warn_only

    def __enter__(self) -> None:
        self._before = (_get_flag(), _get_warn_only())
        _set_flag(self._mode, warn_only=self._warn_only)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _set_flag(self._before[0], warn_only=self._before[1])


class unfilled:
    """No filling of uninitialised memory: for substitutes, which write every element they make."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _get_fill()
        _set_fill(False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _set_fill(self._before)
