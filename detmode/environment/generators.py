"""The global generators of random numbers: digests of their states."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def digests() -> dict[str, str]:
    """Return digests of the states of the generators that the process has, by name."""
    states = {"torch": torch.default_generator.get_state().numpy().tobytes()}
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            states[f"cuda:{number}"] = generator.get_state().numpy().tobytes()
    states["python"] = repr(random.getstate()).encode()
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state(legacy=False)
        states["numpy"] = repr(state).encode()
    return {name: digest_of(state) for name, state in states.items()}


def digest_of(content: bytes) -> str:
    """Return a digest as text."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
