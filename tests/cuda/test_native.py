"""The player in C++ where it cannot be built: one line says why, and the program goes on."""

import logging
import re
import shutil
import sys
import threading
from pathlib import Path

import pytest
import torch

import detmode
from detmode import DeterministicMode
from detmode.cuda import native
from detmode.cuda.host import toolchain
from detmode.environment.doctor import findings
from tests.shared import needs
from tests.shared.processes import run_forked

pytestmark = needs.compiler
NAME = native._name


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has not asked for the player yet, with an empty cache."""
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "_state", native._State())
    monkeypatch.setattr(native, "problem", lambda: None)
    # Else a test would find the library of another, in a private folder.
    file = f"player-{tmp_path.name}.so"
    monkeypatch.setattr(native, "_name", lambda: file)


def run(blocks=1):
    """A program that substitutes, in several blocks."""
    for _ in range(blocks):
        with DeterministicMode(intercept="listed", simulate="cuda") as mode:
            torch.zeros(3).index_add(0, torch.tensor([0, 0]), torch.ones(2))
    return [(row.action, row.count) for row in mode.records]


def told(caplog):
    return [
        record.message for record in caplog.records if "calls are made in Python" in record.message
    ]


def ended():
    """Wait for what builds in the background."""
    if native._state.thread is not None:
        native._state.thread.join()


def test_no_compiler(fresh, monkeypatch, caplog):
    """The warning has what the host runner says of the compiler."""
    error = detmode.cuda.CompileError("the host runner needs a C++ compiler; install g++")

    def missing():
        raise error

    monkeypatch.setattr(native, "require_compiler", missing)
    monkeypatch.setattr(native, "_name", NAME)
    with caplog.at_level(logging.WARNING):
        assert run(3) == [("substitute", 1)]
    assert told(caplog) == [f"calls are made in Python, which takes longer: {error}"]


def test_a_compiler_that_refuses(fresh, monkeypatch, tmp_path, caplog):
    """An old compiler, or other headers: the warning has the compiler's own line."""
    source = tmp_path / "player.cpp"
    source.write_text("int main() { return unheard_of; }\n", encoding="utf-8")
    monkeypatch.setattr(native, "_SOURCE", source)
    with caplog.at_level(logging.WARNING):
        run()
        ended()
        assert run(3) == [("substitute", 1)]
    (line,) = told(caplog)
    assert "unheard_of" in line
    assert "error" in line
    assert "\n" not in line


def test_a_library_that_does_not_load(fresh, monkeypatch, caplog):
    """One that was built for something else."""
    monkeypatch.setattr(native, "_compiled", lambda: (b"no library", ""))
    with caplog.at_level(logging.WARNING):
        run()
        ended()
        assert run(2) == [("substitute", 1)]
    (line,) = told(caplog)
    assert "does not load" in line


def test_an_unknown_pytorch_or_python(fresh, monkeypatch, caplog):
    """Versions that its source was not written for are not tried."""
    monkeypatch.undo()
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setattr(native, "_state", native._State())
    monkeypatch.setattr(native, "SUPPORTED", ((2, 8), (2, 8)))
    with caplog.at_level(logging.WARNING):
        assert run(2) == [("substitute", 1)]
    (line,) = told(caplog)
    assert torch.__version__ in line
    monkeypatch.undo()
    monkeypatch.setattr(native, "_PYTHON", ((3, 1), (3, 2)))
    assert "CPython 3.1 to 3.2" in str(native.problem())
    monkeypatch.undo()
    monkeypatch.setattr(native.sysconfig, "get_config_var", lambda _: 1)
    assert "without the GIL" in str(native.problem())


def test_a_cache_that_cannot_be_written(fresh, monkeypatch, tmp_path):
    """The library is then built for this process alone, as kernels are."""
    (tmp_path / "native").write_text("a file", encoding="utf-8")
    monkeypatch.setattr(native, "_compiled", lambda: (b"built", ""))
    monkeypatch.setattr(native, "_load", lambda file: setattr(native._state, "player", file))
    with pytest.warns(RuntimeWarning, match="cache"):
        assert native.build()
    kept = Path(native._state.player.loaded_from)
    assert kept.read_bytes() == b"built"
    assert tmp_path not in kept.parents


def test_it_is_built_in_the_background(fresh, monkeypatch):
    """A block does not wait: a later one has the player, which is built once."""
    may_go_on, builds, loaded = threading.Event(), [], object()

    def compiled():
        builds.append(threading.current_thread())
        assert may_go_on.wait(60)
        return b"built", ""

    monkeypatch.setattr(native, "_compiled", compiled)
    monkeypatch.setattr(native, "_load", lambda _: setattr(native._state, "player", loaded))
    assert native.player() is None
    assert native.player() is None
    may_go_on.set()
    ended()
    assert native.player() is loaded
    assert len(builds) == 1
    assert builds[0] is not threading.current_thread()
    # Another process finds it in the cache, at once.
    monkeypatch.setattr(native, "_state", native._State())
    assert native.player() is loaded
    assert len(builds) == 1


@pytest.mark.parametrize("value", ["", "0", "1", "yes"])
def test_the_variable(value, monkeypatch):
    """It is 0 or 1; another value is an error that says so, and the next block is as before."""
    monkeypatch.setenv(native.VARIABLE, value)
    monkeypatch.setattr(native, "player", lambda: None)
    if value != "yes":
        assert native.is_wanted() == (value != "0")
        assert run() == [("substitute", 1)]
        return
    before = torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="DETMODE_NATIVE='yes' is neither 0 nor 1"):
        run()
    assert torch.are_deterministic_algorithms_enabled() == before
    monkeypatch.delenv(native.VARIABLE)
    assert run() == [("substitute", 1)]


@pytest.mark.parametrize(
    ("value", "reason", "state", "severity"),
    [
        ("0", None, "off", "note"),
        ("1", None, "on", "note"),
        ("", "it runs on Linux", "not available", "note"),
        ("1", "it runs on Linux", "not available", "note"),
        ("2", None, "unknown", "warning"),
    ],
)
def test_the_doctor(value, reason, state, severity, monkeypatch):
    """It says whether the player is on, and why it cannot be."""
    monkeypatch.setenv(native.VARIABLE, value)
    monkeypatch.setattr(native, "problem", lambda: reason)
    (finding,) = [row for row in findings() if native.VARIABLE in row.subject]
    assert (finding.state, finding.severity) == (state, severity)
    assert reason is None or reason in finding.effect


def test_warm_builds_it(fresh, monkeypatch):
    """``detmode.warm`` waits for it; one that cannot be built costs a warning alone."""
    monkeypatch.setattr(native, "_compiled", lambda: (b"built", ""))
    monkeypatch.setattr(native, "_load", lambda _: None)
    assert "the player in C++" in detmode.warm("aten::cumsum", device="cpu").compiled
    assert "the player in C++" in detmode.warm("aten::cumsum", device="cpu").found
    monkeypatch.setattr(native, "problem", lambda: "it runs on Linux")
    warmed = detmode.warm("aten::cumsum", device="cpu")
    assert "the player in C++" not in (*warmed.found, *warmed.compiled)
    assert "Linux" in str(native._state.failure)


def test_its_name_depends_on_all_that_it_is_built_from(monkeypatch, tmp_path):
    """Another PyTorch, Python, compiler, source or header has another library."""
    names = {native._name()}
    monkeypatch.setattr(torch.version, "git_version", "other")
    names.add(native._name())
    compiler = toolchain.Compiler(("other",), "macros")
    monkeypatch.setattr(native, "require_compiler", lambda: compiler)
    names.add(native._name())
    sources = shutil.copytree(native._SOURCE.parent, tmp_path / "native")
    monkeypatch.setattr(native, "_SOURCE", sources / native._SOURCE.name)
    assert native._name() in names, "the name depends on the folder"
    included = re.findall(r'#include "(.*)"', native._SOURCE.read_text(encoding="utf-8"))
    changed = [native._SOURCE.name, *included]
    for name in changed:
        with open(sources / name, "a", encoding="utf-8") as source:
            source.write("// changed\n")
        names.add(native._name())
    assert len(names) == 3 + len(changed)


ENDS = """
import os, signal, sys, time
from pathlib import Path
import torch
from detmode import DeterministicMode
from detmode.cuda import native

native._name = lambda: "player-of-a-test.so"
with DeterministicMode():
    torch.ones(2) + 1
while not Path(sys.argv[1]).exists():
    assert native._state.thread.is_alive()
    time.sleep(0.01)
if sys.argv[2] == "interrupt":
    # A shell may have started the tests without it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(60)
        raise AssertionError("Ctrl-C is not heard")
    except KeyboardInterrupt:
        time.sleep(0.5)
        assert native._state.thread.is_alive()
elif sys.argv[2] == "fork" and (child := os.fork()):
    os.waitpid(child, 0)
    assert native._state.thread.is_alive()
"""
COMPILER = """#!/bin/sh
case "$*" in *player.cpp*) ;; *) exec g++ "$@" ;; esac
sleep 600 &
echo $! > {started}.tmp && mv {started}.tmp {started}
wait
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the player runs on Linux")
@pytest.mark.parametrize("way", ["end", "interrupt", "fork"])
def test_a_program_that_ends_while_it_is_built(way, tmp_path):
    """Nothing goes on or is left behind; an interrupt or a child's end does not stop the build."""
    started, temporary = tmp_path / "started", tmp_path / "temporary"
    temporary.mkdir()
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(started=started), encoding="utf-8")
    compiler.chmod(0o700)
    environment = {
        "CXX": str(compiler),
        "TMPDIR": str(temporary),
        "DETMODE_CACHE": str(tmp_path / "cache"),
        native.VARIABLE: "1",
    }
    program = run_forked("-c", [[ENDS, started, way]], tmp_path, timeout=120, **environment)
    assert (program.returncode, program.stderr) == (0, "")
    assert list(temporary.iterdir()) == []
    status = Path("/proc", started.read_text(encoding="utf-8").strip(), "stat")
    # What waits to be reaped has ended.
    assert not status.exists() or ") Z " in status.read_text(encoding="utf-8")
