"""Playing a plan in Python: all of its steps as one function, compiled from text.

What is the same in each call is looked up once, and the text has it by name: numbers, kernels, the
driver's functions. Plans that differ in these alone share the compiled text.

On a GPU a launch is the driver's call. On the CPU it goes through the host runner, which takes
tensors, checks what the kernel accesses, and shuffles the schedule.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from detmode.cuda import allocation, device, host
from detmode.cuda.allocation import reinterpret
from detmode.cuda.plan import (
    CONSTANT,
    AtenCall,
    Check,
    Copy,
    Empty,
    Fill,
    Form,
    Launch,
    Plan,
    Pointer,
    Step,
    View,
)
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import own_calls
from detmode.process.torch_settings import deterministic_flag

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""The dtypes in which patterns of so many bytes are written."""
_DEVICE_TO_DEVICE = 3
"""The kind of a copy, for ``cudaMemcpyAsync``."""


def player(plan: Plan, index: int = -1) -> Callable[..., Any]:
    """Return the function that plays a plan.

    It is called with the tensors of a call, and then with the addresses of their first elements,
    and returns what the launcher would.

    Args:
        plan: the plan.
        index: of the GPU, which is to be the current one when the function is called.
    """
    writer = WRITERS[plan.device](plan, index)
    namespace: dict[str, Any] = {}
    exec(_compiled(writer.text()), namespace)
    play: Callable[..., Any] = namespace["make"](*writer.constants)
    return functools.partial(own_calls.run, play) if writer.calls_aten else play


@functools.lru_cache(1 << 10)
def _compiled(text: str) -> CodeType:
    return compile(text, "<detmode plan>", "exec")


class _Writer:
    """The text of a player.

    Args:
        plan, index: as for :func:`player`.

    Attributes:
        constants: those that the text has by name.
        calls_aten: whether the text calls operators, which rules may list.
    """

    def __init__(self, plan: Plan, index: int) -> None:
        self.plan = plan
        self.index = index
        self.constants: list[Any] = []
        self.calls_aten = False
        self._forms = dict(enumerate(plan.inputs))
        self._addresses = set(self._forms)
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the text of a function that makes the player from the constants."""
        inputs = range(len(self.plan.inputs))
        taken = ", ".join([*(f"t{slot}" for slot in inputs), *(f"p{slot}" for slot in inputs)])
        self._begin()
        for step in self.plan.steps:
            self._write(step)
        results = ["None" if slot is None else f"t{slot}" for slot in self.plan.results]
        several = "".join(f"{result}, " for result in results)
        self.line(f"return ({several})" if self.plan.is_tuple else f"return {results[0]}")
        names = ", ".join(f"c{number}" for number in range(len(self.constants)))
        lines = "\n        ".join(self._lines)
        return f"def make({names}):\n    def play({taken}):\n        {lines}\n    return play\n"

    def line(self, text: str) -> None:
        """Add a line."""
        self._lines.append(text)

    def name(self, constant: Any) -> str:
        """Return the name of a constant."""
        self.constants.append(constant)
        return f"c{len(self.constants) - 1}"

    def _begin(self) -> None:
        """Add the lines before those of the steps."""

    def _write(self, step: Step) -> None:
        """Add the lines of a step."""
        match step:
            case Empty(form):
                sizes, strides, dtype = map(self.name, (form.sizes, form.strides, form.dtype))
                self._add_slot(form, f"{self.name(self.empty)}({sizes}, {strides}, {dtype})")
            case Fill(place, nbytes, pattern) if _is_uniform(pattern):
                self._fill(self.address(place), pattern[0], nbytes)
            case Fill(place, nbytes, pattern):
                words = _WORDS[len(pattern)]
                number = torch.frombuffer(bytearray(pattern), dtype=words).item()
                form = Form(words, (nbytes // len(pattern),), (1,))
                self.calls_aten = True
                self.line(f"{self.tensor(View(place, form))}.fill_({self.name(number)})")
            case Copy(target, source, int(nbytes)):
                self._copy(self.address(target.place), self.address(source.place), nbytes)
            case Copy(target, source):
                self.calls_aten = True
                self.line(f"{self.tensor(target)}.copy_({self.tensor(source)})")
            case Launch():
                self._launch(step)
            case Check():
                self._check(step)
            case AtenCall():
                self._call(step)

    def _call(self, step: AtenCall) -> None:
        self.calls_aten = True
        function = self.name(step.func if step.has_flag else _without_flag(step.func))
        call = self.call(function, step.args, step.kwargs)
        if not step.results:
            return self.line(call)
        self.line(f"results = {self.name(tensors_in)}(({call},))")
        for number, form in enumerate(step.results):
            self._add_slot(form, f"results[{number}]")

    def call(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a call."""
        values = [self.value(arg) for arg in args]
        values += [f"{name}={self.value(value)}" for name, value in kwargs.items()]
        return f"{function}({', '.join(values)})"

    def _add_slot(self, form: Form, value: str) -> None:
        self.line(f"t{len(self._forms)} = {value}")
        self._forms[len(self._forms)] = form

    def address(self, place: Pointer) -> str:
        """Return an address."""
        slot, byte = place
        if slot == CONSTANT:
            return "0"
        if slot not in self._addresses:
            self._addresses.add(slot)
            self.line(f"p{slot} = t{slot}.data_ptr()")
        return f"p{slot} + {self.name(byte)}" if byte else f"p{slot}"

    def tensor(self, view: View) -> str:
        """Return a tensor."""
        (slot, byte), form = view
        if slot == CONSTANT:
            return f"{self.name(self.empty)}({', '.join(map(self.name, form[1:] + form[:1]))})"
        if not byte and form == self._forms[slot]:
            return f"t{slot}"
        return f"{self.name(view_of)}(t{slot}, {self.name(byte)}, {self.name(form)})"

    def value(self, value: Any) -> str:
        """Return an argument, in which views stand for tensors."""
        if isinstance(value, View):
            return self.tensor(value)
        if type(value) in (list, tuple):
            values = "".join(f"{self.value(part)}, " for part in value)
            return f"[{values}]" if type(value) is list else f"({values})"
        return self.name(value)

    # What depends on where the tensors are

    empty: Callable[..., Tensor]

    def _fill(self, address: str, byte: int, nbytes: int) -> None:
        """Write a byte again and again."""
        raise NotImplementedError

    def _copy(self, target: str, source: str, nbytes: int) -> None:
        """Copy bytes."""
        raise NotImplementedError

    def _launch(self, step: Launch) -> None:
        """Launch a kernel."""
        raise NotImplementedError

    def _check(self, step: Check) -> None:
        """Look at values."""


class _OnGpu(_Writer):
    """By the driver's calls, on the current stream of the current GPU."""

    empty = staticmethod(allocation.on_cuda)

    def _begin(self) -> None:
        index, stream_of = self.name(self.index), torch._C._cuda_getCurrentRawStream
        self.line(f"stream = {self.name(stream_of)}({index})")
        self._has_set_device = False

    def _fill(self, address: str, byte: int, nbytes: int) -> None:
        self._set_device()
        _, function, _ = device.runtime_functions()
        numbers = f"{self.name(byte)}, {self.name(nbytes)}"
        self.line(f"{self.name(function)}({address}, {numbers}, stream)")

    def _copy(self, target: str, source: str, nbytes: int) -> None:
        self._set_device()
        _, _, function = device.runtime_functions()
        numbers = f"{self.name(nbytes)}, {_DEVICE_TO_DEVICE}"
        self.line(f"{self.name(function)}({target}, {source}, {numbers}, stream)")

    def _launch(self, step: Launch) -> None:
        self._set_device()
        kernel = device.loaded(step.source, step.entry, self.index)
        put = struct.Struct(f"={len(step.pointers)}Q{len(step.numbers)}s").pack_into
        places = ("0" if view is None else self.address(view.place) for view in step.pointers)
        addresses = "".join(f"{address}, " for address in places)
        sizes = ", ".join(map(self.name, (*step.grid, *step.block, step.shared)))
        function = f"{self.name(kernel.launch_kernel)}({self.name(kernel.function)}"
        self.line(f"values, arguments = {self.name(kernel.slots)}.all")
        self.line(f"{self.name(put)}(values, 0, {addresses}{self.name(step.numbers)})")
        self.line(f"{function}, {sizes}, stream, arguments, 0)")

    def _set_device(self) -> None:
        """Set the context of the OS thread, once, which the driver's calls need."""
        if not self._has_set_device:
            self._has_set_device = True
            set_device, _, _ = device.runtime_functions()
            self.line(f"{self.name(set_device)}({self.name(self.index)})")


class _OnHost(_Writer):
    """By the host runner, and C's functions for memory."""

    empty = staticmethod(allocation.on_cpu)

    def _fill(self, address: str, byte: int, nbytes: int) -> None:
        self.line(f"{self.name(ctypes.memset)}({address}, {byte}, {nbytes})")

    def _copy(self, target: str, source: str, nbytes: int) -> None:
        self.line(f"{self.name(ctypes.memmove)}({target}, {source}, {nbytes})")

    def _launch(self, step: Launch) -> None:
        tensors = ("None" if view is None else self.tensor(view) for view in step.pointers)
        bound = f"({self.name(step.numbers)}, ({''.join(f'{tensor}, ' for tensor in tensors)}))"
        what = ", ".join(map(self.name, (step.source, step.entry, step.grid, step.block)))
        # Looked up in each call: tests have other functions in its place.
        self.line(f"{self.name(host)}.launch_blocks({what}, {bound}, {self.name(step.shared)})")

    def _check(self, step: Check) -> None:
        self.calls_aten = True
        self.line(self.call(self.name(step.function), step.args, step.kwargs))


WRITERS: dict[str, type[_Writer]] = {"cuda": _OnGpu, "cpu": _OnHost}
"""By the type of device."""


def _is_uniform(pattern: bytes) -> bool:
    return len(set(pattern)) == 1


def _without_flag(func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: deterministic_flag(False).around(func, *args, **kwargs)


def view_of(memory: Tensor, byte: int, form: Form) -> Tensor:
    """Look at memory as a tensor, a number of bytes behind its first element."""
    last = sum((size - 1) * stride for size, stride in zip(memory.shape, memory.stride()))
    # As many as make up whole elements of the other dtype.
    at_once = max(form.dtype.itemsize // memory.dtype.itemsize, 1)
    whole = (last + 1) // at_once * at_once
    elements = reinterpret(memory, (whole,), (1,), 0).view(form.dtype)
    return reinterpret(elements, form.sizes, form.strides, byte // form.dtype.itemsize)
