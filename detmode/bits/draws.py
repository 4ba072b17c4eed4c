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


def is_alone() -> bool:
    """Return whether no other thread of Python's is there, but detmode's own."""
    others = {*threading.enumerate()} - {threading.current_thread()}
    return all(thread.name.startswith("detmode-") for thread in others)


def sources(effects: Effects, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[_Source]:
    """Yield what a call may draw from.

    Operators of other libraries than ATen may draw although they are not tagged so, also from
    Python's and NumPy's generators.
    """
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
