"""The random numbers of a call, which a repeat of it draws again.

Generators that belong to the process are shared by its threads: a number that another thread draws
while one is set back would be drawn twice. So a repeat gets a generator to itself where the
operator takes one; others are set back only if the call has drawn from them, and only while no
other thread of Python's is there.
"""

from __future__ import annotations

import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from detmode.bits.effects import Effects
from detmode.process.arguments import tensors_in
from detmode.process.generators import default_generators

_GENERATOR = "generator"
"""The argument by which operators of ATen take a generator."""


class CannotRepeatError(Exception):
    """A call whose random numbers cannot be drawn again without harm to other threads."""


class _Source(NamedTuple):
    """Something that random numbers are drawn from."""

    state: Callable[[], Any]
    set_state: Callable[[Any], object]
    generator: torch.Generator | None = None

    def differs(self, first: Any, second: Any) -> bool:
        """Return whether two of its states differ."""
        if self.generator is not None:
            return not torch.equal(first, second)
        return pickle.dumps(first) != pickle.dumps(second)


class Draws:
    """The draws of a call that is about to be made.

    Args:
        effects: those of the called overload. Operators of other libraries than ATen may draw
            although they are not tagged so, also from Python's and NumPy's generators.
        args: the call's positional arguments.
        kwargs: the others.
    """

    def __init__(self, effects: Effects, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A thread that ends meanwhile may have drawn.
        self._is_alone = is_alone()
        self._sources = tuple(_sources(effects, args, kwargs))
        self._before = [source.state() for source in self._sources]
        self._after: list[Any] | None = None
        self._names = effects.signature.names
        self._private: torch.Generator | None = None
        self._is_set_back = False

    def again(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Have a repeat draw what the call has drawn; return its arguments.

        Raises:
            CannotRepeatError: other threads might draw the same numbers.
        """
        drawn = self._drawn()
        if not drawn:
            return args, kwargs
        if _GENERATOR in self._names and len(drawn) == 1:
            return self._with_private(drawn[0], args, kwargs)
        if not self._is_alone:
            raise CannotRepeatError("it draws from a generator that other threads use")
        self._is_set_back = True
        for number in drawn:
            self._sources[number].set_state(self._before[number])
        return args, kwargs

    def check(self) -> None:
        """Check that a repeat was as free of other threads' draws as the call.

        Raises:
            CannotRepeatError: another thread has drawn from its generator during the call.
        """
        if self._private is None or self._is_alone:
            return
        if not torch.equal(self._private.get_state(), self._expected):
            raise CannotRepeatError("another thread drew from its generator meanwhile")

    def resume(self) -> None:
        """Give the generators that were set back the states in which the call left them."""
        if self._is_set_back and self._after is not None:
            for number in self._drawn():
                self._sources[number].set_state(self._after[number])

    def _drawn(self) -> list[int]:
        """Return the numbers of the sources whose states the call has changed."""
        if self._after is None:
            self._after = [source.state() for source in self._sources]
        states = enumerate(zip(self._before, self._after))
        return [number for number, pair in states if self._sources[number].differs(*pair)]

    def _with_private(
        self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with a generator that nobody else has."""
        public = self._sources[number].generator
        assert public is not None
        self._private = torch.Generator(public.device)
        self._private.set_state(self._before[number])
        assert self._after is not None
        self._expected = self._after[number]
        position = self._names.index(_GENERATOR)
        if position < len(args):
            return (*args[:position], self._private, *args[position + 1 :]), kwargs
        return args, {**kwargs, _GENERATOR: self._private}


def is_alone() -> bool:
    """Return whether no other thread of Python's is there, but detmode's own."""
    others = {*threading.enumerate()} - {threading.current_thread()}
    return all(thread.name.startswith("detmode-") for thread in others)


def _sources(effects: Effects, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[_Source]:
    """Yield what a call may draw from."""
    is_known = effects.is_atens
    if is_known and not effects.seeded:
        return
    values = (*args, *kwargs.values())
    generators = [value for value in values if isinstance(value, torch.Generator)]
    if not (is_known and generators):
        devices = {tensor.device for tensor in tensors_in(values)}
        devices = devices or {torch.device(kwargs.get("device") or "cpu")}
        defaults = default_generators().values()
        generators += [default for default in defaults if not is_known or _is_of(default, devices)]
    for generator in generators:
        yield _Source(generator.get_state, generator.set_state, generator)
    if not is_known:
        yield _Source(random.getstate, random.setstate)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            yield _Source(numpy.random.get_state, numpy.random.set_state)


def _is_of(generator: torch.Generator, devices: set[torch.device]) -> bool:
    kind, index = generator.device.type, generator.device.index
    return any(kind == device.type and device.index in (None, index) for device in devices)
