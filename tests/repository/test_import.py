"""``import detmode``: what it brings along, and what it does not."""

import importlib
import subprocess
import sys

import pytest

import detmode

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

CODE = """
import logging, os, subprocess, sys
os.environ["DETMODE_LOG"] = "debug"
def refuse(*args, **kwargs):
    raise AssertionError(f"import detmode started {args}")
started, subprocess.Popen.__init__ = subprocess.Popen.__init__, refuse
before = set(sys.modules)
import detmode.reports.report
assert "torch" not in sys.modules, "a module that needs no PyTorch imports it"
brought = set(sys.modules) - before

subprocess.Popen.__init__ = started
import torch
subprocess.Popen.__init__ = refuse
before = set(sys.modules)
flags = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
assert "detmode.mode.deterministic_mode" not in sys.modules
detmode.DeterministicMode
assert flags == (torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark)
assert not torch.cuda.is_initialized()
subprocess.Popen.__init__ = started
brought |= set(sys.modules) - before
roots = {name.partition(".")[0] for name in brought}
# The standard library, what prints tables, and what imports a name when it is used.
allowed = {"detmode", "lazy_loader", "tabulate", "wcwidth", "torch", "wrapt"}
assert "detmode" in roots and roots - set(sys.stdlib_module_names) <= allowed, roots
heavy = ("torch._inductor", "torch._dynamo", "torch.fx.experimental", "torch.distributed")
assert not [name for name in brought if name.startswith(heavy)], "heavy parts of PyTorch"

import detmode.verify
runs = [name for name in sys.modules if "detmode.runs" in name]
assert not runs, runs

assert detmode.audit.__module__ == "detmode.mode.audit"
assert detmode.audit(lambda: None).raises is False

before = set(sys.modules)
with detmode.DeterministicMode():
    torch.ones(3).cumsum(0)
    brought = set(sys.modules) - before
    assert not [name for name in brought if name.startswith(heavy)], "heavy parts of PyTorch"
    import torch._inductor.config as inductor
    assert getattr(inductor, "deterministic", True) is True
assert not getattr(inductor, "deterministic", False)

assert logging.getLogger("detmode").level == logging.DEBUG
def held():
    with detmode.DeterministicMode():
        yield
waiting = held()
next(waiting)
"""


@pytest.mark.thorough
def test_a_new_process():
    """The first name brings neither CuPy nor a documentation or learning package; starts nothing.

    The heavy parts of torch come when a program needs them, not with a mode, which sets the option
    of Inductor when that is loaded inside its block; a module that needs no PyTorch, such as the
    plugin of pytest, imports none. ``detmode verify`` compares bytes, and imports nothing that
    records, compares or probes. The log is set up. A block that a generator still holds when Python
    ends is left without a word.
    """
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_not_there():
    """A name that nobody defines is an AttributeError, and a module an attribute."""
    with pytest.raises(AttributeError, match="detmode.*nothing"):
        _ = detmode.nothing
    with pytest.raises(AttributeError, match="_nothing"):
        _ = detmode._nothing
    assert {"diff", "testing"} <= set(dir(detmode))


@pytest.mark.parametrize("name", ["conditions", "doctor"])
def test_aliases(name):
    """A module's shorter name means the module itself, not a second one."""
    module = importlib.import_module(f"detmode.{name}")
    assert module is sys.modules[module.__name__]
    assert module.__name__ == module.__spec__.name != f"detmode.{name}"
