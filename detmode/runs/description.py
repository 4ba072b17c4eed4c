"""The text of a trace about a run, and about a call besides its tensors."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from detmode.mode.repetition.tensors import is_capturing

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
    return text if len(text) <= _LONG else f"{text[:_LONG]}... {_digest_of(text.encode())}"


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
                return torch.empty(0)  # the graph holds its state
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
        else:
            generator = torch.default_generator
    state: Tensor = generator.get_state()
    return state


def about_run() -> dict[str, Any]:
    """Return the description of the run for ``trace.json``."""
    states = {"torch": torch.default_generator.get_state()}
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            states[f"cuda:{number}"] = generator.get_state()
    generators = {name: _digest_of(state.numpy().tobytes()) for name, state in states.items()}
    generators["python"] = _digest_of(repr(random.getstate()).encode())
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state(legacy=False)
        generators["numpy"] = _digest_of(repr(state).encode())
    return {
        "torch": torch.__version__,
        "arguments": sys.argv,
        "generators": generators,
        "rank": _of_ranks("RANK", "get_rank"),
        "world_size": _of_ranks("WORLD_SIZE", "get_world_size"),
        "threads": torch.get_num_threads(),
        "gpus": _gpus(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if _has_nccl() else None,
        "nccl_environment": {
            name: value for name, value in sorted(os.environ.items()) if "NCCL_" in name
        },
    }


def _of_ranks(variable: str, function: str) -> str | None:
    """Return a number that the launcher has set, or that the program's default group has."""
    known = distributed.is_available() and distributed.is_initialized()
    return str(getattr(distributed, function)()) if known else os.environ.get(variable)


def _has_nccl() -> bool:
    return distributed.is_available() and distributed.is_nccl_available()


def _gpus() -> list[str]:
    """Return the models of this machine's GPUs, without a context, which no child could use."""
    if torch.cuda.is_initialized():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            found += [line.split(":")[1].strip() for line in lines if line.startswith("Model")]
    return found


def _digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
