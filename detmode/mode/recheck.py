"""Calls made twice: a sample of a mode's calls, made again on the same inputs and compared.

The digests of both results stay on their device. They are read at the end of a window, the one
moment at which the host waits for the device.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed

from detmode.cuda.undo import Lock
from detmode.environment.dispatch import resolve_views, untraced, without_modes
from detmode.environment.rank import rank_of
from detmode.mode.messages import with_place
from detmode.mode.repetition.digests import Digests
from detmode.mode.repetition.repeatable import StartingState, data_of, why_never, why_not
from detmode.mode.repetition.snapshot import CannotCopyError
from detmode.mode.repetition.tensors import (
    as_bytes,
    form_of,
    has_data,
    is_capturing,
    is_foreign,
    is_strided,
    to_digest,
)
from detmode.sites.graphs import site_from
from detmode.sites.observers import repeated, repetition
from detmode.table.call import InterceptedCall
from detmode.table.call_site import CallSite
from detmode.table.overload_info import OverloadInfo
from detmode.table.twins import SITE

if TYPE_CHECKING:
    from detmode.mode.deterministic_mode import DeterministicMode

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

WINDOW = 32
"""The calls made twice after which a window ends."""

_KNOWN_TO_VARY = frozenset(("allow", "warn"))
"""Actions under which the bits of a call are not promised."""
_BYTES = 16
"""The bytes of a digest."""
_MOST = 2.0**62

_Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class VaryingCall:
    """A call that gave other bits when it was made again.

    Args:
        overload: ``"aten::mm.default"``.
        number: the position of the call among those that the mode has received, counted from 1.
        site: "file:line" of the user's code, as in a report's row.
        module: the ``nn.Module`` path, or ``None``.
        rank: the rank of the process, or ``None`` if it is the only one.
        digests: by what differs ("output 0", "mutated self"): the digests of the two results, 32
            hexadecimal digits each, with the form where that differs.
        rule: the family and the action of the table's row; ``None`` without a row.
    """

    overload: str
    number: int
    site: str
    module: str | None
    rank: int | None
    digests: dict[str, tuple[str, str]]
    rule: str | None


_lock = Lock()
"""One for all modes: a lock that dies with its mode would lose an interrupt that comes then."""


class RecheckError(RuntimeError):
    """Calls gave other bits when they were made again on the same inputs.

    Attributes:
        calls: a :class:`~detmode.mode.recheck.VaryingCall` for each.
    """

    def __init__(self, message: str, calls: tuple[VaryingCall, ...] = ()) -> None:
        super().__init__(message)
        self.calls = calls


class _Pair(NamedTuple):
    """The two results of one name: their forms, and the numbers of their digests."""

    name: str
    forms: tuple[str, str]
    numbers: tuple[int, int]


class _MadeTwice(NamedTuple):
    """A call whose digests have not been read; it keeps no tensor of the call."""

    overload: str
    number: int
    place: CallSite
    rule: str | None
    pairs: list[_Pair]


class Recheck:
    """The sample of one mode's calls, and what it has found.

    The numbers of the sampled calls depend on the seed of PyTorch's default generator and on the
    rank alone. Several threads may make calls; their order is then the order of the numbers.

    Args:
        rate: the share of calls that are sampled, above 0 and at most 1.
        logger: gets a line for each call that is not made twice.
    """

    def __init__(self, rate: float, logger: logging.Logger) -> None:
        self._rate = rate
        self._logger = logger
        self._process = os.getpid()
        self._digests: Digests | None = None
        self._waiting: list[_MadeTwice] = []
        self._overloads: dict[Any, tuple[OverloadInfo, str | None]] = {}
        self._sampled = self._made_twice = self._differing = 0
        # The number of the next sampled call, and of the calls until then; below zero if the call
        # of that number could not be sampled, so that the next one is.
        self._number = self.left = 0
        self._draw()

    def head(self) -> dict[str, float]:
        """Return what a report says of the calls made twice."""
        return {
            "rate": self._rate,
            "calls": self._number - self.left,
            "sampled": self._sampled,
            "made_twice": self._made_twice,
            "differing": self._differing,
        }

    def begin(self, level: DeterministicMode) -> None:
        """Count the calls that a level receives, and make the sampled ones twice."""
        # In the object alone, so that a mode without recheck pays nothing.
        if level.lists:
            # The class's own stays for other modes.
            level._intercept = MethodType(_intercepting(self, level), level)  # type: ignore[method-assign]
        else:
            # PyTorch wants a method.
            level.__torch_dispatch__ = MethodType(_dispatching(self, level), level)  # type: ignore[method-assign]

    @staticmethod
    def end(level: DeterministicMode) -> None:
        """Undo :meth:`begin`."""
        for name in ("_intercept", "__torch_dispatch__"):
            vars(level).pop(name, None)

    def compare(self, error: BaseException | None = None) -> None:
        """End the window: read its digests, and wait for the device to do so.

        Args:
            error: the exception by which the block ends, which goes on: differences are logged.

        Raises:
            RecheckError: two digests of a call differ.
        """
        calls = _lock.run(self._take)
        if not calls:
            return
        message = _message(calls)
        if error is None:
            raise RecheckError(message, calls)
        self._logger.error("%s", message)

    def _draw(self) -> None:
        """Draw the number of the next sampled call: each is sampled with the same probability."""
        gap = 1
        if self._rate < 1:
            seed = f"{torch.default_generator.initial_seed()} {_rank()} {self._number}"
            drawn = 1 - random.Random(seed).random()
            gap += int(min(math.log(drawn) / math.log1p(-self._rate), _MOST))
        self._number += gap
        self.left = gap

    def receive(
        self,
        level: DeterministicMode,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: _Run,
        site: str | None,
    ) -> Any:
        """Make a sampled call, which a level has received; again, if it can be.

        Args:
            level: the level.
            func: the overload, a twin or a higher-order operator.
            args: the positional arguments.
            kwargs: the others.
            run: ``run(args, kwargs)`` makes the call as the level does.
            site: given by compiled code, in which the user has no frame.
        """
        if (
            repetition.actions is not None
            or not level._innermost
            # In a forked process the mode is inherited.
            or os.getpid() != self._process
        ):
            return run(args, kwargs)
        number = self._number = self._number - self.left
        self._draw()
        self._sampled += 1
        if not isinstance(func, torch._ops.OpOverload):
            return run(args, kwargs)
        resolve_views()
        known = self._overloads.get(func)
        if known is None:
            overload = level.overload_info(func) or OverloadInfo(func)
            known = self._overloads[func] = overload, why_never(overload)
        overload, reason = known
        plain = {name: value for name, value in kwargs.items() if name != SITE}
        call = InterceptedCall(overload, args, plain, level._simulate)
        reason = reason or why_not(overload, call.tensors, (*args, *plain.values()))
        if reason is None and _is_allowed(level, call):
            reason = "allowed"
        if reason is None:
            _find_site(level, call, site)
            try:
                start = StartingState(overload, args, kwargs, written_alone=True)
            except (CannotCopyError, RuntimeError) as error:
                reason = f"not copied: {error!r}"
        if reason is not None:
            self._pass_over(call, reason)
            return run(args, kwargs)
        result = run(args, kwargs)
        with start.generators_kept():
            # A level that lists has no modes outside, and registered kernels act inside a call.
            outside = nullcontext() if level.lists else without_modes()
            reason = self._make_again(call, number, result, start, run, outside)
        if reason is not None:
            self._pass_over(call, reason)
        if len(self._waiting) >= WINDOW:
            self.compare()
        return result

    def _make_again(
        self,
        call: InterceptedCall,
        number: int,
        result: Any,
        start: StartingState,
        run: _Run,
        outside: AbstractContextManager[None],
    ) -> str | None:
        """Make a call again; return the reason if the results cannot be compared."""
        func = call.overload.func
        with without_modes():
            first = data_of(func, call.args, call.kwargs, result)
        if not first:
            return "no outputs"
        if not all(map(has_data, first.values())):
            return "no data"
        try:
            args, kwargs = start.again()
            with repeated() as actions, outside:
                result = run(args, kwargs)
            if not _KNOWN_TO_VARY.isdisjoint(actions):
                return "allowed"
            with without_modes():
                _lock.run(self._add, call, number, first, data_of(func, args, kwargs, result))
        except Exception as error:
            return f"not made again: {error!r}"
        return None

    def _add(
        self,
        call: InterceptedCall,
        number: int,
        first: dict[str, Tensor],
        second: dict[str, Tensor],
    ) -> None:
        """Digest what a call gave at first and again, without waiting for it."""
        nothing = torch.empty(0)
        pairs = []
        for name in dict.fromkeys((*first, *second)):
            sides = first.get(name, nothing), second.get(name, nothing)
            if sides[0] is sides[1] or _are_same_on_host(*sides):
                continue  # the first is so for an argument that is not written
            if self._digests is None:
                self._digests = Digests()
            numbers = [self._digests.add(to_digest(each)) for each in sides]
            forms = [form_of(each).partition(" strides")[0] for each in sides]
            pairs.append(_Pair(name, (forms[0], forms[1]), (numbers[0], numbers[1])))
        assert call.site is not None
        row = call.row
        rule = f"{row.family}, {type(row.rule.action).__name__.lower()}" if row else None
        self._waiting.append(_MadeTwice(call.name, number, call.site, rule, pairs))
        self._made_twice += 1

    def _take(self) -> tuple[VaryingCall, ...]:
        """Read the digests of the window; return the calls whose digests differ."""
        if not self._waiting or is_capturing() or os.getpid() != self._process:
            return ()
        waiting, self._waiting = self._waiting, []
        numbers = [n for made in waiting for pair in made.pairs for n in pair.numbers]
        taken = self._digests.take(numbers) if self._digests is not None else b""
        digests = (taken[begin : begin + _BYTES].hex() for begin in range(0, len(taken), _BYTES))
        found = []
        for overload, number, (site, module), rule, pairs in waiting:
            differing = {}
            for pair in pairs:
                sides = next(digests), next(digests)
                if pair.forms[0] != pair.forms[1]:
                    sides = f"{sides[0]} {pair.forms[0]}", f"{sides[1]} {pair.forms[1]}"
                if sides[0] != sides[1]:
                    differing[pair.name] = sides
            if differing:
                place = site.text, module, _rank()
                found.append(VaryingCall(overload, number, *place, differing, rule))
        self._differing += len(found)
        return tuple(found)

    def _pass_over(self, call: InterceptedCall, reason: str) -> None:
        self._logger.debug("%s is sampled, and not made twice: %s", call.name, reason)


def _dispatching(recheck: Recheck, level: DeterministicMode) -> Callable[..., Any]:
    """Return the ``__torch_dispatch__`` of a level whose calls are counted."""
    receive = type(level).__torch_dispatch__

    @untraced
    def dispatch(
        level: DeterministicMode,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        # An outer level gets the calls of the innermost one, which has counted them.
        left = recheck.left = recheck.left - level._innermost
        # A subclass desugars first; the operators that it is made of come here, too.
        if left > 0 or any(map(is_foreign, types)):
            return receive(level, func, types, args, kwargs)
        kwargs = kwargs or {}
        run = partial(receive, level, func, types)
        return recheck.receive(level, func, args, kwargs, run, kwargs.get(SITE))

    return dispatch


def _intercepting(recheck: Recheck, level: DeterministicMode) -> Callable[..., Any]:
    """Return the ``_intercept`` of a level that receives listed calls alone, and counts them."""
    receive = type(level)._intercept

    def intercept(
        level: DeterministicMode,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        traced: bool,
        site: str | None = None,
    ) -> Any:
        recheck.left -= 1
        if recheck.left > 0:
            return receive(level, overload, args, kwargs, traced=traced, site=site)
        run = partial(receive, level, overload, traced=traced, site=site)
        return recheck.receive(level, overload.twin or overload.func, args, kwargs, run, site)

    return intercept


def _are_same_on_host(one: Tensor, other: Tensor) -> bool:
    """Return whether two CPU tensors have the same bits, sooner than their digests would tell."""
    return (
        (one.is_cpu and other.is_cpu and is_strided(one) and is_strided(other))
        and not one.is_quantized
        and (one.dtype, one.shape) == (other.dtype, other.shape)
        and np.array_equal(as_bytes(one).numpy(), as_bytes(other).numpy())
    )


def _is_allowed(level: DeterministicMode, call: InterceptedCall) -> bool:
    """Return whether the program accepts that a call varies."""
    return call.overload.override in _KNOWN_TO_VARY or (
        level._memory.had_regions and level._memory.allows(call)
    )


def _find_site(level: DeterministicMode, call: InterceptedCall, site: str | None) -> None:
    """Set the site of a call, and its name as reports have it."""
    if site is None:
        level._memory.find_site(call, level._counter.paths)
    else:
        call.site, _, call.name = site_from(site, level._memory.caller())


def _rank() -> int | None:
    """Return the rank of this process, or ``None`` if it is the only one."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    rank = rank_of()
    return None if rank is None else rank.number


def _message(calls: tuple[VaryingCall, ...]) -> str:
    """Return the error's text: the first call in full, and the number of the others."""
    call = calls[0]
    sides = "; ".join(f"{name}: {' then '.join(each)}" for name, each in call.digests.items())
    rank = "" if call.rank is None else f" of rank {call.rank}"
    more = f"; so did {len(calls) - 1} more of this window" if len(calls) > 1 else ""
    rule = f"its rule ({call.rule}) says that it does not" if call.rule else "no rule lists it"
    operator = call.overload.partition(".")[0]
    return with_place(
        f"{call.overload} gave other bits when it was made again on the same inputs: {sides}",
        call.site,
        call.module,
        f"It was call {call.number:,}{rank}, compared at the end of its window{more}.\n"
        f"  Either the hardware is faulty, or the operator varies, and {rule}: if `detmode probe` "
        f"finds no difference, suspect the hardware. To accept that it varies, backward included: "
        f'with detmode.allow("{operator}")',
    )
