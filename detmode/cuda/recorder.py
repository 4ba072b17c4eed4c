"""Writing down what a launcher does, as a plan.

What a recorder does not know it refuses: the call is as it would have been, and has no plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.cuda.memory import form_of, is_dense, range_of, share_memory
from detmode.cuda.plan import (
    CONSTANT,
    NONZERO,
    NOWHERE,
    AtenCall,
    Check,
    Copy,
    Empty,
    Fill,
    Form,
    Launch,
    Look,
    Plan,
    Pointer,
    Step,
    View,
    with_places,
)
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import untrace_dispatch

_of_compiled_code: Any = torch._C._dynamo.guards
_empty: Callable[..., Tensor] = _of_compiled_code._empty_strided_cpu

_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_are_functions_off: Callable[[], bool] = torch._C._is_torch_function_all_disabled

_STEP = 512
"""Temporaries begin at multiples of it, as what PyTorch's allocator gives on a GPU."""

_ABOUT_FORMS = frozenset(
    (
        *("aten::is_set_to", "aten::is_same_size", "aten::is_coalesced", "aten::_nnz"),
        *("aten::sparse_dim", "aten::dense_dim"),
    )
)
"""Operators that look at no values."""

HOST_READ = "values are read on the host"
_REFUSED_TAGS = {
    torch.Tag.data_dependent_output: HOST_READ,
    torch.Tag.dynamic_output_shape: "the size of a result depends on values",
    torch.Tag.nondeterministic_seeded: "random numbers are drawn",
}


class Recorder(TorchDispatchMode):
    """The record of a launcher, so far.

    Args:
        inputs, writes: as of :func:`recording`.

    Attributes:
        problem: the reason why there is no plan; None so far.
    """

    def __init__(self, inputs: Sequence[Tensor], writes: Sequence[int]) -> None:
        TorchDispatchMode.__init__(self)
        self.problem: str | None = None
        self._is_paused = False
        self._writes = tuple(writes)
        # With the slots that each makes.
        self._steps: list[tuple[Step, tuple[int, ...]]] = []
        self._allocated: list[int] = []
        # The slots whose memory steps name.
        self._used: set[int] = set()
        # They are alive, so that nothing else gets their memory.
        self._slots: list[Tensor] = list(inputs)
        self._ranges = [range_of(tensor) for tensor in inputs]
        self._n_inputs = len(inputs)
        self._looks: list[Look] = []
        self._problem_of_looks: str | None = None
        self._device = inputs[0].device if inputs else None
        if share_memory(self._ranges):
            # An address would not say which of them is meant.
            self.refuse("inputs share memory")
        if _is_excluded(torch._C.DispatchKey.Python) or _are_functions_off():
            self.refuse("PyTorch passes no calls to modes here")

    def refuse(self, problem: str) -> None:
        """Note why there is no plan; the first reason stays."""
        if self.problem is None and not self._is_paused:
            self.problem = problem

    # What launchers do

    def allocated(self, tensor: Tensor) -> None:
        """Note memory that a launcher has allocated."""
        with torch._C.DisableTorchFunction():
            self._allocated.append(len(self._slots))
            self._note(Empty(form_of(tensor)), [tensor])

    def launched(
        self,
        what: tuple[Any, str, tuple[int, int, int], int],
        grid: tuple[int, int, int],
        bound: tuple[bytes, tuple[Tensor | None, ...]],
    ) -> None:
        """Note a launch; the arguments are those of the function that makes it."""
        source, entry, block, shared = what
        numbers, tensors = bound
        with torch._C.DisableTorchFunction():
            pointers = tuple(None if tensor is None else self._view(tensor) for tensor in tensors)
        offsets = tuple(source.signature(entry).offsets)
        self._note(Launch(source, entry, grid, block, shared, pointers, numbers, offsets))

    def check(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Make a check of values, and note it where it looks at them."""
        if self._device is not None and self._device.type == "cpu":
            with torch._C.DisableTorchFunction():
                self._note(Check(function, *self._as_views((args, kwargs))))
        return self.apart(function, *args, **kwargs)

    def apart(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call of which nothing is noted."""
        outer, self._is_paused = self._is_paused, True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_paused = outer

    def look(self, look: Look, values: Tensor, problem: str) -> None:
        """Note that values are looked at, those of an input before anything else is done.

        Args:
            look: all except the slot.
            values: those.
            problem: of a plan that may not look, or of other values.
        """
        same = (
            slot
            for slot, tensor in enumerate(self._slots[: self._n_inputs])
            if tensor.is_set_to(values) and values.numel() > 0
        )
        slot = next(same, None)
        if slot is None or self._steps:
            return self.refuse(problem)
        self._looks.append(look._replace(slot=slot))
        self._problem_of_looks = self._problem_of_looks or problem
        return None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._is_paused and self.problem is None:
            with torch._C.DisableTorchFunction():
                self._note_call(func, args, kwargs, result)
        return result

    def _note_call(
        self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        name, n_results, writes, makes_views, problem = _facts_of(func)
        results = tensors_in([result])
        tensors = results or tensors_in((*args, *kwargs.values()))
        if name in _ABOUT_FORMS or all(tensor.is_meta for tensor in tensors):
            return None
        if name == "aten::nonzero":
            return self._note_nonzero(args[0], result, f"{func}: {problem}")
        if problem is not None:
            return self.refuse(f"{func}: {problem}")
        if len(results) < n_results:
            return self.refuse(f"{func}: a result is no tensor")
        if not makes_views and any(result.layout is not torch.strided for result in results):
            return self.refuse(f"{func}: a result is sparse")
        if name in ("aten::zero_", "aten::fill_") and self._note_fill(args):
            return None
        if name == "aten::copy_":
            return self._note_copy(args[0], args[1])
        # What autograd would take apart comes whole: `contiguous` makes a view or a copy.
        is_copy = name in ("aten::clone", "aten::_to_copy", "aten::contiguous")
        has_new = is_copy or not makes_views
        new = [tensor for tensor in results if not self._knows(tensor)] if has_new else []
        if is_copy and len(new) == 1:
            self.allocated(new[0])
            return self._note_copy(new[0], args[0])
        if not new and not writes:
            return None  # views
        args, kwargs = self._as_views((args, kwargs))
        has_flag = torch.are_deterministic_algorithms_enabled()
        self._note(AtenCall(func, args, kwargs, tuple(map(form_of, new)), has_flag), new)

    def _note_nonzero(self, values: Tensor, result: Tensor, problem: str) -> None:
        """Note a look that has found one more input."""
        self.look(Look(NONZERO, CONSTANT, 0), values, problem)
        self._slots.append(result)
        self._ranges.append(range_of(result))
        self._n_inputs += 1

    def _note_fill(self, args: Any) -> bool:
        """Note that memory is filled with one number; return false if it is another fill."""
        target, *values = args
        form = form_of(target)
        if any(isinstance(value, Tensor) for value in values) or not is_dense(form):
            return False
        if form.nbytes:
            # Not torch.full: PyTorch's flag fills the memory of what it allocates first.
            number = _empty((1,), (1,), form.dtype).fill_(*(values or (0,)))
            pattern = bytes(number.view(torch.uint8).tolist())
            self._note(Fill(self._place(target), form.nbytes, pattern))
        return True

    def _note_copy(self, target: Tensor, source: Tensor) -> None:
        if target.numel() == 0:
            return
        to, of = self._view(target), self._view(source)
        is_alike = to.form == of.form and is_dense(to.form)
        self._note(Copy(to, of, to.form.nbytes if is_alike else None))

    # Memory

    def _note(self, step: Step, new: Sequence[Tensor] = ()) -> None:
        """Note a step, and the memory that it has made."""
        first = len(self._slots)
        self._steps.append((step, tuple(range(first, first + len(new)))))
        for tensor in new:
            if tensor.device != self._device or tensor.storage_offset():
                self.refuse("memory on another device, or in the midst of some")
            self._slots.append(tensor)
            self._ranges.append(range_of(tensor))

    def _knows(self, tensor: Tensor) -> bool:
        return any(tensor is slot for slot in self._slots) or (
            tensor.numel() > 0 and self._slot_of(tensor) is not None
        )

    def _slot_of(self, tensor: Tensor) -> int | None:
        address = tensor.data_ptr()
        for slot, (start, end) in enumerate(self._ranges):
            if start <= address < end:
                return slot
        return None

    def _place(self, tensor: Tensor) -> Pointer:
        """Return where a tensor begins."""
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            self.refuse("a tensor is not strided, or a conjugate or negative view")
            return NOWHERE
        if tensor.numel() == 0:
            return NOWHERE
        address, slot = tensor.data_ptr(), self._slot_of(tensor)
        if slot is not None:
            self._used.add(slot)
            return Pointer(slot, address - self._ranges[slot][0])
        self.refuse("memory of neither the inputs nor the call")
        return NOWHERE

    def _view(self, tensor: Tensor) -> View:
        place = self._place(tensor)
        return View(place, form_of(tensor) if self.problem is None else _NONE)

    def _as_views(self, value: Any) -> Any:
        """Return an argument, in lists, tuples and dicts too, with views for its tensors."""
        if isinstance(value, Tensor):
            return self._view(value)
        if isinstance(value, dict):
            return {name: self._as_views(part) for name, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._as_views, value))
        return value

    # The plan

    def plan(self, result: Any, *, may_look: bool = False) -> Plan | None:
        """The plan of the call that has given a result; None if there is a problem.

        Args:
            result: of the call.
            may_look: it may look at values before its steps.
        """
        if self._problem_of_looks is not None and not may_look:
            self.refuse(self._problem_of_looks)
        is_tuple = isinstance(result, (tuple, list))
        values = list(result) if is_tuple else [result]
        slots = [None if value is None else self._returned(value) for value in values]
        returned = {slot: value for slot, value in zip(slots, values) if slot is not None}
        if len(returned) < len(slots) - slots.count(None):
            self.refuse("two results have the same memory")
        used = self._used.union(slots)
        self._check_use(used)
        if self.problem is not None:
            return None
        steps, moved = self._arranged(used, returned)
        return Plan(
            inputs=tuple(map(form_of, self._slots[: self._n_inputs])),
            device="cpu" if self._device is None else self._device.type,
            steps=steps,
            results=tuple(None if slot is None else moved[slot].slot for slot in slots),
            is_tuple=is_tuple,
            writes=self._writes,
            looks=tuple(self._looks),
        )

    def _returned(self, value: Any) -> int | None:
        """The slot of a result, which is all of the slot's memory."""
        if not isinstance(value, Tensor):
            self.refuse("a result is no tensor")
            return None
        for slot, tensor in enumerate(self._slots):
            if tensor is value:
                return slot
        if value.numel() == 0:
            self.allocated(value)
            return len(self._slots) - 1
        slot, byte = self._place(value)
        start, end = self._ranges[slot]
        if byte or slot not in self._allocated or form_of(value).nbytes != end - start:
            self.refuse("a result is a part of other memory")
        return slot

    def _check_use(self, used: set[int | None]) -> None:
        """Refuse an operator whose result leads nowhere: it may have been read on the host."""
        for step, slots in self._steps:
            if isinstance(step, AtenCall) and slots and used.isdisjoint(slots):
                self.refuse(f"{step.func}: nothing uses its result")

    def _arranged(
        self, used: set[int | None], returned: dict[int, Tensor]
    ) -> tuple[tuple[Step, ...], dict[int, Pointer]]:
        """The steps, of which one allocates all that does not leave the call; and the new places.

        ``used``: slots. ``returned``: the results by their slots.
        """
        moved = {slot: Pointer(slot, 0) for slot in range(self._n_inputs)}
        moved[CONSTANT] = Pointer(CONSTANT, 0)
        new: list[Step] = []
        size = 0
        for slot in self._allocated:
            if slot in used and slot not in returned:
                moved[slot] = Pointer(self._n_inputs, size)
                start, end = self._ranges[slot]
                size += max(-(-(end - start) // _STEP), 1) * _STEP
        if size:
            new.append(Empty(Form(torch.uint8, (size,), (1,))))
        for slot in self._allocated:
            if slot in returned:
                moved[slot] = Pointer(self._n_inputs + len(new), 0)
                new.append(Empty(form_of(returned[slot])))
        number = self._n_inputs + len(new)
        for step, slots in self._steps:
            for slot in slots if isinstance(step, AtenCall) else ():
                moved[slot] = Pointer(number, 0)
                number += 1
        rest: list[Step] = [step for step, _ in self._steps if not isinstance(step, Empty)]
        if any(place != (slot, 0) for slot, place in moved.items()):
            rest = [with_places(step, moved) for step in rest]
        return (*new, *rest), moved


# PyTorch's own wrapper would import its compiler at the first call.
untrace_dispatch(Recorder)

_NONE = Form(torch.uint8, (), ())


@functools.lru_cache(1 << 10)
def _facts_of(func: torch._ops.OpOverload) -> tuple[str, int, bool, bool, str | None]:
    """Return the facts about an operator, which its schema takes long to tell.

    They are its name without that of the overload, the number of its results, whether it writes to
    its arguments, whether its results are views of them, and the reason why no plan calls it.
    """
    schema, tags = func._schema, func.tags
    makes_views = not schema.is_mutable and any(result.alias_info for result in schema.returns)
    problem = next((problem for tag, problem in _REFUSED_TAGS.items() if tag in tags), None)
    return schema.name, len(schema.returns), schema.is_mutable, makes_views, problem
