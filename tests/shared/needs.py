"""Marks of tests that need what not every machine has."""

import importlib.util
import os

import pytest

from detmode import cuda

compiler = pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)
nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None, reason="NVRTC comes through CuPy"
)
posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals are those of POSIX")
