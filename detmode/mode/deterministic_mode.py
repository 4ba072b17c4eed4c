"""DeterministicMode: its arguments, its block, and what it has seen."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
import wrapt

from detmode import cuda
from detmode.cuda import native
from detmode.environment.known import Choice
from detmode.mode import detours, listed, messages
from detmode.mode.acting_mode import acting_mode
from detmode.mode.alerts import DeterminismWarning as DeterminismWarning
from detmode.mode.base_mode import BaseMode
from detmode.mode.decide import Policy
from detmode.mode.decorator import decorated
from detmode.mode.handled import Handled
from detmode.mode.higher_order import hand_over_to
from detmode.mode.levels import Level
from detmode.mode.module_overrides import unmatched
from detmode.mode.options import check_arguments, check_overrides, logger_for
from detmode.mode.other_threads import Witness, guest_of, receive_all
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.sampled_calls import rechecked
from detmode.process.callbacks import callbacks_at_once
from detmode.process.dispatch import untraced
from detmode.process.torch_settings import choose_for_block
from detmode.process.undo import Undo, leaving, tell_if_elsewhere, undone, undone_at_end
from detmode.reports.failure import failure_of
from detmode.reports.page import plural
from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow
from detmode.sites.native_memory import process
from detmode.table.names import K, Overrides
from detmode.table.rule_table import RuleTable

if TYPE_CHECKING:
    from detmode.mode.recheck import Recheck

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

F = TypeVar("F", bound=Callable[..., Any])


class DeterministicMode(BaseMode):
    """Run a block deterministically: substitute, run PyTorch's deterministic path, warn or raise.

    A context manager and a decorator; re-entrant, nestable (the innermost mode acts), and
    exception-safe: every setting it touches is restored. It acts in the thread that enters it and
    in the autograd threads of that thread's backward; elsewhere PyTorch's own flag, which the mode
    turns on, still alerts. The report counts the calls of listed operators in threads that its
    thread starts, as not seen. A copy or a pickle made outside its block is a new mode with the
    same arguments and no records.

    >>> with detmode.DeterministicMode(simulate="cuda") as mode:
    ...     sums = torch.ones(3).cumsum(0)
    >>> for row in mode.records:
    ...     print(row.overload, row.action, row.guarantee)
    aten::cumsum.default substitute gpu_to_gpu

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
            The name of a forward operator means its backward too. ``"Net.head"``, a path as reports
            show it or a glob of its names, means the listed calls of that module and those below
            it, and their backward; it wins over operators, a longer path over a shorter one.
        intercept: ``"all"``: each call of the thread goes through a dispatch mode; where the player
            in C++ is built, a call that no rule lists does so without Python. ``"listed"``:
            only calls of operators that the table substitutes or refuses, or that ``overrides``
            name, are intercepted, by kernels that are registered for the length of the block;
            other calls cost nothing. Calls of other threads, and those made inside C++, are
            intercepted too. What PyTorch's flag makes deterministic is left to it and not counted;
            where the program changes the flag inside the block, a warning and the verdict name it.
            Enter the block while no other thread is calling operators: PyTorch's registration is
            not made for that. PyTorch 2.8 intercepts all.
        fill_uninitialized_memory: sets ``torch.utils.deterministic.fill_uninitialized_memory`` for
            the block; ``None`` leaves it as it is.
        simulate: ``"cuda"`` matches rules as if CPU and meta tensors were CUDA tensors, and runs
            the CUDA kernels of the substitutes on the host.
        schedule_seed: with ``simulate``: shuffles the order in which blocks and threads run.
        compile: ``False`` runs functions given to ``torch.compile`` operator by operator.
        recheck: the share of the calls that the mode receives, from 0 to 1, that are made again on
            the same inputs and compared by digest: a sample by the seed of PyTorch's default
            generator and the rank. The digests are read after 32 such calls, and when a block of
            the mode ends.
        summary: print the verdict on stderr, one line, when a block ends, or the outermost of
            several blocks of this mode.
        log: a logger, or a level for the logger ``detmode``.

    Raises:
        TypeError: an argument has the wrong type, in PyTorch's words where it has them.
        ValueError: an argument has an impossible value, or both ``warn_only`` and ``strict`` are
            given.
        RuntimeError: inside the block: PyTorch's standard message, for a call that is refused; in
            detmode's own words where PyTorch has none.
        RecheckError: inside the block or at its end: a call gave other bits when it was made again.
    """

    _public: ClassVar[tuple[str, ...]] = ("records", "report")
    _level_class: ClassVar[type[Level]] = Level

    acts_in_threads = False
    """Set it to true before the block: the mode then acts in threads that its thread starts, too.

    What runs whole programs does, for which all threads are the program's."""

    @untraced
    def __init__(
        self,
        warn_only: bool = False,
        *,
        strict: bool = False,
        substitute: bool = True,
        rules: RuleTable | None = None,
        overrides: Overrides[K] | None = None,
        intercept: Literal["all", "listed"] = "all",
        fill_uninitialized_memory: bool | None = None,
        simulate: Literal["cuda"] | None = None,
        schedule_seed: int | None = None,
        compile: bool = True,
        recheck: float = 0.0,
        summary: bool = False,
        log: logging.Logger | int | str | None = None,
    ) -> None:
        check_arguments(
            *(warn_only, strict, substitute, rules, intercept, fill_uninitialized_memory),
            *(simulate, schedule_seed, compile, recheck, summary),
        )
        rules = _default_rules() if rules is None else rules
        self.intercept = intercept
        self.intercepts_listed = intercept == "listed" and listed.AVAILABLE
        self._fill = fill_uninitialized_memory
        self._schedule_seed = schedule_seed
        self._recheck = float(recheck)
        self._summary = summary
        super().__init__(
            Policy(warn_only=warn_only, strict=strict, substitute=substitute),
            rules,
            check_overrides(overrides, rules),
            simulate,
            compile,
            logger_for(log),
        )

    def _begin(self) -> None:
        super()._begin()
        # What leaves each entered level, oldest first.
        self._entered: dict[Undo, None] = {}
        # The error with which the block that ended last has ended.
        self._failure: str | None = None
        # Of threads that the mode's threads have started, in which it does not act.
        self._witness = Witness(self._unmet)
        # From the first block on, if calls are made twice.
        self.rechecked: Recheck | None = None

    def as_locked(self) -> dict[str, Choice]:
        """Return the section that the mode has in a lock: the arguments on which bits depend."""
        return {"mode": self._as_call("schedule_seed", "summary"), "rules": self.table.fingerprint}

    def __repr__(self) -> str:
        """Return the arguments that are not the defaults, as a call has them."""
        return self._as_call()

    def _as_call(self, *left_out: str) -> str:
        defaults = inspect.signature(DeterministicMode).parameters
        values = {
            **self.policy._asdict(),
            "rules": self.table if self.table is not _default_rules() else None,
            "overrides": {**self.overrides, **self.module_overrides} or None,
            "intercept": self.intercept,
            "fill_uninitialized_memory": self._fill,
            "simulate": self.simulate,
            "schedule_seed": self._schedule_seed,
            "compile": self.compiles,
            "recheck": self._recheck,
            "summary": self._summary,
        }
        arguments = [
            f"{name}={value!r}"
            for name, value in values.items()
            if value != defaults[name].default and name not in left_out
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __dir__(self) -> list[str]:
        """Return the names for users, and the private ones.

        Other names are those that PyTorch and other parts of detmode call.
        """
        return [name for name in super().__dir__() if name[0] == "_" or name in self._public]

    # The block

    @untraced
    def __enter__(self) -> DeterministicMode:
        undo = undone_at_end(self, Undo())
        try:
            self._enter(undo)
        except BaseException:
            undo.run()
            raise
        return self

    def _enter(self, undo: Undo) -> None:
        _follow_compilation()
        undo.note(functools.partial(self._entered.pop, undo, None))
        self._entered[undo] = None
        level = self._level()
        hand_over_to(type(level))
        choose_for_block(self.policy.warn_only, self._fill, undo)
        detours.replace(undo)
        callbacks_at_once(undo)
        if self.simulate:
            cuda.host.choose_schedule(self._schedule_seed, undo)
        level.become_innermost(undo)
        if self.intercepts_listed:
            listed.enter(level, undo)
            return
        if self.intercept == "listed":
            self.say_once("intercept", listed.UNAVAILABLE)
        acts = functools.partial(guest_of, level)
        receive_all(level, acts if self.acts_in_threads else self._witness.in_this_thread, undo)

    def _level(self) -> Level:
        kind = self._level_class
        if not self._recheck:
            if kind is Level and native.is_wanted():
                from detmode.mode.native_calls import level_for  # brings ctypes' functions

                return level_for(self)
            return kind(self)
        if self.rechecked is None:
            from detmode.mode.recheck import Recheck  # brings NumPy, which other modes do without

            self.rechecked = Recheck(self._recheck, self.logger)
        return rechecked(kind)(self, self.rechecked)

    @untraced
    def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        undo: Undo | None = None,
    ) -> None:
        message = "DeterministicMode: this thread leaves a mode that it has not entered"
        undo = undone(undo, self._entered, message)
        self._failure = failure_of(error)
        if self._summary and not self._entered:
            print(f"detmode: {self.report().verdict}", file=sys.stderr)
        explanation = messages.explanation_of(error)
        if self.rechecked is not None:
            self.rechecked.compare(error)
        if explanation is not None:
            raise RuntimeError(explanation) from error
        tell_if_elsewhere(undo, "DeterministicMode", error)

    __exit__ = leaving(_exit)

    def __call__(self, function: F) -> F:
        """Decorate ``function``: each of its calls runs inside the mode."""
        return decorated(self, "DeterministicMode", function)

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
        fresh.logger = self.logger
        fresh._begin()
        made_anew = vars(fresh).keys() - {"logger"}
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
        if process.native_memory is not None:
            process.native_memory.count_calls()
        not_seen = [f"{name}, which no rule lists" for name in self.unlisted]
        if (calls := self._witness.text()) is not None:
            not_seen.append(calls)
        if threads := len(self.counter.other_threads):
            not_seen.append(f"the order of the calls of {plural(threads, 'other thread')}")
        lists = self.intercepts_listed
        head = {
            "interface": self.interface.name,
            "failure": self._failure,
            "intercept": "listed" if lists else None,
            "counts_native": True if lists and self.counts_native else None,
            "unsettled": list(self.unsettled.values()) or None,
            "simulate": self.simulate,
            "recheck": None if self.rechecked is None else self.rechecked.head(),
            "devices": sorted(self.counter.devices),
            "not_seen": not_seen or None,
            "unmatched": unmatched(self.module_overrides, self.counter.modules()) or None,
        }
        return self.counter.report({k: value for k, value in head.items() if value is not None})

    def _look_up(self, func: Any) -> OverloadInfo | None:
        detours.look_again()
        return super()._look_up(func)

    def _unmet(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """Return the name of a call in another thread if a rule says that it may vary."""
        if func._op not in self.overloads:
            self.meet(args, kwargs)
        overload = self.overload_info(func)
        if overload is None or overload.composite:
            return None
        row = Handled(overload, args, kwargs, self.simulate, False).row
        return None if row is None or row.rule.allows else overload.name


def _default_rules() -> RuleTable:
    from detmode.rules import default_rules  # all families are imported with the first mode

    return default_rules()


@functools.cache
def _follow_compilation() -> None:
    """Have what PyTorch compiles follow the modes, once it has loaded its compiler.

    That takes seconds, and most programs compile nothing.
    """
    # By name: compiled code is built upon the mode, which only starts it.
    wrapt.register_post_import_hook("detmode.mode.compiled.hooks:install", "torch._dynamo")


def current_mode() -> DeterministicMode | None:
    """Return the innermost mode that acts in this thread, or in this autograd thread."""
    mode = acting_mode()
    return mode if isinstance(mode, DeterministicMode) else None
