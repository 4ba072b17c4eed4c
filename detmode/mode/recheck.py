"""Calls made twice: those of a sample are made again on the same inputs, and compared.

The digests of both results stay on their device. They are read at the end of a window, the one
moment at which the host waits for the device.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from detmode.bits.digest_batches import Digests
from detmode.bits.effects import effects_of
from detmode.bits.repeatable import StartingState, data_of, why_never, why_not
from detmode.bits.tensors import (
    as_bytes,
    form_of,
    has_data,
    is_capturing,
    is_strided,
    to_digest,
)
from detmode.mode.handled import Handled
from detmode.mode.levels import Level
from detmode.mode.messages import with_place
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.sampled_calls import Run, gap_after
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import resolve_views, without_modes
from detmode.process.rank import rank_and_size
from detmode.process.undo import Lock
from detmode.sites.graph_nodes import site_from
from detmode.sites.observers import repeated, repetition
from detmode.table.call_site import CallSite
from detmode.table.twins import SITE

__tracebackhide__ = True

WINDOW = 32
"""The calls made twice after which a window ends."""

_KNOWN_TO_VARY = frozenset(("allow", "warn"))
"""Actions under which the bits of a call are not promised."""
_BYTES = 16
"""The bytes of a digest."""
_memcmp = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


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

    >>> try:
    ...     with detmode.DeterministicMode(recheck=1.0):
    ...         sums = torch.ones(3).cumsum(0)
    ... except detmode.RecheckError as error:
    ...     print(error.calls)

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


@dataclass
class _Sampled:
    """A sampled call; most are done with before the line of it or its row is looked up."""

    level: Level
    overload: OverloadInfo
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    site: str | None

    def why_not(self) -> str | None:
        """Return the reason, found in this call, why it is not made again, or ``None``."""
        values = (*self.args, *self.kwargs.values())
        memory = self.level.memory
        if self.overload.override in _KNOWN_TO_VARY or (
            # The program accepts that it varies.
            memory.had_regions and memory.allows(self._intercepted())
        ):
            return "allowed"
        return why_not(effects_of(self.overload.func), tensors_in(values), values)

    def data_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> dict[str, Tensor]:
        """Return what the call gave: its results, and what it wrote."""
        return data_of(effects_of(self.overload.func), args, kwargs, result, written_alone=True)

    def made_twice(self, pairs: list[_Pair]) -> _MadeTwice:
        """Return what is to be told of the call if digests differ."""
        call, memory = self._intercepted(), self.level.memory
        if self.site is None:
            memory.find_site(call, self.level.counter.paths)
        else:
            call.site, _, call.name = site_from(self.site, memory.caller())
        assert call.site is not None
        row = call.row
        rule = f"{row.family}, {type(row.rule.action).__name__.lower()}" if row else None
        return _MadeTwice(call.name, self.number, call.site, rule, pairs)

    def _intercepted(self) -> Handled:
        kwargs = {name: value for name, value in self.kwargs.items() if name != SITE}
        return Handled(self.overload, self.args, kwargs, self.level.mode.simulate)


class Recheck:
    """The calls of one mode that are made twice, and the differences found.

    Attributes:
        left: the calls until the next sampled one, which levels count.
    """

    def __init__(self, rate: float, logger: logging.Logger) -> None:
        self._rate = rate
        # The number of the next sampled call.
        self._next = self.left = gap_after(0, rate)
        self._logger = logger
        self._process = os.getpid()
        self._digests: Digests | None = None
        self._in_window = 0
        self._waiting: list[_MadeTwice] = []
        self._overloads: dict[Any, tuple[OverloadInfo, str | None]] = {}
        self._sampled = self._made_twice = self._differing = 0

    def head(self) -> dict[str, float]:
        """Return what a report says of the calls made twice."""
        return {
            "rate": self._rate,
            "calls": self._next - self.left,
            "sampled": self._sampled,
            "made_twice": self._made_twice,
            "differing": self._differing,
        }

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

    def receive(
        self,
        level: Level,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Run,
        site: str | None,
    ) -> Any:
        """Make a sampled call; again, if it can be."""
        # In a forked process the mode is inherited.
        if repetition.actions is not None or os.getpid() != self._process:
            return run(args, kwargs)
        number = self.sample()
        self._sampled += 1
        if not isinstance(func, torch._ops.OpOverload):
            return run(args, kwargs)
        resolve_views()
        overload, reason = self._facts_of(level, func)
        call = _Sampled(level, overload, args, kwargs, number, site)
        reason = reason or call.why_not()
        if reason is None:
            try:
                start = StartingState(effects_of(overload.func), args, kwargs, written_alone=True)
            except RuntimeError as error:
                reason = f"not copied: {error!r}"
        if reason is not None:
            self._pass_over(overload, reason)
            return run(args, kwargs)
        result = run(args, kwargs)
        try:
            reason = self._make_again(call, result, start, run)
        finally:
            start.resume()
        if reason is not None:
            self._pass_over(overload, reason)
        if self._in_window >= WINDOW:
            self.compare()
        return result

    def sample(self) -> int:
        """Return the number of the call that is sampled now, and draw that of the next one.

        Several threads may make calls; their order is then the order of the numbers.
        """
        number = self._next - self.left
        gap = gap_after(number, self._rate)
        self._next, self.left = number + gap, gap
        return number

    def _facts_of(
        self, level: Level, func: torch._ops.OpOverload
    ) -> tuple[OverloadInfo, str | None]:
        """Return the facts about an overload, and the reason why its calls are not made twice."""
        known = self._overloads.get(func)
        if known is None:
            overload = level.mode.overload_info(func) or OverloadInfo(func)
            known = self._overloads[func] = overload, why_never(effects_of(overload.func))
        return known

    def _make_again(
        self, call: _Sampled, result: Any, start: StartingState, run: Run
    ) -> str | None:
        """Make a call again; return the reason if the results cannot be compared."""
        first = call.data_of(call.args, call.kwargs, result)
        if not first:
            return "no outputs"
        if not all(map(has_data, first.values())):
            return "no data"
        try:
            args, kwargs = start.again()
            # A level that lists has no modes outside, and registered kernels act inside a call.
            outside = nullcontext() if call.level.intercepts_listed else without_modes()
            with repeated() as actions, outside:
                result = run(args, kwargs)
            start.check()
            if not _KNOWN_TO_VARY.isdisjoint(actions):
                return "allowed"
            second = call.data_of(args, kwargs, result)
            with without_modes():
                _lock.run(self._add, call, first, second)
        except Exception as error:
            return f"not made again: {error!r}"
        return None

    def _add(self, call: _Sampled, first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
        """Digest what a call gave at first and again, without waiting for it."""
        pairs = []
        for name in dict.fromkeys((*first, *second)):
            once, again = first.get(name), second.get(name)
            # The first is so for an argument that is not written.
            if not (once is again or _are_same_on_host(once, again)):
                pairs.append(self._pair(name, once, again))
        if pairs:
            self._waiting.append(call.made_twice(pairs))
        self._made_twice += 1
        self._in_window += 1

    def _pair(self, name: str, *sides: Tensor | None) -> _Pair:
        once, again = (torch.empty(0, device="cpu") if side is None else side for side in sides)
        if self._digests is None:
            self._digests = Digests()
        numbers = self._digests.add(to_digest(once)), self._digests.add(to_digest(again))
        return _Pair(name, (_form_of(once), _form_of(again)), numbers)

    def _take(self) -> tuple[VaryingCall, ...]:
        """Read the digests of the window; return the calls whose digests differ."""
        if is_capturing() or os.getpid() != self._process:
            return ()
        waiting, self._waiting, self._in_window = self._waiting, [], 0
        if not waiting:
            return ()
        numbers = [n for twice in waiting for pair in twice.pairs for n in pair.numbers]
        taken = self._digests.take(numbers) if self._digests is not None else b""
        digests = (taken[begin : begin + _BYTES].hex() for begin in range(0, len(taken), _BYTES))
        varying = []
        for overload, number, (site, module), rule, pairs in waiting:
            differing = {}
            for pair in pairs:
                sides = next(digests), next(digests)
                if pair.forms[0] != pair.forms[1]:
                    sides = f"{sides[0]} {pair.forms[0]}", f"{sides[1]} {pair.forms[1]}"
                if sides[0] != sides[1]:
                    differing[pair.name] = sides
            if differing:
                place = site.text, module, rank_and_size()[0]
                varying.append(VaryingCall(overload, number, *place, differing, rule))
        self._differing += len(varying)
        return tuple(varying)

    def _pass_over(self, overload: OverloadInfo, reason: str) -> None:
        self._logger.debug("%s is sampled, and not made twice: %s", overload.name, reason)


def _form_of(tensor: Tensor) -> str:
    return form_of(tensor).partition(" strides")[0]


def _are_same_on_host(first: Tensor | None, second: Tensor | None) -> bool:
    """Return whether two CPU tensors have the same bits, sooner than their digests would tell."""
    if (
        first is None
        or second is None
        or not (first.is_cpu and second.is_cpu and is_strided(first) and is_strided(second))
        or first.is_quantized
        or (first.dtype, first.shape) != (second.dtype, second.shape)
    ):
        return False
    if _is_plain(first) and _is_plain(second):
        return bool(_memcmp(first.data_ptr(), second.data_ptr(), first.nbytes) == 0)
    return np.array_equal(as_bytes(first).numpy(), as_bytes(second).numpy())


def _is_plain(tensor: Tensor) -> bool:
    """Return whether memory has the bytes of the elements, in their order."""
    lazy = tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
    return tensor.is_contiguous() and not lazy


def _message(calls: tuple[VaryingCall, ...]) -> str:
    call = calls[0]
    sides = "; ".join(f"{name}: {' then '.join(digests)}" for name, digests in call.digests.items())
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
