"""Plans: what a launcher does for a call, written down as data.

The sizes, strides, dtypes and numbers of a call decide on it, and the bits of its tensors do not.
So what was recorded once (:mod:`detmode.cuda.recording`) holds for each later call of the same
form, and a player repeats it with other tensors.

A *slot* is a tensor, by its number: first those of the call in the order of its arguments, lists
flattened and None left out, then those that the plan allocates, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import torch

from detmode.cuda.source import Source
from detmode.process.arguments import signature_of

CONSTANT = -1
"""Stands for a slot where there is no memory; the byte is 0."""


class Pointer(NamedTuple):
    """An address: so many bytes behind the first element of a slot."""

    slot: int
    byte: int


NOWHERE = Pointer(CONSTANT, 0)
"""The place of a tensor without elements."""


class Form(NamedTuple):
    """A tensor's dtype, sizes and strides, which count elements."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes from the first element to the end of the last one."""
        if 0 in self.sizes:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides))
        return (last + 1) * self.dtype.itemsize


class View(NamedTuple):
    """Memory that is looked at as a tensor."""

    place: Pointer
    form: Form


class Empty(NamedTuple):
    """Allocate a slot, on the device of the call; nothing fills it."""

    form: Form


class Fill(NamedTuple):
    """Write a pattern of 1, 2, 4, 8 or 16 bytes, again and again."""

    place: Pointer
    nbytes: int
    pattern: bytes


class Copy(NamedTuple):
    """Copy elements as ``target.copy_(source)`` does.

    Args:
        nbytes: of both, where the elements lie together and alike; ``None`` where they are copied
            one by one, or converted.
    """

    target: View
    source: View
    nbytes: int | None


class Launch(NamedTuple):
    """Launch an entry of a source.

    Args:
        source, entry, grid, block, shared: as of :func:`detmode.cuda.launch_blocks`.
        pointers: the memory of each parameter that is a pointer, or None; the forms are for the
            host runner.
        numbers: the words of 8 bytes of the other parameters, one behind the other.
        offsets: of each parameter, the number of its first word, if those of the pointers are first
            and those of ``numbers`` follow.
    """

    source: Source
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    pointers: tuple[View | None, ...]
    numbers: bytes
    offsets: tuple[int, ...]


class Check(NamedTuple):
    """Look at values of CPU tensors, as no plan for a GPU does: a function that may raise.

    Args:
        function: called with the arguments, in which a :class:`View` stands for a tensor.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AtenCall(NamedTuple):
    """Call an operator of ATen that allocates its results, or writes to its arguments.

    Args:
        func: the overload.
        args, kwargs: in which a :class:`View` stands for a tensor.
        results: the forms of the tensors that it makes, which are new slots, in order.
        has_flag: whether PyTorch's deterministic flag is on in the call.
    """

    func: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Form, ...]
    has_flag: bool


Step: TypeAlias = Empty | Fill | Copy | Launch | Check | AtenCall

EMPTY, FILL, COPY, LAUNCH, STRIDED_COPY, HOST, CALL, END = 1, 2, 3, 4, 5, 6, 7, 0
"""The first word of a step."""
VIEW, INTEGER, FLOAT, LOGICAL, NUMBER = 0, 1, 2, 3, 4
"""The kind of an argument of a call; the last is a number that stands for a tensor."""


class Look(NamedTuple):
    """Look at the values of a slot on the host, for a number or a size that they decide on.

    Args:
        kind: ``NONZERO``: where it is not zero, which is one slot more; or ``LARGEST``: one more
            than its largest number.
        slot: an input of the plan.
        least: that number is at least.
    """

    kind: int
    slot: int
    least: int


NONZERO, LARGEST = 0, 1


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of a call.

    Args:
        inputs: the forms of the call's tensors, which are the first slots, and of what looks make.
        device: ``"cuda"`` or ``"cpu"``.
        steps: in order. Allocations come before what uses them.
        results: the slots that the call returns; None for a result that is None.
        is_tuple: whether it returns a tuple.
        writes: the inputs that the call writes to. No input may share memory with them.
        looks: at values of inputs, in order, before the steps: what they decide on is a condition
            of the plan.
    """

    inputs: tuple[Form, ...]
    device: str
    steps: tuple[Step, ...]
    results: tuple[int | None, ...]
    is_tuple: bool
    writes: tuple[int, ...] = ()
    looks: tuple[Look, ...] = ()

    def words(self, number: Any) -> list[int] | None:
        """The plan as numbers for the player in C++; None if it has a step of Python's.

        Args:
            number: gives a number for a :class:`Launch` and for the operator of an
                :class:`AtenCall`, which the player knows it by. On the CPU, where the player hands
                launches and checks to Python, also for a :class:`Check`.
        """
        on_host = (Launch, Check) if self.device == "cpu" else ()
        widest = 8 if on_host else 4  # of a memset
        for step in self.steps:
            if (
                (isinstance(step, Check) and not on_host)
                or (isinstance(step, AtenCall) and not _can_be_words(step))
                or (isinstance(step, Fill) and len(_period(step.pattern)) > widest)
            ):
                return None
        words: list[int] = []
        for step in self.steps:
            words += (HOST, number(step)) if isinstance(step, on_host) else _words_of(step, number)
        slots = [CONSTANT if slot is None else slot for slot in self.results]
        return [*words, END, len(slots), *slots]


def with_places(step: Step, places: Mapping[int, Pointer]) -> Step:
    """Return a step whose slots are moved, each to a place that is given by its number."""

    def moved(pointer: Pointer) -> Pointer:
        slot, byte = places[pointer.slot]
        return Pointer(slot, byte + pointer.byte)

    return cast("Step", _replaced(step, moved))


def _replaced(value: Any, place: Callable[[Pointer], Any]) -> Any:
    """Return a step, or a part of one, with other pointers.

    PyTorch's functions for trees take several times as long, and would look into forms as well.
    """
    kind = type(value)
    if kind is Pointer:
        return place(value)
    if kind is View:
        return View(place(value.place), value.form)
    if kind is Launch:
        return value._replace(pointers=_replaced(value.pointers, place))
    if kind is dict:
        return {name: _replaced(part, place) for name, part in value.items()}
    if kind is Form or not isinstance(value, (list, tuple)):
        return value
    parts = [_replaced(part, place) for part in value]
    return kind(parts) if kind in (list, tuple) else kind(*parts)


def _words_of(step: Step, function: Any) -> Iterator[int]:
    match step:
        case Empty(form):
            yield from (EMPTY, *_form_words(form))
        case Fill(place, nbytes, pattern):
            pattern = _period(pattern)
            word = int.from_bytes((pattern * 8)[:8], "little", signed=True)
            yield from (FILL, *place, nbytes, word, len(pattern))
        case Copy(target, source, int(nbytes)):
            yield from (COPY, *target.place, *source.place, nbytes)
        case Copy(target, source):
            for head, view in ((STRIDED_COPY,), target), ((), source):
                yield from (*head, *view.place, *_form_words(view.form))
        case Launch(_, _, grid, block, shared, pointers, numbers, offsets):
            words = memoryview(numbers).cast("q").tolist()
            yield from (LAUNCH, function(step), *grid, *block, shared)
            yield from (len(pointers), len(words), len(offsets))
            for pointer in pointers:
                yield from (NOWHERE if pointer is None else pointer.place)
            yield from (*words, *offsets)
        case AtenCall(func):
            yield from (CALL, function(step))
            for argument, value in zip(func._schema.arguments, _arguments(step)):
                if not isinstance(value, View) and str(argument.type) == "Tensor":
                    yield NUMBER
                yield from _argument_words(value)


def _can_be_words(call: AtenCall) -> bool:
    """Return whether the player in C++ makes a call: of views and numbers, without new memory."""
    return (
        not call.results
        and call.has_flag
        and all(
            value.place != NOWHERE if isinstance(value, View) else type(value) in (bool, int, float)
            for value in _arguments(call)
        )
    )


def _arguments(call: AtenCall) -> Iterable[Any]:
    return signature_of(call.func).bind(call.args, call.kwargs).values()


def _argument_words(value: View | float) -> tuple[int, ...]:
    if isinstance(value, View):
        return (VIEW, *value.place, *_form_words(value.form))
    if isinstance(value, int):
        return LOGICAL if isinstance(value, bool) else INTEGER, value
    return FLOAT, *struct.unpack("=q", struct.pack("=d", value))


def _period(pattern: bytes) -> bytes:
    """Return the shortest pattern of a power of two that gives the same bytes."""
    half = len(pattern) // 2
    return _period(pattern[:half]) if half and pattern[:half] == pattern[half:] else pattern


def _form_words(form: Form) -> tuple[int, ...]:
    return (_NUMBERS[form.dtype], len(form.sizes), *form.sizes, *form.strides)


_NUMBERS = {
    getattr(torch, name): number
    for number, name in enumerate(
        (
            *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
            *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32"),
            *("bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8"),
            *("bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
            *("uint16", "uint32", "uint64"),
        )
    )
}
"""The numbers of dtypes in C++: those of ``c10::ScalarType``."""
