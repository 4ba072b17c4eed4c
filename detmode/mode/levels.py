"""The levels of modes: one for each time that a mode is entered and not yet left.

The way of one call: look up, bind, decide, count, perform.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.mode.alerts import tell
from detmode.mode.base_mode import BaseMode
from detmode.mode.decide import Decision, launcher_missing
from detmode.mode.foreign_kernels import decompose, run_foreign
from detmode.mode.handled import Handled, Located
from detmode.mode.higher_order import with_bodies
from detmode.mode.listed_operators import Place
from detmode.mode.module_overrides import action_in
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.plans import HAS_NO_PLAN, NOT_PLAYED
from detmode.mode.substitution import run_unvalidated, run_validated, validate
from detmode.process.arguments import SCALARS
from detmode.process.dispatch import (
    CONJUGATE,
    NEGATIVE,
    CompiledInside,
    carried,
    carry,
    own_calls,
    set_excluded,
    untrace_dispatch,
    with_tensors,
)
from detmode.process.setting import is_flag_on
from detmode.process.torch_settings import (
    NOT_CALLED,
    call_if_settled,
    call_native,
    deterministic_flag,
)
from detmode.process.undo import Undo
from detmode.sites.forward_memory import ForwardMemory, forward_memory
from detmode.sites.graph_nodes import site_from
from detmode.sites.observers import observer
from detmode.sites.sharding import is_propagation
from detmode.table.twins import SITE

__tracebackhide__ = True

_UNSEEN: Any = object()
_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_get_mode = torch._C._get_dispatch_mode
_count_modes = torch._C._len_torch_dispatch_stack

# What a type of tensor is to the mode. PyTorch's own tracing tensors stand for plain ones: they are
# matched, and never launched.
_PLAIN, _TRACED, _FOREIGN = range(3)
_compilation = torch._guards.TracingContext.try_get
_OVERLOAD = torch._ops.OpOverload
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_UNCAST = "to Tensor"
"""In PyTorch's error of a number that stands for a tensor: "Unable to cast 1 to Tensor"."""
_LEVELS = "detmode.levels"
_is_kept, _get = torch._C._is_key_in_tls, torch._C._get_obj_in_tls

_local = threading.local()


class Level(CompiledInside):
    """One entering of a mode, in the thread that makes the object.

    A dispatch mode that looks each call up in a rule table, and carries out the decision on it.

    Attributes:
        mode: the part that its levels share.
        memory: of the forward calls of the thread that makes the calls.
        counter: counts the calls in the rows of the mode.
        is_innermost: false while another level of the thread receives the calls first.
        thread: the number of the thread that has entered it.
        kernels: the facts that the kernels of listed operators know, if they hand the calls over.
        counts_native: true if it counts native calls, too, without a price for them.
        owner: of one that acts in a thread that has not entered the mode, the level of the block.
    """

    supports_higher_order_operators = True
    counts_native = False
    owner: Level | None = None

    def __init__(self, mode: BaseMode) -> None:
        TorchDispatchMode.__init__(self)
        self.mode = mode
        self.memory = forward_memory()
        self.counter = mode.counter
        self.is_innermost = True
        self.thread = threading.get_ident()
        self.kernels: dict[Callable[..., Any], OverloadInfo | None] = {}
        # What each call looks at is found sooner in the object itself.
        self.intercepts_listed, self._simulate = mode.intercepts_listed, mode.simulate
        self._overloads, self._elementwise = mode.overloads, mode.elementwise
        self._kinds, self._decisions = mode.kinds, mode.decisions
        self._forwards_overridden = mode.forwards_overridden
        self._module_overrides = mode.module_overrides

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            traced = False
            for cls in types:
                kind = self._kinds.get(cls)
                if kind is None:
                    kind = self._kinds[cls] = _kind_of(cls)
                if kind == _FOREIGN:
                    # A subclass desugars first, and the mode sees the operators it is made of.
                    return NotImplemented
                if kind == _TRACED:
                    traced = True
            # An overload itself is hashed and called in Python.
            operator = func._op if type(func) is _OVERLOAD else func
            if operator not in self._elementwise:
                # As resolve_views does, without its call.
                set_excluded(CONJUGATE, False)
                set_excluded(NEGATIVE, False)
            overload = self._overloads.get(operator, _UNSEEN)
            if overload is _UNSEEN:
                overload = self.mode.overload_info(func)
                self.mode.meet(args, kwargs or {})
                self.meet(func, overload)
            if overload is None or not self.is_innermost:
                if type(func) is not _OVERLOAD and self.is_innermost:
                    args = with_bodies(self, args)
                return operator(*args, **kwargs) if kwargs else operator(*args)
            if overload.twin is None:
                return self.intercept(overload, args, {} if kwargs is None else kwargs, traced)
            if _count_modes() and (seen_by := observer()) is not None:
                # The observer needs the line that the twin carries.
                return seen_by.observe(
                    *(overload.twin, args, kwargs),
                    lambda *args, **kwargs: self.call_twin(overload, traced, args, kwargs),
                )
            return self.call_twin(overload, traced, args, kwargs)
        except RuntimeError as error:
            # PyTorch has not begun the call.
            is_uncast = type(func) is _OVERLOAD and _UNCAST in str(error)
            tensors = with_tensors(func, args) if is_uncast else args
            if tensors is args:
                raise
        return Level.__torch_dispatch__(self, func, types, tensors, kwargs)

    def meet(self, func: Any, overload: OverloadInfo | None) -> None:
        """Note the facts about an overload that the mode receives for the first time."""

    def call_twin(
        self, overload: OverloadInfo, traced: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Intercept a call of compiled code, which calls the twin of a listed overload."""
        # PyTorch makes the dict anew for each call.
        site = kwargs.pop(SITE)
        result = self.intercept(overload, args, kwargs, traced, site)
        return None if overload.variant == "inplace" else result

    def intercept(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: bool,
        site: str | None = None,
    ) -> Any:
        """Decide on a call, count it, warn or raise, and carry out the decision.

        ``site`` is given by compiled code, in which the user has no frame.
        """
        if (
            overload.composite or overload.dense_passes or overload.passes
        ) and overload.override is None:
            if overload.composite:
                return decompose(self, overload, args, kwargs)
            if overload.passes or _is_dense(args, kwargs):
                return overload.run(*args, **kwargs)
        if not traced and _count_modes():
            traced = _get_mode(_FAKE) is not None
        if traced and (_compilation() is not None or is_propagation()):
            # The program makes the call when it runs what is compiled or exported here, or shares
            # it between its ranks.
            return overload.func(*args, **kwargs)
        plans = None if traced or site is not None else overload.plans
        if plans is not None:
            result = plans.play(self.memory, self.counter, overload, args, kwargs)
            if result is HAS_NO_PLAN:
                plans = None
            elif result is not NOT_PLAYED:
                return result
        call = Handled(overload, args, kwargs, self._simulate, traced)
        call.plans = plans
        if site is not None:
            call.site, outer, call.name = site_from(site, self.memory.caller())
            self.counter.paths.own_lines.setdefault(call.site.site.text, outer)
        else:
            for tensor in call.tensors:
                if tensor.requires_grad:
                    if torch.is_grad_enabled():
                        self.memory.remember_call(call, self.counter.paths)
                    break
        rule = call.rule
        if overload.override is None if rule is None else rule.allows:
            # The most frequent decision, for which nothing else is looked up.
            if overload.hides_calls:
                return run_foreign(call, self, self.mode, self.memory)
            return self.let_run(call)
        is_allowed = self.memory.had_regions and self.memory.allows(call)
        if call.site is None or call.site.site.file is None:
            # Compiled autograd's graphs have no lines.
            self.memory.find_site(call, self.counter.paths)
        unavailable = None
        if rule is not None and rule.launches and call.launches_on is not None:
            unavailable = launcher_missing(call.launches_on)
        has_flag = is_flag_on()
        override = overload.override
        if override is None and rule is not None and self._forwards_overridden:
            override = self.memory.override_of(call, self._forwards_overridden)
        if self._module_overrides and rule is not None and call.site is not None:
            override = action_in(call.site.module, self._module_overrides) or override
        facts = call.row, override, is_allowed, has_flag, unavailable
        decision = self._decisions.get(facts) or self.mode.decide(facts)
        if decision.action in {"native", "substitute", "allow"}:
            self.counter.count(call, decision)
        elif decision.action == "pass":
            return call.run()
        else:
            decision = self._count_varying(call, decision)
        if self.intercepts_listed:
            # A dispatch mode is off while it carries out a decision; kernels stay registered.
            return own_calls.run(self.perform, call, decision)
        return self.perform(call, decision)

    def note(self, call: Located, number: int) -> None:
        """Note the place of a call for the backward of the node that it has made."""
        self.memory.remember_call(call, self.counter.paths, number)

    def let_run(self, call: Handled) -> Any:
        """Make a call that does not vary, or that no rule lists."""
        return call.run()

    def _count_varying(self, call: Handled, decision: Decision) -> Decision:
        """Count a call that may vary, and raise or warn; return the decision to carry out."""
        if decision.action == "error" and self.mode.may_go_on(call):
            decision = replace(decision, action="warn")
        is_new = self.counter.count(call, decision)
        if (
            is_new or decision.action == "error"
        ) and decision.action in self.mode.announced_actions:
            tell(call, decision, self.mode)
        return decision

    def perform(self, call: Handled, decision: Decision) -> Any:
        """Carry out the decision, and return the result; a mode that only observes does less."""
        match decision.action:
            case "native":
                run = call.overload.run
                result = call_if_settled(run, call.args, call.kwargs, call.reads_warn_only)
                if result is NOT_CALLED:
                    result = call_native(run, call.args, call.kwargs)
                return result
            case "substitute" if call.launches_on is not None:
                # Without an outer mode there is no observer.
                seen_by = observer() if _count_modes() else None
                if seen_by is None:
                    plans = call.plans
                    return run_validated(call) if plans is None else plans.run(call)
                validate(call)
                run = functools.partial(run_unvalidated, call)
                return seen_by.observe(call.func, call.args, call.kwargs, run)
            case _:
                # Nothing would be launched; it is allowed; or the warning is given, and PyTorch's
                # own would repeat it at every call.
                return deterministic_flag(False).around(call.run)

    def __repr__(self) -> str:
        """Return the mode's arguments, as PyTorch shows what is on its stack."""
        return repr(self.mode)

    def become_innermost(self, undo: Undo) -> None:
        """Make this level the innermost one of the current thread until ``undo`` runs."""
        outer = levels_here()
        undo.note(functools.partial(_leave, self, outer))
        self.set_innermost(True)
        outer.append(self)
        if len(outer) > 1:
            outer[-2].set_innermost(False)

    def set_innermost(self, is_innermost: bool) -> None:
        """Note whether this level is the innermost one of its thread."""
        self.is_innermost = is_innermost

    @property
    def decides_on_native(self) -> bool:
        """True if it decides on native calls, too, and leaves none to PyTorch's flag."""
        return self.counts_native or self.mode.decides_on_native

    def register_below(self, places: Iterable[Place]) -> None:
        """Note the kernels that stand at places, before detmode's are registered there."""

    def register_above(self, places: Iterable[Place], undo: list[Callable[[], object]]) -> None:
        """Put kernels above those at places; before, add to ``undo`` what takes each away."""

    def decide_everywhere(self, decides: bool) -> None:
        """Note whether its mode decides in all threads, as the last one that lists and is open."""

    def end_block(self) -> None:
        """Note that the block, which lists, has ended."""

    def elsewhere(self, memory: ForwardMemory) -> Level:
        """Return the level as it acts in a thread that has not entered it, of this memory."""
        level = copy.copy(self)
        level.owner, level.memory = self, memory
        level.counter = self.counter.of_another_thread()
        return level


untrace_dispatch(Level)


def _kind_of(cls: type) -> int:
    if getattr(cls, "__torch_dispatch__", None) is _NO_DISPATCH:
        return _PLAIN
    return _TRACED if cls.__module__.startswith("torch._subclasses.") else _FOREIGN


def _is_dense(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether all tensors are dense, and no backward will refer to the call."""
    in_forward = torch.is_grad_enabled()
    for value in (*args, *kwargs.values()):
        if type(value) not in SCALARS and not (
            isinstance(value, torch.Tensor)
            and value.layout is torch.strided
            and not (in_forward and value.requires_grad)
        ):
            return False
    return True


def _leave(level: Level, stack: list[Level]) -> None:
    if level in stack:
        stack.remove(level)
    # Its thread may have yet to take it off the stack, if another one has left it.
    level.set_innermost(False)
    if stack:
        stack[-1].set_innermost(True)


def levels_here() -> list[Level]:
    """Return the levels that the current thread has entered, which its blocks change.

    PyTorch carries the list on to the autograd threads of this thread's backward.
    """
    levels: list[Level] | None = getattr(_local, "levels", None)
    if levels is None:
        levels = _local.levels = []
    carry(_LEVELS, levels)
    return levels


def open_levels() -> list[Level]:
    """Return the levels of the current thread, or of the one whose backward this is."""
    levels: list[Level] | None = carried(_LEVELS)
    return levels or []


def innermost() -> Level | None:
    """Return the innermost level of the current thread, or of the one whose backward this is."""
    # As open_levels does, without its calls: each listed call asks.
    levels: list[Level] = _get(_LEVELS) if _is_kept(_LEVELS) else []
    return levels[-1] if levels else None


def innermost_mode() -> BaseMode | None:
    """Return the mode of the level that :func:`innermost` returns."""
    level = innermost()
    return None if level is None else level.mode
