"""Every kernel of every family runs clean under AddressSanitizer and UndefinedBehaviorSanitizer."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from detmode.cuda import CompileError, host
from tests.shared import torchvision_operators
from tests.shared.selection import PROFILE, every_case

SUBSTITUTED = [case.family for case in every_case()] + [*torchvision_operators.FAMILIES]

# Both sanitizers end the process at the first fault, so reaching the last line is the claim.
SCRIPT = """
import sys
import torch
from detmode.verify.cases import cases, run_substituted
from tests.shared.torchvision_operators import operators

family, dtypes = sys.argv[1], sys.argv[2:]
with operators():
    chosen = [case for case in cases(family) if str(case.dtype) in dtypes or not dtypes]
    for case in chosen:
        print(case, file=sys.stderr, flush=True)
        run_substituted(case.sample, case.dtype)
        run_substituted(case.sample, case.dtype, schedule_seed=1)
print(len(chosen), "clean")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
@pytest.mark.parametrize("family", dict.fromkeys(SUBSTITUTED))
def test_no_fault_in_any_sample(family: str, run_python: Callable[..., Any]) -> None:
    """No access outside a buffer and no undefined behaviour; the profile says in which dtypes."""
    try:
        environment = host.sanitizer_environment()
    except CompileError as error:
        pytest.skip(str(error))
    environment |= {"UBSAN_OPTIONS": "halt_on_error=1"}
    run = run_python("-c", SCRIPT, family, *PROFILE.sanitized, **environment)
    assert run.returncode == 0, run.stderr[-4000:]
    count, verdict = run.stdout.split()
    assert verdict == "clean"
    assert int(count) > 0
