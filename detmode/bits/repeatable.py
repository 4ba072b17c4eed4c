"""Making a call again: the calls that can be, the state they start from, and what they gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detmode.bits import draws
from detmode.bits.effects import Effects
from detmode.bits.snapshot import snapshot
from detmode.bits.tensors import has_data, is_capturing
from detmode.process.dispatch import is_traced_inside, is_tracing, without_modes

_GENERATOR = "generator"
"""The argument by which operators of ATen take a generator."""


def why_never(effects: Effects) -> str | None:
    """Return the reason why no call of an overload is made again; ``None`` if calls are."""
    schema = effects.func._schema
    returns_views = all(result.alias_info is not None for result in schema.returns)
    reasons = {
        "collectives": effects.is_collective,
        "allocations": effects.allocates,
        "memory": effects.tells_of_memory,
        "no outputs": not (effects.rebinds or schema.is_mutable or schema.returns),
        "views": effects.rebinds or (returns_views and not schema.is_mutable),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def why_not(effects: Effects, inputs: list[Tensor], values: tuple[Any, ...]) -> str | None:
    """Return the reason, found in its arguments, why a call is not made again, or ``None``."""
    if is_capturing():
        return "CUDA graph"
    if not all(has_data(tensor) for tensor in inputs):
        return "no data"
    if any(isinstance(value, torch.ScriptObject) for value in values):
        return "objects"
    if is_tracing() and is_traced_inside(effects.func):
        return "recorded by torch.jit.trace"
    if effects.seeded and any(not (tensor.is_cpu or tensor.is_cuda) for tensor in inputs):
        return "unknown generator"
    return None


class StartingState:
    """The state from which a call is about to be made: its arguments, and the random generators.

    Args:
        effects: those of the called overload.
        args: the call's positional arguments.
        kwargs: the others.
        written_alone: of a call of ATen, copy what it writes alone. Operators of other libraries
            may write what their schemas do not say.

    Raises:
        RuntimeError: a tensor is of a kind that cannot be copied exactly, or PyTorch cannot copy
            it, for instance for lack of memory.
    """

    def __init__(
        self,
        effects: Effects,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        written_alone: bool = False,
    ) -> None:
        is_known = written_alone and effects.is_atens
        # A thread that ends meanwhile may have drawn.
        self._is_alone = draws.is_alone()
        self._names = effects.signature.names
        with without_modes():
            self._sources = tuple(draws.sources(effects, args, kwargs))
            self._before = [source.state() for source in self._sources]
            self._copied = snapshot(
                args,
                kwargs,
                whole=effects.reads_around or not effects.is_atens,
                in_place=effects.reads_around,
                written=effects.written(args, kwargs) if is_known else None,
            )
        self._after: list[Any] | None = None
        self._private: torch.Generator | None = None
        self._is_set_back = False

    def again(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as they were, with which a repeat draws the same random numbers.

        Raises:
            RuntimeError: other threads might draw them too.
        """
        with without_modes():
            args, kwargs = self._copied()
            drawn = self._drawn()
            if _GENERATOR in self._names and len(drawn) == 1:
                return self._with_private(drawn[0], args, kwargs)
            if drawn and not self._is_alone:
                raise RuntimeError("it draws from a generator that other threads use")
            self._is_set_back = bool(drawn)
            for number in drawn:
                self._sources[number].set_state(self._before[number])
            return args, kwargs

    def check(self) -> None:
        """Check that a repeat, which has just ended, started from the same state.

        Raises:
            RuntimeError: another thread drew random numbers during the call.
        """
        if self._private is None or self._is_alone:
            return
        with without_modes():
            if not torch.equal(self._private.get_state(), self._expected):
                raise RuntimeError("another thread drew from its generator meanwhile")

    def resume(self) -> None:
        """Give the generators the states in which the program's own call left them."""
        if self._is_set_back and self._after is not None:
            with without_modes():
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


def data_of(
    effects: Effects,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    *,
    written_alone: bool = False,
) -> dict[str, Tensor]:
    """Return the results and the arguments of a call by name.

    Empty if there are no results and the schema declares no writes.

    Args:
        effects: those of the called overload.
        args: the call's positional arguments.
        kwargs: the others.
        result: the call's result.
        written_alone: of a call of ATen, leave out the arguments that it does not write. Not every
            schema of another library declares its writes.
    """
    passed = [*zip(effects.signature.names, args), *kwargs.items()]
    if written_alone and effects.is_atens:
        passed = [item for item in passed if effects.writes(item[0])]
    else:
        # A tensor passed twice gets the name under which it is written.
        passed.sort(key=lambda item: not effects.writes(item[0]))
    arguments: dict[int, tuple[str, Tensor]] = {}
    for name, value in passed:
        for label, element in _elements(f"mutated {name}", value):
            if isinstance(element, Tensor):
                arguments.setdefault(id(element), (label, element))
    results = result if isinstance(result, (list, tuple)) else (result,)
    outputs = {}
    for position, value in enumerate(results):
        if position in effects.undefined:
            continue
        for label, element in _elements(f"output {position}", value):
            if isinstance(element, Tensor) and id(element) not in arguments:
                outputs[label] = element
            elif isinstance(element, (bool, int, float, complex)):
                with without_modes():
                    outputs[label] = torch.from_numpy(np.array(element))  # in the widest dtype
    if not outputs and not effects.func._schema.is_mutable:
        return {}
    return {**outputs, **dict(arguments.values())}


def _elements(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, or each element of a list, with its name."""
    if isinstance(value, (list, tuple)):
        yield from ((f"{name}[{number}]", element) for number, element in enumerate(value))
    else:
        yield name, value
