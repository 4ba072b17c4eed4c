"""PyTorch's own settings: read, set for a block, restored whatever happens inside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import torch

T = TypeVar("T")

_get_flag = torch._C._get_deterministic_algorithms
_get_warn_only = torch._C._get_deterministic_algorithms_warn_only
_set_flag = torch._C._set_deterministic_algorithms
_get_fill = torch._C._get_deterministic_fill_uninitialized_memory
_set_fill = torch._C._set_deterministic_fill_uninitialized_memory


class Saved(Generic[T]):
    """A value to be put back, told apart by identity."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Setting(Generic[T]):
    """One setting of the process, which several blocks and calls change for a while.

    Several threads may do so at once, and end in another order than that of their beginnings. What
    was saved by one that ends while a later one is open is left to the next: whoever is last to
    end restores the first value.

    Args:
        read: gives the value.
        write: sets it.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, read: Callable[[], T], write: Callable[[T], object]) -> None:
        self._read = read
        self._write = write
        self._open: list[Saved[T]] = []

    def save(self, new: T | None = None) -> Saved[T]:
        """Remember the value until :meth:`restore`, and set ``new`` unless that is ``None``."""
        with self._lock:
            saved = Saved(self._read())
            self._open.append(saved)
            if new is not None:
                self._write(new)
        return saved

    def restore(self, saved: Saved[T]) -> None:
        """Set what was saved, or leave it to the one who saved next."""
        with self._lock:
            later = self._open[-1]
            if later is saved:
                self._write(saved.value)
                self._open.pop()
                return
            position = self._open.index(saved)
            self._open[position + 1].value = saved.value
            del self._open[position]


@cache
def _inductor_config() -> Any:
    # Kept: a block may be left when Python ends, and imports no more.
    # torch.use_deterministic_algorithms imports the same module; older versions lack the field.
    import torch._inductor.config as config

    return config


def _set_inductor(deterministic: bool | None) -> None:
    if deterministic is not None:
        _inductor_config().deterministic = deterministic


# The C setters also work where torch.backends is frozen.
FLAG = Setting(
    lambda: (_get_flag(), _get_warn_only()), lambda pair: _set_flag(pair[0], warn_only=pair[1])
)
FILL = Setting(_get_fill, _set_fill)
CUDNN_DETERMINISTIC = Setting(torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic)
CUDNN_BENCHMARK = Setting(torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark)
INDUCTOR_DETERMINISTIC: Setting[bool | None] = Setting(
    lambda: getattr(_inductor_config(), "deterministic", None), _set_inductor
)


class Block:
    """The settings of one entered mode."""

    def __init__(self, warn_only: bool, fill_uninitialized_memory: bool | None) -> None:
        self._saved: list[tuple[Setting[Any], Saved[Any]]] = []
        try:
            self._save(INDUCTOR_DETERMINISTIC, None)
            self._save(FLAG, None)
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            self._save(CUDNN_DETERMINISTIC, True)
            self._save(CUDNN_BENCHMARK, False)
            self._save(FILL, fill_uninitialized_memory)
        except BaseException:
            self.close()
            raise

    def _save(self, setting: Setting[Any], new: Any) -> None:
        self._saved.append((setting, setting.save(new)))

    def close(self) -> None:
        """Restore what was found."""
        while self._saved:
            setting, saved = self._saved.pop()
            setting.restore(saved)


class changed:
    """Settings for the length of one call, and back as they were.

    Args:
        changes: each setting with its value.
    """

    __slots__ = ("_changes", "_saved")

    def __init__(self, *changes: tuple[Setting[Any], Any]) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self._saved = [setting.save(value) for setting, value in self._changes]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for (setting, _), saved in zip(self._changes, self._saved):
            setting.restore(saved)


def flag(mode: bool) -> changed:
    """PyTorch's deterministic flag, and no ``warn_only``."""
    return changed((FLAG, (mode, False)))


def strict() -> changed:
    """All that PyTorch's deterministic paths need.

    Under ``warn_only`` the backward of attention is left to vary, and with cuDNN's benchmark, which
    programs turn on inside a block, too, timing chooses the algorithm.
    """
    return changed((FLAG, (True, False)), (CUDNN_BENCHMARK, False))


def unfilled() -> changed:
    """No filling of uninitialised memory: for substitutes, which write every element they make."""
    return changed((FILL, False))
