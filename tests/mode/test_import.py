"""``import detmode``: what it brings along, and what it does not."""

import subprocess
import sys

import pytest

import detmode


def run(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return result.stdout.split()


CODE = """
import sys, torch
before = set(sys.modules)
import subprocess
def refuse(*args, **kwargs):
    raise AssertionError(f"import detmode started {args}")
subprocess.Popen.__init__ = refuse
flags = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
import detmode
assert flags == (torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark)
assert not torch.cuda.is_initialized()
print(*(set(sys.modules) - before))
"""


def test_import_is_light():
    """Importing brings neither CuPy nor a documentation or learning package, and starts nothing.

    The heavy parts of torch come when a mode is entered, not before.
    """
    brought = run(CODE)
    roots = {name.partition(".")[0] for name in brought}
    assert "detmode" in roots
    # The standard library, and the one dependency, which prints tables.
    assert roots - set(sys.stdlib_module_names) <= {"detmode", "tabulate", "wcwidth", "torch"}
    heavy = ("torch._inductor", "torch._dynamo", "torch.fx.experimental", "torch.distributed")
    assert [name for name in brought if name.startswith(heavy)] == []


@pytest.mark.parametrize("name", detmode.__all__)
def test_public_names(name):
    """Every public name is there, and documented where it is a class or a function."""
    value = getattr(detmode, name)
    assert not callable(value) or value.__doc__
