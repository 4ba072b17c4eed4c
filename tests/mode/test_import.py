"""``import detmode``: what it brings along, and what it does not."""

import importlib
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
import importlib
import subprocess
def refuse(*args, **kwargs):
    raise AssertionError(f"import detmode started {args}")
subprocess.Popen.__init__ = refuse
flags = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
import detmode
assert "detmode.mode.deterministic_mode" not in sys.modules
detmode.DeterministicMode
assert flags == (torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark)
assert not torch.cuda.is_initialized()
print(*(set(sys.modules) - before))
"""


def test_import_is_light():
    """The first name brings neither CuPy nor a documentation or learning package; starts nothing.

    The heavy parts of torch come when a mode is entered, not before.
    """
    brought = run(CODE)
    roots = {name.partition(".")[0] for name in brought}
    assert "detmode" in roots
    # The standard library, what prints tables, and what imports a name when it is used.
    allowed = {"detmode", "lazy_loader", "tabulate", "wcwidth", "torch"}
    assert roots - set(sys.stdlib_module_names) <= allowed
    heavy = ("torch._inductor", "torch._dynamo", "torch.fx.experimental", "torch.distributed")
    assert [name for name in brought if name.startswith(heavy)] == []


def test_import_alone_brings_no_torch():
    """A module of detmode that needs no PyTorch, such as the plugin of pytest, imports none."""
    assert run("import sys, detmode.reports.report; print('torch' in sys.modules)") == ["False"]


def test_comparing_bytes_needs_no_recording():
    """``detmode verify`` compares bytes, and imports nothing that records, compares or probes."""
    code = "import sys, detmode.verify; print(*(n for n in sys.modules if 'detmode.runs' in n))"
    assert run(code) == ["detmode.runs", "detmode.runs.difference"]


def test_what_is_not_there():
    """A name that nobody defines is an AttributeError, and a module an attribute."""
    with pytest.raises(AttributeError, match="detmode.*nothing"):
        getattr(detmode, "nothing")  # noqa: B009
    with pytest.raises(AttributeError, match="_nothing"):
        getattr(detmode, "_nothing")  # noqa: B009
    assert {"diff", "testing"} <= set(dir(detmode))


@pytest.mark.parametrize("name", ["conditions", "doctor", "pytest_plugin", "sample"])
def test_aliases(name):
    """A module's earlier or shorter name means the module itself, not a second one."""
    module = importlib.import_module(f"detmode.{name}")
    assert module is sys.modules[module.__name__]
    assert module.__name__ == module.__spec__.name != f"detmode.{name}"


def test_audit_is_the_function():
    """``detmode.audit`` is the function, also after a module of the folder was imported."""
    assert run(
        "import detmode, detmode.audit.report; print(detmode.audit.__name__, "
        "detmode.audit.__module__, detmode.audit(lambda: None).raises)"
    ) == ["audit", "detmode.audit", "False"]


@pytest.mark.parametrize("name", detmode.__all__)
def test_public_names(name):
    """Every public name is there, and documented where it is a class or a function."""
    value = getattr(detmode, name)
    assert not callable(value) or value.__doc__
