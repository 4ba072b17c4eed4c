"""The sanitized build finds what guard zones cannot, and nothing in kernels that are right."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from detmode.cuda import CompileError, host

SCRIPT = """
import sys
import torch
from tests.shared.cuda_sources import FAULTS
from detmode.cuda import host, launch_blocks

for seed in (None, 1):
    with host.schedule(seed):
        launch_blocks(FAULTS, "write_shared", 2, 64, shared=256, output=torch.zeros(100), n=100)
        try:
            launch_blocks(FAULTS, "barrier_some", 2, 64, output=torch.zeros(100), n=100)
        except host.LaunchError:
            print("divergence")
print("clean", flush=True)
launch_blocks(FAULTS, "read_after", 1, 64, input=torch.zeros(100), output=torch.zeros(1), n=100)
print("missed")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
def test_out_of_bounds_read_is_found(run_python: Callable[..., Any]) -> None:
    """Shared memory and abandoned launches are clean under ASan; a read past the end is not.

    What families launch is clean in ``tests/rules/test_sanitized.py``.
    """
    try:
        environment = host.sanitizer_environment()
    except CompileError as error:
        pytest.skip(str(error))
    run = run_python("-c", SCRIPT, **environment)
    assert run.stdout.split() == ["divergence", "divergence", "clean"]
    assert run.returncode != 0
    assert "AddressSanitizer: use-after-poison" in run.stderr
    assert "faults.cu:" in run.stderr


def test_without_libasan_it_says_what_to_do() -> None:
    """A sanitized build in a process without libasan is an error with the remedy, not a crash."""
    from tests.shared.cuda_sources import FAULTS

    with pytest.raises(CompileError, match="LD_PRELOAD"):
        host.compile(FAULTS, "sanitize")
