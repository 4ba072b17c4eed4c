"""DeterministicMode: look up, bind, decide, count, perform."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Container, Iterable
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._contextlib import _wrap_generator
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from detmode import cuda
from detmode.cuda.undo import Undo, leaving, undone_at_end
from detmode.environment.dispatch import autocast_inside, resolve_conjugates, resolve_negatives
from detmode.environment.settings import (
    FLAG,
    choose_for_block,
    deterministic_flag,
    no_memory_fill,
    with_native_settings,
)
from detmode.mode import messages
from detmode.mode.decide import Decision, Policy, decide, launcher_missing
from detmode.mode.detours import Detours
from detmode.mode.higher_order import register_passthrough
from detmode.mode.options import check_arguments, check_overrides, logger_for, means_unlisted
from detmode.mode.row_counter import RowCounter, remedy_for
from detmode.mode.validation import validate, validations
from detmode.reports.report import Report, ReportRow
from detmode.sites.forward_memory import forward_memory
from detmode.sites.graphs import site_from
from detmode.sites.module_path import ModulePaths
from detmode.sites.observers import observer
from detmode.table.call import tensors_in
from detmode.table.call_site import Site
from detmode.table.intercepted_call import InterceptedCall
from detmode.table.names import Overrides, matches, names_of
from detmode.table.overload_info import COMPOSITE, OverloadInfo
from detmode.table.rule import Allow, Substitute
from detmode.table.rule_table import RuleTable, resolve
from detmode.table.twins import SITE, original_of
from detmode.table.variants import run_substitute

F = TypeVar("F", bound=Callable[..., Any])

_UNSEEN: Any = object()
_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_local = threading.local()
_registries: dict[str, dict[Any, Any]] = {}
_get_mode = torch._C._get_dispatch_mode
_count_modes = torch._C._len_torch_dispatch_stack
_FILES = 1 << 10


# What a type of tensor is to the mode. PyTorch's own tracing tensors stand for plain ones: they are
# matched, and never launched.
_PLAIN, _TRACED, _FOREIGN = range(3)
_FAKE = torch._C._TorchDispatchModeKey.FAKE


class DeterminismWarning(UserWarning):
    """A call ran whose result may vary between runs; given once for each site."""


class DeterministicMode(TorchDispatchMode):
    """Run a block deterministically: substitute, run PyTorch's deterministic path, warn or raise.

    A context manager and a decorator; re-entrant, nestable (the innermost mode acts), and
    exception-safe: every setting it touches is restored. It acts in the thread that enters it and
    in the autograd threads of that thread's backward; elsewhere PyTorch's own flag, which the mode
    turns on, still alerts. A copy or a pickle made outside its block is a new mode with the same
    arguments and no records.

    Args:
        warn_only: warn instead of raising. Calls that a substitute or a native path covers neither
            warn nor raise, and native paths run as without it: PyTorch itself would leave some of
            them to vary.
        strict: also raise on calls that may vary and on which PyTorch is silent; without it they
            only warn. Only an override or an ``allow`` region exempts a call.
        substitute: ``False`` is exactly PyTorch's behaviour: native path, warning, error.
        rules: the rule table; ``default_rules()`` if left out.
        overrides: operators or overloads, by name or as in ``torch.ops``, or globs of names, to
            ``"allow"``, ``"warn"``, ``"error"``, ``"native"`` or ``"substitute"``; a name wins over
            a glob. They apply to calls that may vary: a call that does not vary according to its
            rule is unaffected, and a glob over ``aten`` covers the operators that the table lists.
        fill_uninitialized_memory: sets ``torch.utils.deterministic.fill_uninitialized_memory`` for
            the block; ``None`` leaves it as it is.
        simulate: ``"cuda"`` matches rules as if CPU and meta tensors were CUDA tensors, and runs
            the CUDA kernels of the substitutes on the host.
        schedule_seed: with ``simulate``: shuffles the order in which blocks and threads run.
        compile: ``False`` runs functions given to ``torch.compile`` operator by operator.
        log: a logger, or a level for the logger ``detmode``.

    Raises:
        TypeError: an argument has the wrong type, in PyTorch's words where it has them.
        ValueError: an argument has an impossible value, or both ``warn_only`` and ``strict`` are
            given.
        RuntimeError: inside the block: PyTorch's standard message, for a call that is refused; in
            detmode's own words where PyTorch has none.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return true: Dynamo compiles inside the mode, which receives the calls of the code."""
        return True

    if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
        # PyTorch 2.8 and 2.9 ask this instead.
        is_infra_mode = ignore_compile_internals

    # Modes of tests and modes that only observe override these.
    _told: ClassVar[Container[str]] = ("warn", "error")
    """The actions that give a warning or an error."""
    _known: Callable[[InterceptedCall], bool] | None = None
    """Returns whether a call that would raise may run."""

    def __init__(
        self,
        warn_only: bool = False,
        *,
        strict: bool = False,
        substitute: bool = True,
        rules: RuleTable | None = None,
        overrides: Overrides | None = None,
        fill_uninitialized_memory: bool | None = None,
        simulate: str | None = None,
        schedule_seed: int | None = None,
        compile: bool = True,
        log: logging.Logger | int | str | None = None,
    ) -> None:
        check_arguments(
            *(warn_only, strict, substitute, rules, fill_uninitialized_memory),
            *(simulate, schedule_seed, compile),
        )
        if rules is None:
            from detmode.rules import default_rules

            rules = default_rules()
        self._policy = Policy(warn_only=warn_only, strict=strict, substitute=substitute)
        self._table = rules
        self._overrides = check_overrides(overrides, rules)
        self._fill = fill_uninitialized_memory
        self._simulate = simulate
        self._schedule_seed = schedule_seed
        self.compiles = compile
        self._logger = logger_for(log)
        self._begin()

    def _begin(self) -> None:
        """Create the state of the mode's calls; a copy starts with a new one."""
        TorchDispatchMode.__init__(self)
        self._overloads: dict[Any, OverloadInfo | None] = {}
        # What overloads without one call: an overload itself is hashed and called in Python.
        self._unlisted: set[Any] = set()
        self._counter = RowCounter(self._logger, lambda: None)
        self._kinds: dict[type, int] = {}
        self._said: set[str] = set()
        self._innermost = True
        self._memory = forward_memory()
        # What leaves each entered level; the levels share the list.
        self._entered: list[Undo] = []

    # The block

    def __enter__(self) -> DeterministicMode:
        undo = undone_at_end(self, Undo())
        try:
            self._enter(undo)
        except BaseException:
            undo.run()
            raise
        return self

    def _enter(self, undo: Undo) -> None:
        register_passthrough(type(self))
        level = self._level_for(undo)
        choose_for_block(self._policy.warn_only, self._fill, undo)
        Detours(_prefers_plain_operator, _meets, undo)
        if self._simulate:
            cuda.host.choose_schedule(self._schedule_seed, undo)
        outer = _stack()
        undo.note(functools.partial(_leave, level, outer))
        level._innermost = True
        level._memory = forward_memory()
        outer.append(level)
        if len(outer) > 1:
            outer[-2]._innermost = False
        # By name: compiled code is built upon the mode, which only starts it.
        importlib.import_module("detmode.compiled.hooks").enter(level, undo)
        undo.note(functools.partial(_take_off, level, []))
        TorchDispatchMode.__enter__(level)

    def _level_for(self, undo: Undo) -> DeterministicMode:
        """Return the object to push: a mode that is already on a stack gets a twin.

        Each level is a separate object; they share the records.
        """
        undo.note(functools.partial(_discard, self._entered, undo))
        self._entered.append(undo)
        if self._entered[0] is undo:
            return self
        level = object.__new__(type(self))
        level.__dict__.update(self.__dict__)
        TorchDispatchMode.__init__(level)
        return level

    def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for undo in reversed(self._entered):
            if undo.thread == threading.get_ident():
                undo.run()
                return
        raise RuntimeError("DeterministicMode: this thread leaves a mode that it has not entered")

    __exit__ = leaving(_exit)

    def __call__(self, function: F) -> F:
        """Decorate ``function``: each of its calls runs inside the mode."""
        if not callable(function):
            raise TypeError(
                f"DeterministicMode decorates a function, got {type(function).__name__}"
            )

        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                "DeterministicMode cannot decorate a coroutine function: other tasks would run "
                "inside its block; write 'with' around what does not await"
            )
        if inspect.isgeneratorfunction(function):
            # As torch.no_grad does: inside while the generator runs, outside while it waits.
            # PyTorch's helper has no types.
            return _wrap_generator(lambda: self, function)  # type: ignore[no-any-return]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]  # a wrapper has the wrapped one's type

    @property
    def is_entered(self) -> bool:
        """True if a block of this mode is open, in any thread."""
        return bool(self._entered)

    # Copies

    def __getstate__(self) -> dict[str, Any]:
        if self._entered:
            raise TypeError(
                "DeterministicMode: a mode can be neither copied nor pickled inside its block; "
                "do it before or after, or copy its report()"
            )
        fresh = object.__new__(type(self))
        fresh._logger = self._logger
        fresh._begin()
        made_anew = vars(fresh).keys() - {"_logger"}
        return {name: value for name, value in vars(self).items() if name not in made_anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    # What was seen

    @property
    def records(self) -> tuple[ReportRow, ...]:
        """The rows so far, in the order of their first calls."""
        return self.report().records

    def report(self) -> Report:
        """Return the rows so far, as a table (``print``) or JSON (``to_json``)."""
        return self._counter.report()

    @property
    def paths(self) -> ModulePaths:
        """The paths of the modules in which calls are made."""
        return self._counter.paths

    # One call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        traced = False
        if types:
            kind = self._kind_of(types)
            if kind == _FOREIGN:
                # A subclass desugars first; the mode then sees the operators that it is made of.
                return NotImplemented
            traced = kind == _TRACED
        resolve_conjugates()
        resolve_negatives()
        operator: Any = getattr(func, "_op", None)
        if operator in self._unlisted:
            return operator(*args, **kwargs) if kwargs else operator(*args)
        overload = self._overloads.get(func, _UNSEEN)
        if overload is _UNSEEN:
            overload = self._look_up(func)
            if overload is None and type(func) is torch._ops.OpOverload:
                self._unlisted.add(operator)
        if overload is None or not self._innermost:
            return func(*args, **kwargs) if kwargs else func(*args)
        if overload.twin is None:
            return self._intercept(overload, args, kwargs or {}, traced=traced)
        site = kwargs.pop(SITE)
        result = self._intercept(overload, args, kwargs, traced=traced, site=site)
        return result if overload.twin._schema.returns else None

    def _kind_of(self, types: Iterable[type]) -> int:
        """Return the most foreign kind among the tensors' types."""
        found = _PLAIN
        for cls in types:
            kind = self._kinds.get(cls)
            if kind is None:
                if getattr(cls, "__torch_dispatch__", None) is _NO_DISPATCH:
                    kind = _PLAIN
                elif cls.__module__.startswith("torch._subclasses."):
                    kind = _TRACED
                else:
                    kind = _FOREIGN
                self._kinds[cls] = kind
            found = max(found, kind)
        return found

    def _look_up(self, func: Any) -> OverloadInfo | None:
        """Look an overload up at its first call; ``None`` if its calls are not intercepted."""
        overload = None
        called, twin, original = func, None, original_of(func)
        if original is not None:
            func, twin = original, func
        if isinstance(func, torch._ops.OpOverload):
            rows = self._table.get(func)
            known_not_to_vary = rows and all(isinstance(row.rule.action, Allow) for row in rows)
            names = names_of(func, (row.rule.op for row in rows))
            if known_not_to_vary:
                rows = ()
            override = next(
                (
                    action
                    for name, action in self._overrides.items()
                    if not known_not_to_vary
                    and matches(names, (name,))
                    and (rows or means_unlisted(name))
                ),
                None,
            )
            found = OverloadInfo(func, rows, override, twin)
            if rows or override or found.composite or self._table.is_forward(func):
                overload = found
        Detours.look_again()
        self._overloads[called] = overload
        return overload

    def overload_info(self, func: torch._ops.OpOverload) -> OverloadInfo | None:
        """Return the facts about an overload; ``None`` if its calls are not intercepted."""
        overload = self._overloads.get(func, _UNSEEN)
        return self._look_up(func) if overload is _UNSEEN else overload

    def _intercept(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        traced: bool,
        site: str | None = None,
    ) -> Any:
        """Decide on a call, count it, warn or raise, and carry out the decision.

        ``site`` is given by compiled code, which has no frames of the user's.
        """
        if overload.composite and overload.override is None:
            return self._decompose(overload, args, kwargs)
        traced = traced or _get_mode(_FAKE) is not None
        call = InterceptedCall(overload, args, kwargs, self._simulate, traced=traced)
        if site is not None:
            call.site, outer, call.name = site_from(site)
            self.paths.own_lines.setdefault(call.site.site.text, outer)
        if torch.is_grad_enabled():
            for tensor in call.tensors:
                if tensor.requires_grad:
                    self._memory.remember_call(call, self.paths)
                    break
        rule = call.row.rule if call.row else None
        if overload.override is None if rule is None else isinstance(rule.action, Allow):
            # The most frequent decision, for which nothing else is looked up.
            return call.run()
        is_allowed = self._memory.allows(call)
        if call.site is None:
            self._memory.find_site(call, self.paths)
        decision = decide(
            rule,
            self._policy,
            override=overload.override,
            is_allowed=is_allowed,
            is_flag_on=FLAG.chosen()[0],
            unavailable=launcher_missing(call),
            is_known=self._known is not None and self._known(call),
        )
        if decision.action == "pass":
            return call.run()
        if decision.unavailable is not None:
            self.say_once(decision.unavailable, f"no substitutes here: {decision.unavailable}")
        is_new = self._counter.count(call, decision)
        if decision.action in self._told and (is_new or decision.action == "error"):
            self._tell(call, decision)
        return self.perform(call, decision)

    def _decompose(
        self, overload: OverloadInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a composite operator under the mode, which receives it whole in inference mode.

        ATen's decomposition runs. PyTorch also has some in Python, for tracing, which round
        differently or draw other random numbers. Some composites have kernels as well
        (``silu_backward``; ``linear``, for nested tensors), which ATen runs.
        """
        if overload.kernels:
            for tensor in tensors_in((*args, *kwargs.values())):
                if (tensor.device.type, tensor.is_nested) in overload.kernels:
                    return overload.func(*args, **kwargs)
        with _acting(self), autocast_inside(overload.func):
            return overload.func._op_dk(COMPOSITE, *args, **kwargs)

    def perform(self, call: InterceptedCall, decision: Decision) -> Any:
        """Carry out the decision; a mode that only observes does less.

        Returns:
            The result of the call.
        """
        match decision.action:
            case "native":
                return with_native_settings(call.func)(*call.args, **call.kwargs)
            case "substitute" if call.launches_on is not None:
                assert call.row is not None
                action = call.row.rule.action
                assert isinstance(action, Substitute)
                with no_memory_fill():
                    validate(call.func, call.arguments)
                    # Without an outer mode there is no observer.
                    seen_by = observer() if _count_modes() else None
                    if seen_by is None:
                        return run_substitute(action, call.func, call.arguments)
                    run = functools.partial(_substitute, call.overload, action)
                    return seen_by.observe(call.func, call.args, call.kwargs, run)
            case _:
                # Nothing would be launched; it is allowed; or the warning is given, and PyTorch's
                # own would repeat it at every call.
                with deterministic_flag(False):
                    return call.run()

    def _tell(self, call: InterceptedCall, decision: Decision) -> None:
        """Raise or warn about a call that may vary, with all that the user needs to know."""
        assert call.site is not None
        overload, (site, module) = call.overload, call.site
        rule, warned = call.row.rule if call.row else None, decision.action == "warn"
        alert = rule.alert_for(overload.variant) if rule and FLAG.chosen()[0] else None
        if alert is not None:
            text = messages.alert_text(alert, warn=warned)
        else:
            text = messages.own_text(overload.name, decision.why)
        message = messages.with_place(text, site.text, module, remedy_for(call, decision))
        if not warned:
            raise RuntimeError(message)
        self._logger.warning("%s", message)
        _warn_at(message, site)

    def say_once(self, topic: str, text: str) -> None:
        """Log a warning, once for each topic."""
        if topic not in self._said:
            self._said.add(topic)
            self._logger.warning("%s", text)


def _stack() -> list[DeterministicMode]:
    stack: list[DeterministicMode] | None = getattr(_local, "stack", None)
    if stack is None:
        stack = _local.stack = []
    return stack


def current_mode() -> DeterministicMode | None:
    """Return the innermost mode that acts in this thread, or in this autograd thread."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, DeterministicMode):
            return mode
    return None


def _prefers_plain_operator(backward: str, input: torch.Tensor) -> bool:
    """Return whether the plain operator replaces a detour, as its backward has a substitute."""
    mode = current_mode()
    if mode is None or not mode._policy.substitute:
        return False
    if input.is_meta:
        return mode._simulate is not None
    if not input.is_cuda:
        return False
    func = resolve(backward)
    rows = mode._table.get(func) if func is not None else ()
    return any(isinstance(row.rule.action, Substitute) for row in rows) and (
        isinstance(input, FakeTensor) or cuda.unavailable("cuda") is None
    )


def _meets(alert: str) -> bool:
    """Return whether to skip an alert in Python, such as that of a shape function.

    Also skip torchvision's alert for an operator that the mode itself handles.
    """
    if validations.here():
        return True
    mode = current_mode()
    return mode is not None and any(
        row.rule.alert == alert and row.rule.op.startswith("torchvision::") for row in mode._table
    )


def _discard(entries: list[Any], entry: object) -> None:
    if entry in entries:
        entries.remove(entry)


def _leave(level: DeterministicMode, stack: list[DeterministicMode]) -> None:
    _discard(stack, level)
    if stack:
        stack[-1]._innermost = True


def _take_off(level: DeterministicMode, found: list[TorchDispatchMode]) -> None:
    """Remove the level from PyTorch's stack, which only pops the topmost one.

    An outer block may end before an inner one, in a generator or a task.

    Args:
        level: need not be on it: entering may have failed.
        found: empty at first, then the stack as it was, so that a second try knows it.
    """
    found[:] = found or _get_current_dispatch_mode_stack()
    if level in found:
        while level in _get_current_dispatch_mode_stack():
            torch._C._pop_torch_dispatch_stack(None)
        for mode in found[1 + len(_get_current_dispatch_mode_stack()) :]:
            torch._C._push_on_torch_dispatch_stack(mode)
    # What its own entering has remembered, to restore what choose_for_block restores.
    TorchDispatchMode.__init__(level)


class _acting:
    """Make the level act again, inside a call that it handles."""

    __slots__ = ("_level", "_undo")

    def __init__(self, level: DeterministicMode) -> None:
        self._level = level

    def __enter__(self) -> None:
        self._undo = undone_at_end(self, Undo())
        self._undo.note(functools.partial(_take_off, self._level, []))
        torch._C._push_on_torch_dispatch_stack(self._level)

    def _leave(self, *error: object) -> None:
        self._undo.run()

    __exit__ = leaving(_leave)


def _substitute(overload: OverloadInfo, action: Substitute, *args: Any, **kwargs: Any) -> Any:
    """Make a call by its substitute; an observer may make it again on other tensors."""
    return run_substitute(action, overload.func, overload.signature.bind(args, kwargs))


def _warn_at(message: str, site: Site) -> None:
    """Warn with the user's line, where Python's filters look for it."""
    if site.file is None:
        warnings.warn(message, DeterminismWarning, stacklevel=2)
        return
    # With a registry a program that makes a mode for each step is still warned once.
    if len(_registries) >= _FILES:
        # Generated code may name ever new ones.
        _registries.clear()
    registry = _registries.setdefault(site.file, {})
    warnings.warn_explicit(
        message, DeterminismWarning, site.file, site.line, site.python_module, registry
    )
