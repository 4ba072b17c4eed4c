"""Needs of tests that not every machine meets: marks of tests, and packages."""

import importlib.util
import os

import pytest
import torch

from detmode import cuda

compiler = pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)
nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None, reason="NVRTC comes through CuPy"
)


def package(name: str) -> pytest.MarkDecorator:
    """Mark what needs a package, which the tests themselves import: it takes long to."""
    is_missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed")


distributed = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this PyTorch is built without torch.distributed"
)
PACKAGES = frozenset(
    {
        *("IPython", "PIL", "accelerate", "cupy", "hypothesis", "ipykernel", "lightning"),
        *("matplotlib", "rich", "sklearn", "transformers", "triton", "yaml"),
    }
)
"""Packages, as they are imported, without which a file's tests are left out."""

posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals are those of POSIX")
