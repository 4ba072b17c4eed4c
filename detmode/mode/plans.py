"""Calls of substitutes that are repeated by a plan, without their launchers.

The launcher of a substitute makes the first call of a form. It makes the second one, too, and what
it does is recorded (:mod:`detmode.cuda.recording`). Later calls of the form are made by a player of
the plan, if nothing looks at them more closely: no other mode, observer, override of a forward, or
repetition.

A form is the sizes of the tensors and all other arguments. A plan holds for one variant of it:
dtypes, strides, dispatch keys and addresses modulo 16. PyTorch's guards of compiled code compare
the tensors, in a tenth of the time that Python would take.

Which calls have no plan, and why, is logged at level DEBUG by the logger ``detmode.plans``, and
counted by :func:`refusals`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detmode.cuda.memory import COMPONENTS, components, range_of, share_memory
from detmode.cuda.plan import Plan
from detmode.cuda.python_player import player
from detmode.cuda.recording import recording
from detmode.mode.forms import GUARDS, FormFunction, form_function, matcher
from detmode.mode.handled import Handled, Located
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.row_counter import RowCounter
from detmode.mode.substitution import run_validated
from detmode.process.memo import ById, keep_bounded
from detmode.process.setting import is_flag_on
from detmode.sites.forward_memory import ForwardMemory, forward_place
from detmode.sites.module_path import ModulePaths
from detmode.sites.native_memory import process
from detmode.table.call_site import CallSite
from detmode.table.rule import Substitute
from detmode.table.rule_table import RuleTable

__tracebackhide__ = True

NOT_PLAYED: Any = object()
"""In place of the result of a call that has not been made."""
HAS_NO_PLAN: Any = object()
"""In place of the result of a call that has not been made, and of which no plan is recorded."""

_OVERLOADS = 1 << 10
_FORMS = 1 << 11
"""The forms of calls that are remembered of an overload."""
_VARIANTS = 8
"""The variants of a form that may have plans."""

_count_modes = torch._C._len_torch_dispatch_stack
_get_trace = torch._C._get_tracing_state
_logger = logging.getLogger("detmode.plans")
_refusals: Counter[tuple[str, str]] = Counter()


def refusals() -> dict[tuple[str, str], int]:
    """Return, by overload and reason, how often a call was found to have no plan."""
    return dict(_refusals)


class _Variant(NamedTuple):
    """Calls of a form with the same dtypes, strides, dispatch keys and alignments.

    Args:
        match: called with the arguments of a call of the form; returns what to call ``play`` with,
            or None for a call of another variant.
        play: plays their plan; None if they have none.
        has_gradients: whether autograd may record them.
    """

    match: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...] | None]
    play: Callable[..., Any] | None
    has_gradients: bool


_NEITHER = "a tensor is neither strided nor sparse"
_WITHOUT_PLAN = _Variant(lambda args, kwargs: (None,), None, False)
"""All other calls of a form, once one of them had a tensor of another layout."""


class _Plans:
    """The plans for the calls of one overload, under the same rules and arguments of a mode."""

    def __init__(self, overload: OverloadInfo) -> None:
        self._takes_sparse = any(row.rule.when.needs_sparse for row in overload.rows)
        # By the number of positional arguments.
        self._form_functions: dict[int, FormFunction] = {}
        # A form of which one call was made has none yet.
        self._variants: dict[Any, tuple[_Variant, ...]] = {}

    def play(
        self,
        memory: ForwardMemory,
        counter: RowCounter,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make and count a call, if there is a plan for it and nothing else looks at it.

        Returns:
            The result, ``NOT_PLAYED``, or ``HAS_NO_PLAN`` if :meth:`run` would record none either.
        """
        try:
            try:
                form_of = self._form_functions[len(args)]
            except KeyError:
                form_of = form_function(overload.func, len(args), self._takes_sparse)
                self._form_functions[len(args)] = form_of
            form = form_of(args, kwargs)
            variants = self._variants.get(form)
        except (AttributeError, TypeError):
            # A number stands for a tensor.
            return HAS_NO_PLAN
        if variants is None:
            keep_bounded(self._variants, form, (), _FORMS)
            return HAS_NO_PLAN
        # Nothing is recorded, either, if another mode, a repetition or a tracer sees the call, or
        # PyTorch's flag is off.
        if _count_modes() or process.repetitions or _get_trace() is not None or not is_flag_on():
            return HAS_NO_PLAN
        for variant in variants:
            inputs = variant[0](args, kwargs)
            if inputs is not None:
                break
        else:
            return NOT_PLAYED
        _, play, has_gradients = variant
        if play is None:
            return HAS_NO_PLAN
        name, place = overload.name, None
        if not has_gradients and not memory.had_regions:
            place = forward_place(counter.paths)
        if place is None:
            name, place = _place_of(overload, memory, counter.paths, has_gradients)
        if place is None or not counter.count_known(name, "substitute", place):
            return NOT_PLAYED
        return play(*inputs)

    def run(self, call: Handled) -> Any:
        """Make a call that was not played by its launcher, and record a plan."""
        form = self._form_functions[len(call.args)](call.args, call.kwargs)
        variants = self._variants.get(form)
        if (
            variants is None
            or len(variants) == _VARIANTS
            or any(variant.match(call.args, call.kwargs) for variant in variants)
            or is_captured(call.tensors)
        ):
            return run_validated(call)
        if problem := _problem_of(call.tensors):
            refuse(call, problem)
            if problem == _NEITHER:
                keep_bounded(self._variants, form, (*variants, _WITHOUT_PLAN), _FORMS)
            return run_validated(call)
        with recording_of(call) as recorder:
            result = run_validated(call)
        plan = recorder.plan(result)
        if recorder.problem is not None:
            refuse(call, recorder.problem)
        # Others may be reading the tuple.
        keep_bounded(self._variants, form, (*variants, _variant(call, plan)), _FORMS)
        return result

    def forget(self) -> None:
        """Let all be recorded again."""
        self._variants.clear()


_plans: ById[dict[Any, _Plans]] = ById()
"""For each table of rules, those of its overloads under the arguments of a mode."""


def plans_of(overload: OverloadInfo, table: RuleTable, *arguments: Hashable) -> _Plans | None:
    """Return the plans of an overload; ``None`` if it is never planned.

    They live as long as the table, of which a program may make a mode for each step.
    """
    actions = [row.rule.action for row in overload.rows]
    substitutes = [action for action in actions if isinstance(action, Substitute)]
    if (
        GUARDS is None
        or overload.twin is not None
        or not any(action.launches for action in substitutes)
        or not all(is_launcher(action.function) for action in substitutes)
        or any(row.rule.when.reads_values for row in overload.rows)
        or "Generator" in str(overload.func._schema)
    ):
        return None
    plans = _plans.get(id(table))
    if plans is None:
        plans = _plans.keep(table, {})
    key = overload.func, overload.override, *arguments
    return plans.get(key) or keep_bounded(plans, key, _Plans(overload), _OVERLOADS)


def is_launcher(function: Callable[..., Any]) -> bool:
    """Return whether a substitute is detmode's own: what others write may do what no plan has."""
    return getattr(function, "__module__", "").partition(".")[0] == __name__.partition(".")[0]


def forget() -> None:
    """Let everything be recorded again, where what plans depend on has changed: in tests."""
    for of_table in list(_plans.values()):
        for plans in list(of_table.values()):
            plans.forget()


def _place_of(
    overload: OverloadInfo, memory: ForwardMemory, paths: ModulePaths, has_gradients: bool
) -> tuple[str, CallSite | None]:
    """Return the name of a call, as reports show it, and its place; ``None`` if it is allowed.

    The call is remembered for its backward, if that has one.
    """
    call = Located(overload)
    if has_gradients and torch.is_grad_enabled():
        memory.remember_call(call, paths)
    if memory.had_regions and memory.allows(call):
        return call.name, None
    if call.site is None or call.site.site.file is None:
        memory.find_site(call, paths)
    assert call.site is not None
    return call.name, call.site


def refuse(call: Handled, problem: str) -> None:
    """Count a call that has no plan, and log the first one for its reason."""
    _refusals[call.name, problem] += 1
    if _refusals[call.name, problem] == 1:
        _logger.debug("%s: no plan, its launcher runs each time: %s", call.name, problem)


def is_captured(tensors: Sequence[Tensor]) -> bool:
    """Return whether a CUDA graph captures what is done with tensors."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()


def _problem_of(tensors: Sequence[Tensor]) -> str | None:
    if not tensors:
        return "it has no tensors"
    if any(tensor.layout not in COMPONENTS for tensor in tensors):
        return _NEITHER
    if len({tensor.device for tensor in tensors}) > 1:
        return "its tensors are on several devices"
    if tensors[0].is_cuda and tensors[0].get_device() != torch.cuda.current_device():
        return "its tensors are not on the current GPU"
    if share_memory(map(range_of, components(tensors))):
        return "inputs share memory"
    return None


def recording_of(call: Handled) -> AbstractContextManager[Any]:
    """Return a block in which is recorded what a call's substitute does, for a plan."""
    names = call.signature.out_names or ("self",) * (call.overload.variant == "inplace")
    written = [id(call.arguments[name]) for name in names]
    inputs = components(call.tensors)
    return recording(
        inputs, [number for number, tensor in enumerate(inputs) if id(tensor) in written]
    )


def _variant(call: Handled, plan: Plan | None) -> _Variant:
    gradients = any(tensor.requires_grad for tensor in call.tensors)
    if plan is None:
        return _Variant(matcher(call, ()), None, gradients)
    play = player(plan, call.tensors[0].get_device())
    return _Variant(matcher(call, plan.writes), play, gradients)
