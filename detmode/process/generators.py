"""The global generators of random numbers: digests of their states."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def default_generators() -> dict[str, torch.Generator]:
    """Return PyTorch's generators by name: the CPU's, and those of the GPUs in use."""
    generators = {"torch": torch.default_generator}
    if torch.cuda.is_initialized():
        generators |= {
            f"cuda:{number}": generator
            for number, generator in enumerate(torch.cuda.default_generators)
        }
    return generators


def digests() -> dict[str, str]:
    """Return digests of the states of the generators that the process has, by name."""
    states = {
        name: generator.get_state().numpy().tobytes()
        for name, generator in default_generators().items()
    }
    states["python"] = repr(random.getstate()).encode()
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state(legacy=False)
        states["numpy"] = repr(state).encode()
    return {name: digest_of(state) for name, state in states.items()}


def digest_of(content: bytes) -> str:
    """Return a digest as text."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
