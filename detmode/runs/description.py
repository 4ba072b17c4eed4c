"""The text of a trace about a run, and about a call besides its tensors."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from detmode.bits.tensors import is_capturing
from detmode.environment.lock.here import lock_of
from detmode.environment.lock.lock_file import Sections
from detmode.mode.deterministic_mode import current_mode
from detmode.process.generators import digest_of, digests
from detmode.process.rank import rank_and_size

_LONG = 200
"""Characters of a call's arguments, after which a text ends in its digest."""
_PLAIN = (
    *(bool, int, float, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def arguments_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments other than tensors as text; a long text ends in its digest."""
    parts = [_text(value) for value in args]
    parts += [f"{name}={_text(value)}" for name, value in kwargs.items()]
    text = ", ".join(parts)
    return text if len(text) <= _LONG else f"{text[:_LONG]}... {digest_of(text.encode())}"


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return "_"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    # Other objects may print their address, which differs between runs.
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def generator_state(inputs: list[Tensor], kwargs: dict[str, Any]) -> Tensor:
    """Return the state of the generator that a random operator is about to use."""
    generator = kwargs.get("generator")
    if generator is None:
        device = inputs[0].device if inputs else torch.device(kwargs.get("device") or "cpu")
        if device.type == "cuda":
            if is_capturing():
                return torch.empty(0, device="cpu")  # the graph holds its state
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
        else:
            generator = torch.default_generator
    state: Tensor = generator.get_state()
    return state


def about_run() -> dict[str, Any]:
    """Return the description of the run for ``trace.json``: what no lock has."""
    rank, size = (None if number is None else str(number) for number in rank_and_size())
    return {
        "arguments": sys.argv,
        "generators": digests(),
        "rank": rank,
        "world_size": size,
    }


def lock_of_run() -> Sections:
    """Return the lock of the run that begins here."""
    mode = current_mode()
    return lock_of() if mode is None else lock_of(run=mode.as_locked())
