"""Calls of substitutes that are repeated by a plan, without their launchers.

The launcher of a substitute makes the first call of a form. It makes the second one, too, and what
it does is recorded (:mod:`detmode.cuda.recorder`). Later calls of the form are made by a player of
the plan, if nothing looks at them more closely: no other mode, observer, ``allow`` region, override
of a forward, or repetition.

A form is what decides on a launcher's steps: dtypes, sizes and strides of the tensors, their
dispatch keys, their addresses modulo 16, and all other arguments. PyTorch's guards of compiled code
compare what concerns tensors, in a tenth of the time that Python would take.

Which calls have no plan, and why, is logged at level DEBUG by the logger ``detmode.plans``, once
for each form, and counted by :func:`refusals`.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from detmode.cuda.plan import Plan
from detmode.cuda.python_player import calls_aten, player
from detmode.cuda.recorder import recording
from detmode.mode.handled import Handled
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.substitution import SPARSE, run_validated, shapes_of
from detmode.process.arguments import tensors_in
from detmode.process.bounded import Bounded
from detmode.process.dispatch import is_tracing, own_calls
from detmode.process.setting import is_flag_on
from detmode.sites.observers import repetitions
from detmode.table.call_site import CallSite, Note
from detmode.table.rule import Substitute

if TYPE_CHECKING:
    from detmode.mode.base_mode import BaseMode
    from detmode.mode.interception import Interception

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

NOT_PLAYED: Any = object()
"""In place of the result of a call that has not been made."""

_FORMS = 1 << 9
"""The sizes of which a table has plans."""
_SEEN = 1 << 12
"""The forms of which a table knows that they were met once, or have no plan."""
_TABLES = 1 << 9
_VARIANTS = 8
"""The plans for the same sizes: of other strides, dtypes or arguments."""
_ONCE = "met once"

_count_modes = torch._C._len_torch_dispatch_stack
_Guards: Any = torch._C._dynamo.guards.TensorGuards
_logger = logging.getLogger("detmode.plans")
_refusals: Counter[tuple[str, str]] = Counter()


def refusals() -> dict[tuple[str, str], int]:
    """Return, by overload and reason, the number of forms of calls that have no plan."""
    return dict(_refusals)


class _Plan(NamedTuple):
    """A plan, ready to be played.

    Args:
        match: called with the arguments of a call; returns what to call ``play`` with, or None for
            a call of another form.
        play: plays the plan.
        has_gradients: whether autograd may record the call.
    """

    match: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...] | None]
    play: Callable[..., Any]
    has_gradients: bool


class _Placed:
    """A call whose place is looked up, as :class:`~detmode.sites.forward_memory.Placed`."""

    __slots__ = ("name", "names", "notes", "site")

    def __init__(self, overload: OverloadInfo) -> None:
        self.name = overload.name
        self.names = overload.names
        self.site: CallSite | None = None
        self.notes: Sequence[Note] | None = None


class Plans:
    """The plans for the calls of one overload, under the same rules and arguments of a mode.

    Args:
        overload: the facts.
        positions: of its arguments that are tensors.
    """

    def __init__(self, overload: OverloadInfo, positions: Sequence[int]) -> None:
        self._rows = overload.rows  # their identities are a part of the table's key
        self._by_sizes: Bounded[Any, list[_Plan]] = Bounded(_FORMS)
        self._seen: Bounded[Any, str] = Bounded(_SEEN)
        sizes = "".join(f"args[{position}].shape, " for position in positions)
        self._sizes_of: Callable[[tuple[Any, ...]], Any] = eval(f"lambda args: ({sizes})")

    def play(
        self,
        level: Interception,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make and count a call, if there is a plan for it and nothing else looks at it.

        Returns:
            The result, or ``NOT_PLAYED``.
        """
        try:
            plans = self._by_sizes.get(self._sizes_of(args))
        except (AttributeError, TypeError):
            # A number stands for a tensor, or a size is a symbol.
            return NOT_PLAYED
        if plans is None or not _is_unwatched(level):
            return NOT_PLAYED
        for plan in plans:
            inputs = plan.match(args, kwargs)
            if inputs is not None:
                break
        else:
            return NOT_PLAYED
        call = _Placed(overload)
        if plan.has_gradients and torch.is_grad_enabled():
            level.memory.remember_call(call, level.counter.paths)
        if call.site is None or call.site.site.file is None:
            level.memory.find_site(call, level.counter.paths)
        assert call.site is not None
        if not level.counter.count_known(call.name, "substitute", call.site):
            return NOT_PLAYED
        return plan.play(*inputs)

    def run(self, level: Interception, call: Handled) -> Any:
        """Make a call by its launcher, and record a plan if it is the second one of its form."""
        shapes = shapes_of(call.arguments.values())
        if SPARSE in shapes or not _is_unwatched(level) or _is_capturing():
            return run_validated(call)
        addresses = tuple(tensor.data_ptr() % 16 for tensor in call.tensors)
        form = shapes, addresses, _gradients_of(call.tensors)
        seen = self._seen.get(form)
        if seen is not _ONCE:
            if seen is None:
                self._seen.keep(form, _ONCE)
            return run_validated(call)
        result, problem = self._record(call)
        if problem is None:
            self._seen.pop(form, None)
        else:
            self._seen.keep(form, problem)
            _refusals[call.name, problem] += 1
            _logger.debug("%s: no plan, its launcher runs each time: %s", call.name, problem)
        return result

    def _record(self, call: Handled) -> tuple[Any, str | None]:
        """Make a call and keep its plan; return its result, and the reason why there is no plan."""
        outputs = call.signature.out_names
        if not outputs and call.overload.variant == "inplace":
            outputs = ("self",)
        written = [id(call.arguments[name]) for name in outputs]
        writes = [number for number, each in enumerate(call.tensors) if id(each) in written]
        with recording(call.tensors, writes) as recorder:
            result = run_validated(call)
        plan = recorder.plan(result)
        if plan is None:
            return result, recorder.problem
        matcher = _Matcher(call, plan)
        match = matcher.function()
        if match is None:
            return result, matcher.problem
        play = player(plan, call.tensors[0].get_device())
        if calls_aten(plan):
            play = functools.partial(own_calls.run, play)
        gradients = any(tensor.requires_grad for tensor in call.tensors)
        sizes = self._sizes_of(call.args)
        plans = self._by_sizes.get(sizes) or []
        # Others may be reading the list.
        self._by_sizes.keep(sizes, [_Plan(match, play, gradients), *plans][:_VARIANTS])
        return result, None


_tables: Bounded[Any, Plans] = Bounded(_TABLES)


def plans_of(overload: OverloadInfo, mode: BaseMode) -> Plans | None:
    """Return the plans of an overload under the rules of a mode; ``None`` if it is never planned.

    They outlast the mode: a program may make one for each step.
    """
    actions = [row.rule.action for row in overload.rows]
    if (
        overload.twin is not None
        or mode.forwards_overridden
        or not any(isinstance(action, Substitute) and action.launches for action in actions)
    ):
        return None
    arguments = overload.func._schema.arguments
    positions = [
        position
        for position, argument in enumerate(arguments)
        if str(argument.type) == "Tensor" and not argument.kwarg_only
    ]
    rows = tuple(map(id, overload.rows))
    key = overload.func, rows, overload.override, mode.policy, mode.simulate
    if not positions:
        return None
    return _tables.get(key) or _tables.keep(key, Plans(overload, positions))


def forget() -> None:
    """Let everything be recorded again, where what plans depend on has changed: in tests."""
    for plans in list(_tables.values()):
        plans._by_sizes.clear()
        plans._seen.clear()


def _is_unwatched(level: Interception) -> bool:
    """Return whether the calls of a level need nothing but to be counted and made."""
    return (
        not (_count_modes() or level.memory.had_regions or repetitions or is_tracing())
        and is_flag_on()
    )


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _gradients_of(tensors: Sequence[Tensor]) -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *(tensor.requires_grad for tensor in tensors)


class _Matcher:
    """The text of a function that tells the calls of a form, and returns what to play a plan with.

    Args:
        call: a call of the form.
        plan: its plan.

    Attributes:
        problem: the reason why calls cannot be told.
    """

    def __init__(self, call: Handled, plan: Plan) -> None:
        self.problem: str | None = None
        self._plan = plan
        self._tensors: list[tuple[str, Tensor]] = []
        self._constants: list[Any] = []
        signature = call.signature
        names = [name for name in signature.names if name in call.kwargs]
        values = [(f"args[{number}]", arg) for number, arg in enumerate(call.args)]
        values += [(f"kwargs[{name!r}]", call.kwargs[name]) for name in names]
        head = f"len(args) == {len(call.args)} and kwargs.keys() == {self._name(set(names))}"
        self._conditions = [head, *(text for value in values for text in self._compare(*value))]
        if [id(tensor) for _, tensor in self._tensors] != [id(each) for each in call.tensors]:
            self.problem = "its tensors are not in the order of its arguments"

    def function(self) -> Callable[..., Any] | None:
        """Return the function; None if there is a problem."""
        if self.problem is not None:
            return None
        tensors = [tensor for _, tensor in self._tensors]
        sizes, strides = ([list(f(t)) for t in tensors] for f in (Tensor.size, Tensor.stride))
        guards = _Guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        taken = ", ".join(name for name, _ in self._tensors)
        self._conditions.append(f"{self._name(guards.check)}({taken})")
        if any(tensor.requires_grad for tensor in tensors):
            is_enabled, state = self._name(torch.is_grad_enabled), torch.is_grad_enabled()
            self._conditions.append(f"{is_enabled}() is {state}")
        if tensors[0].is_cuda:
            current = self._name(torch._C._cuda_getDevice)
            self._conditions.append(f"{current}() == {tensors[0].get_device()}")
        return self._compiled(taken)

    def _compiled(self, taken: str) -> Callable[..., Any]:
        numbers = range(len(self._tensors))
        addresses = ", ".join(f"p{number}" for number in numbers)
        lines = [
            f"if not ({' and '.join(self._conditions)}): return None",
            *(f"p{number} = {name}.data_ptr()" for number, (name, _) in enumerate(self._tensors)),
            f"if {' or '.join(self._differences())}: return None",
            f"return {taken}, {addresses}",
        ]
        names = ", ".join(f"c{number}" for number in range(len(self._constants)))
        body = "\n        ".join(lines)
        text = (
            f"def make({names}):\n    def match(args, kwargs):\n        {body}\n    return match\n"
        )
        namespace: dict[str, Any] = {}
        exec(_compile(text), namespace)
        match: Callable[..., Any] = namespace["make"](*self._constants)
        return match

    def _differences(self) -> Iterator[str]:
        """Return what tells other alignments, and memory that is written and shared."""
        begins = [tensor.data_ptr() % 16 for _, tensor in self._tensors]
        aligned = " | ".join(f"p{n}" for n, begin in enumerate(begins) if not begin)
        if aligned:
            yield f"({aligned}) & 15"
        yield from (f"p{n} & 15 != {begin}" for n, begin in enumerate(begins) if begin)
        ends = [f"p{n} + {self._name(form.nbytes)}" for n, form in enumerate(self._plan.inputs)]
        for one in self._plan.writes:
            for other in range(len(ends)):
                if other != one:
                    yield f"p{one} < {ends[other]} and p{other} < {ends[one]}"

    def _name(self, constant: Any) -> str:
        self._constants.append(constant)
        return f"c{len(self._constants) - 1}"

    def _compare(self, name: str, value: Any) -> Iterator[str]:
        """Return the conditions under which an argument has a value, and note its tensors."""
        kind = type(value)
        if isinstance(value, Tensor):
            self._tensors.append((name, value))
        elif value is None or kind is bool:
            yield f"{name} is {value}"
        elif kind in (list, tuple) and tensors_in(value):
            yield f"type({name}) is {kind.__name__} and len({name}) == {len(value)}"
            for number, part in enumerate(value):
                yield from self._compare(f"{name}[{number}]", part)
        elif kind in (int, str, *_CONSTANTS):
            yield f"type({name}) is {self._name(kind)} and {name} == {self._name(value)}"
        elif kind in (float, complex, list, tuple):
            # 0.0 and -0.0 are equal, and so are 1, 1.0 and True.
            yield f"{self._name(repr)}({name}) == {self._name(repr(value))}"
        else:
            self.problem = f"an argument is a {kind.__name__}"


_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.device)


@functools.lru_cache(1 << 10)
def _compile(text: str) -> CodeType:
    return compile(text, "<detmode form>", "exec")
