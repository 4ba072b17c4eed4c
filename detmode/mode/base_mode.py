"""The part of a mode that its levels share: the arguments, and what is remembered of calls."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from detmode.mode.decide import Decision, Policy, decide
from detmode.mode.handled import Handled
from detmode.mode.module_overrides import by_precision
from detmode.mode.options import means_unlisted
from detmode.mode.overload_info import OverloadInfo, is_elementwise
from detmode.mode.plans import plans_of
from detmode.mode.row_counter import RowCounter
from detmode.mode.substitution import on_host
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import CompiledInside
from detmode.process.interface import PYTHON, Interface
from detmode.table.names import matches
from detmode.table.outcome import ActionName
from detmode.table.rule_table import Row, RuleTable, forwards_of
from detmode.table.twins import original_of

_UNSEEN: Any = object()


class BaseMode(CompiledInside):
    """A mode as its levels know it: all of them refer to what it has.

    Args:
        policy: settings that the decisions depend on.
        table: the rules.
        overrides: actions, by the names or globs of operators, or the paths of modules, that they
            are for.
        simulate: a device type, on which CPU and meta tensors count as tensors.
        compiles: false if functions given to ``torch.compile`` run operator by operator.
        logger: gets the warnings, and a line for each call.

    Attributes:
        overrides: those of operators.
        module_overrides: those of modules, the most precise first.
        overloads: by what an overload calls, the facts; None if its calls are not intercepted.
        elementwise: of the same, those whose kernels make no views of what they are given.
        decisions: by the facts that the policy decides on.
        kinds: by the type of a tensor, the treatment of its calls.
        counter: the rows, which last over blocks.
        unlisted: the names of other libraries' operators that no rule lists: a kernel may do more
            than call other operators.
        unsettled: the places where the program has changed settings to which native calls are left,
            by the new value.
        counts_native: whether all blocks so far that list have counted native calls, too; ``None``
            before the first one.
        guests: by their identity, its levels in threads that have not entered it.
    """

    intercepts_listed = False
    """True if kernels of the listed operators hand the calls over, and not a dispatch mode."""

    interface = PYTHON
    """The interface through which it was started; what it says is in that one's words."""

    # Modes of tests and modes that only observe override these.
    announced_actions: ClassVar[Container[str]] = ("warn", "error")
    """The actions that give a warning or an error."""

    def __init__(
        self,
        policy: Policy,
        table: RuleTable,
        overrides: dict[str, ActionName],
        simulate: str | None,
        compiles: bool,
        logger: logging.Logger,
    ) -> None:
        self.policy = policy
        self.table = table
        self.module_overrides = by_precision(overrides)
        self.overrides = {
            name: action for name, action in overrides.items() if name not in self.module_overrides
        }
        # Those of forwards whose backwards are found by the autograd node alone.
        self.forwards_overridden = {
            name: overrides[name] for name in table.forwards_among(self.overrides)
        }
        self.simulate = simulate
        self.compiles = compiles
        self.compiles_for = ""
        self.logger = logger
        self._begin()

    def _begin(self) -> None:
        """Create the state of the calls; a copy starts with a new one."""
        self.overloads: dict[Any, OverloadInfo | None] = {}
        self.elementwise: set[Any] = set()
        self.decisions: dict[tuple[Any, ...], Decision] = {}
        self.kinds: dict[type, int] = {}
        self.counter = RowCounter(self.logger, self.interface)
        self.unlisted: dict[str, None] = {}
        self.unsettled: dict[str, str] = {}
        self.counts_native: bool | None = None
        self.guests: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # The player's knowledge, from the first block on in which there is one.
        self.taught: Any = None
        self._said: set[str] = set()

    @property
    def decides_on_native(self) -> bool:
        """True if no call of a native row may be left to PyTorch's flag: each is decided on."""
        return self.policy.warn_only or bool(self.module_overrides)

    def start_through(self, interface: Interface) -> None:
        """Choose the interface, before the first block."""
        self.interface = self.counter.interface = interface

    def meet(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the devices on which an operator is called for the first time."""
        devices = {tensor.device.type for tensor in tensors_in((*args, *kwargs.values()))}
        if (device := kwargs.get("device")) is not None:
            devices.add(torch.device(device).type)
        self.counter.meet(devices if self.simulate is None else [self.simulate])

    def overload_info(self, func: torch._ops.OpOverload) -> OverloadInfo | None:
        """Return the facts about an overload; ``None`` if its calls are not intercepted."""
        operator = func._op if type(func) is torch._ops.OpOverload else func
        info: OverloadInfo | None = self.overloads.get(operator, _UNSEEN)
        if info is _UNSEEN:
            info = self._look_up(func)
            if info is not None:
                if self.simulate is not None:
                    info.run = on_host(info, info.run)
                # The forward of a call is known only once its place has been looked up.
                if not self.forwards_overridden:
                    info.plans = plans_of(info, self.table, self.policy, self.simulate)
            self.overloads[operator] = info
            if is_elementwise(func):
                self.elementwise.add(operator)
        return info

    def _look_up(self, func: Any) -> OverloadInfo | None:
        """Look an overload up at its first call; ``None`` if its calls are not intercepted."""
        info, called = None, func
        func = original_of(called) or called
        if isinstance(func, torch._ops.OpOverload):
            info = facts_of(func, self.table, self.overrides)
            listed = info.rows or info.override or info.composite
            if not listed and not self.table.is_forward(func._schema.name):
                info.passes = not info.hides_calls
                if info.passes and info.run is func._op:
                    info = None
        if info is not None and func is not called:
            info.twin = called
        return info

    def decide(
        self, facts: tuple[Row | None, ActionName | None, bool, bool, str | None]
    ) -> Decision:
        """Decide by the row, override, ``allow`` region, flag, and what makes a launch fail."""
        row, override, is_allowed, has_flag, unavailable = facts
        decision = decide(
            row.rule if row else None,
            self.policy,
            override=override,
            is_allowed=is_allowed,
            is_flag_on=has_flag,
            unavailable=unavailable,
        )
        decision = self.decisions[facts] = replace(decision, override=override)
        if decision.unavailable is not None:
            self.say_once(decision.unavailable, f"no substitutes here: {decision.unavailable}")
        return decision

    def may_go_on(self, call: Handled) -> bool:
        """Return whether a call that would raise may run, because a suite's baseline has it."""
        return False

    def say_once(self, topic: str, text: str) -> None:
        """Log a warning, once for each topic."""
        if topic not in self._said:
            self._said.add(topic)
            self.logger.warning("%s", self.interface.in_words(text))


def facts_of(
    func: torch._ops.OpOverload, table: RuleTable, overrides: Mapping[str, ActionName]
) -> OverloadInfo:
    """Return the facts about an overload, with the rows and the override that apply to it."""
    rows = table.get(func)
    if rows and all(row.rule.allows for row in rows):
        info = OverloadInfo(func)
        info.hides_calls = False  # they say that it does not vary, with all that it calls
        return info
    info = OverloadInfo(func, rows)
    reaches_backward = table.is_forward(func._schema.name) and not rows
    for name, action in overrides.items():
        if not matches(info.names, (name,)) or not (rows or means_unlisted(name)):
            continue
        # A forward without rows is named for its backward; that it runs is nothing to allow.
        if not reaches_backward or action in ("warn", "error"):
            info.override = action
        return info
    if rows:
        forwards = [forward for name in info.names for forward in forwards_of(name)]
        actions = (action for name, action in overrides.items() if matches(forwards, (name,)))
        info.override = next(actions, None)
    return info
