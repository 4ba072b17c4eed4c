"""The sample of a mode's calls: which of them are made twice, and the level that hands them over.

What is drawn is not whether a call is sampled, but how many calls are left until the next one that
is. So a call that is not sampled costs a decrement and a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

import torch

from detmode.bits.tensors import is_foreign
from detmode.mode.base_mode import BaseMode
from detmode.mode.levels import Level
from detmode.mode.overload_info import OverloadInfo
from detmode.process.dispatch import trace_paused, untrace_dispatch, with_tensors
from detmode.process.rank import rank_and_size
from detmode.table.twins import SITE

__tracebackhide__ = True

_MOST = 2.0**62

Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Makes a call as the level does that has received it."""

Receive = Callable[[Level, Any, tuple[Any, ...], dict[str, Any], Run, "str | None"], Any]
"""Makes a sampled call: gets the level that has received it, what was called, the arguments, what
makes the call once, and the site that compiled code gives."""


def gap_after(number: int, rate: float) -> int:
    """Draw how many calls after one the next is sampled: each with the same probability.

    The gaps depend on the seed of PyTorch's default generator and on the rank alone.

    Args:
        number: of the call; 0 before the first one.
        rate: the share of calls that are sampled, above 0 and at most 1.
    """
    if rate == 1:
        return 1
    # Both may change between two draws. A hash is drawn 30 times sooner than by Random.
    seed = f"{torch.default_generator.initial_seed()} {rank_and_size()[0]} {number}"
    drawn = int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "little")
    # The number of failures before the first success, by the inverse of its distribution.
    return 1 + int(min(math.log((drawn + 1) / 2**64) / math.log1p(-rate), _MOST))


class _Recheck(Protocol):
    """The part of a recheck that makes the sampled calls.

    Attributes:
        left: the calls until the next sampled one; 0 or less if the call of that number could not
            be sampled, so that the next one is.
    """

    left: int

    @property
    def receive(self) -> Receive:
        """Makes a sampled call."""


class _RecheckedLevel(Level):
    """A level that counts the calls that it receives, and hands the sampled ones over.

    It receives all calls from the dispatcher, or, if it lists, those of listed operators from their
    kernels, which intercept them.
    """

    def __init__(self, mode: BaseMode, recheck: _Recheck) -> None:
        super().__init__(mode)
        self._recheck = recheck

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # An outer level gets the calls of the innermost one, which has counted them.
        if self.is_innermost and not self.intercepts_listed:
            recheck = self._recheck
            recheck.left -= 1
            # A subclass desugars first; the operators that it is made of come here, too.
            if recheck.left <= 0 and not any(map(is_foreign, types)):
                kwargs = kwargs or {}
                run = partial(Level.__torch_dispatch__, self, func, types)
                if isinstance(func, torch._ops.OpOverload):
                    args = with_tensors(func, args)
                with trace_paused():
                    return recheck.receive(self, func, args, kwargs, run, kwargs.get(SITE))
        return Level.__torch_dispatch__(self, func, types, args, kwargs)

    def intercept(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: bool,
        site: str | None = None,
    ) -> Any:
        """Intercept a call, which is counted here if it comes from a kernel."""
        if self.intercepts_listed and self.is_innermost:
            recheck = self._recheck
            recheck.left -= 1
            if recheck.left <= 0:
                run = partial(super().intercept, overload, traced=traced, site=site)
                return recheck.receive(
                    self, overload.twin or overload.func, args, kwargs, run, site
                )
        return super().intercept(overload, args, kwargs, traced, site)


untrace_dispatch(_RecheckedLevel)
_rechecked: dict[type[Level], type[_RecheckedLevel]] = {}


def rechecked(level: type[Level]) -> type[_RecheckedLevel]:
    """Return the class of levels that hand over the sampled calls, and are else of a class."""
    if level not in _rechecked:
        _rechecked[level] = type(f"Rechecked{level.__name__}", (_RecheckedLevel, level), {})
    return _rechecked[level]
