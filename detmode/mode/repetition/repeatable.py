"""Making a call again: the calls that can be, the state they start from, and what they gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detmode.bits.tensors import has_data, is_capturing
from detmode.mode.repetition.draws import Draws
from detmode.mode.repetition.snapshot import Snapshot
from detmode.process.dispatch import is_traced_inside, is_tracing, without_modes
from detmode.table.overload_info import OverloadInfo

_COLLECTIVES = frozenset(
    (
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"),
        *("_dtensor", "symm_mem"),
    )
)
"""Namespaces whose operators wait for other processes."""
_ABOUT_MEMORY = frozenset(("aten::_has_same_storage_numel", "aten::is_pinned"))
"""Operators that say where memory is, or how large; that of a copy is elsewhere."""


def why_never(overload: OverloadInfo) -> str | None:
    """Return the reason why no call of an overload is made again; ``None`` if calls are."""
    func, schema = overload.func, overload.func._schema
    returns_views = all(each.alias_info is not None for each in schema.returns)
    reasons = {
        "collectives": func.namespace in _COLLECTIVES,
        "allocations": overload.allocates,
        "memory": schema.name in _ABOUT_MEMORY,
        "no outputs": not (overload.rebinds or schema.is_mutable or schema.returns),
        "views": overload.rebinds or (returns_views and not schema.is_mutable),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def why_not(overload: OverloadInfo, inputs: list[Tensor], values: tuple[Any, ...]) -> str | None:
    """Return the reason, found in its arguments, why a call is not made again, or ``None``."""
    if is_capturing():
        return "CUDA graph"
    if not all(has_data(tensor) for tensor in inputs):
        return "no data"
    if any(isinstance(value, torch.ScriptObject) for value in values):
        return "objects"
    if is_tracing() and is_traced_inside(overload.func):
        return "recorded by torch.jit.trace"
    if overload.seeded and any(not (each.is_cpu or each.is_cuda) for each in inputs):
        return "unknown generator"
    return None


class StartingState:
    """The state from which a call is about to be made: its arguments, and the random generators.

    Args:
        overload: the facts about the called overload.
        args: the call's positional arguments.
        kwargs: the others.
        written_alone: of a call of ATen, copy what it writes alone. Operators of other libraries
            may write what their schemas do not say.

    Raises:
        CannotCopyError: a tensor is of a kind that cannot be copied exactly.
        RuntimeError: PyTorch cannot copy it, for instance for lack of memory.
    """

    def __init__(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        written_alone: bool = False,
    ) -> None:
        others = overload.func.namespace != "aten"
        with without_modes():
            self._draws = Draws(overload, args, kwargs)
            reads_around = overload.func._schema.name.startswith("aten::as_strided")
            written = overload.written(args, kwargs) if written_alone and not others else None
            self._snapshot = Snapshot(
                args, kwargs, whole=others or reads_around, in_place=reads_around, written=written
            )

    def again(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as they were, with which a repeat draws the same random numbers.

        Raises:
            CannotRepeatError: other threads might draw them too.
        """
        with without_modes():
            return self._draws.again(*self._snapshot.copy())

    def check(self) -> None:
        """Check that a repeat, which has just ended, started from the same state.

        Raises:
            CannotRepeatError: another thread drew random numbers during the call.
        """
        with without_modes():
            self._draws.check()

    def resume(self) -> None:
        """Give the generators the states in which the program's own call left them."""
        with without_modes():
            self._draws.resume()


def data_of(
    overload: OverloadInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    *,
    written_alone: bool = False,
) -> dict[str, Tensor]:
    """Return the results and the arguments of a call by name.

    Empty if there are no results and the schema declares no writes.

    Args:
        overload: the facts about the called overload.
        args: the call's positional arguments.
        kwargs: the others.
        result: the call's result.
        written_alone: of a call of ATen, leave out the arguments that it does not write. Not every
            schema of another library declares its writes.
    """
    given = [*zip(overload.signature.names, args), *kwargs.items()]
    if written_alone and overload.func.namespace == "aten":
        given = [item for item in given if overload.writes(item[0])]
    else:
        # A tensor passed twice gets the name under which it is written.
        given.sort(key=lambda item: not overload.writes(item[0]))
    arguments: dict[int, tuple[str, Tensor]] = {}
    for name, value in given:
        for label, each in _elements(f"mutated {name}", value):
            if isinstance(each, Tensor):
                arguments.setdefault(id(each), (label, each))
    results = result if isinstance(result, (list, tuple)) else (result,)
    outputs = {}
    for position, value in enumerate(results):
        if position in overload.undefined:
            continue
        for label, each in _elements(f"output {position}", value):
            if isinstance(each, Tensor) and id(each) not in arguments:
                outputs[label] = each
            elif isinstance(each, (bool, int, float, complex)):
                with without_modes():
                    outputs[label] = torch.from_numpy(np.array(each))  # in the widest dtype
    if not outputs and not overload.func._schema.is_mutable:
        return {}
    return {**outputs, **dict(arguments.values())}


def _elements(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, or each element of a list, with its name."""
    if isinstance(value, (list, tuple)):
        yield from ((f"{name}[{number}]", each) for number, each in enumerate(value))
    else:
        yield name, value
