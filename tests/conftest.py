"""The command line's selection, Hypothesis' profile, and the tests that a run leaves out."""

import gc
import inspect
import logging
import math
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from detmode import cuda
from detmode.cli import parser
from detmode.cli.locks import ENVIRONMENT
from detmode.cuda import native
from detmode.mode import plans
from tests.shared import ROOT, needs, selection

pytest_plugins = ["tests.shared.small_table"]

# Reports are as wide as the terminal.
os.environ["COLUMNS"] = "200"

if selection.PROFILE_NAME == "quick":
    # Inductor compiles a program for each set of instructions of the CPU, to find out which it has.
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

NO_GPU = None if torch.cuda.is_available() else "PyTorch sees no GPU here"
NO_GPU = NO_GPU or cuda.unavailable("cuda")

with suppress(ModuleNotFoundError):  # files of properties are left out, see `Module`
    from hypothesis import HealthCheck, settings

    for name, profile in selection.PROFILES.items():
        settings.register_profile(
            name,
            max_examples=profile.examples,
            deadline=None,
            derandomize=name != "full",  # the same cases in every run: a red run can be repeated
            suppress_health_check=[HealthCheck.too_slow],
        )
    # --hypothesis-profile, which pytest reads later, wins.
    settings.load_profile(selection.PROFILE_NAME)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("selection")
    group.addoption("--family", help="run the tests of this family of operators alone")
    group.addoption("--case", help="check only cases whose names contain this")
    if not pluginmanager.hasplugin("timeout"):
        # A machine with a GPU may lack pytest-timeout; unknown settings are errors.
        parser.addini("timeout", "read by pytest-timeout")
        parser.addini("timeout_method", "read by pytest-timeout")


def pytest_configure(config: pytest.Config) -> None:
    selection.limit(family=config.option.family, case=config.option.case)
    config.pluginmanager.register(LeftOut(config), "left-out")
    if not hasattr(config, "workerinput") and native.is_wanted():
        # What the thread imports would make this logger, while pytest goes through all of them.
        logging.getLogger("filelock")
        # Once for all processes. Until it is there, Python makes the calls of the tests.
        threading.Thread(target=native.prepare, daemon=True).start()


class Module(pytest.Module):
    """A test file; without a package that it imports its tests are left out, not in error."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except self.CollectError as error:
            missing = error.__cause__
            package = str(getattr(missing, "name", "")).partition(".")[0]
            if not isinstance(missing, ModuleNotFoundError) or package not in needs.PACKAGES:
                raise
            left_out = self.config.pluginmanager.get_plugin("left-out")
            left_out.counts[f"files are left out, which need {package}: it is not installed"] += 1
            return []


def has_properties(path: Path) -> bool:
    """Return whether a test file has properties of families, or of a launch that they share."""
    return path.name == "test_properties.py" or path.parent.name == "rows"


class LeftOut:
    """Leaves out tests that this run cannot or need not make, and says how many, in a line each.

    A test function is left out before its cases are generated.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.family: str | None = config.option.family
        self.counts: Counter[str] = Counter()

    def reason(self, marks: Iterable[pytest.Mark]) -> str | None:
        names = {mark.name for mark in marks}
        if "cuda" in names and NO_GPU is not None:
            return f"tests are left out, which need a GPU: {NO_GPU}"
        if "thorough" in names and not selection.PROFILE.thorough:
            return "tests are left out, which are thorough: with DETMODE_PROFILE=thorough they run"
        return None

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """With ``--family``, read only its properties and files that ask :mod:`selection`."""
        if self.family is None or collection_path.suffix != ".py" or self.about(collection_path):
            return None
        asks = "selection" in collection_path.read_text(encoding="utf-8")
        return not asks or has_properties(collection_path) or None

    def about(self, path: Path) -> bool:
        """Find out if a file has properties of the family, or of a launch of its: it imports it."""
        imported = rf"\bdetmode\.rules\.{self.family}\b"
        return has_properties(path) and re.search(imported, path.read_text()) is not None

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> Module:
        return Module.from_parent(parent, path=module_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: object
    ) -> list[pytest.Item] | None:
        if not name.startswith("test") or not inspect.isfunction(obj):
            return None
        marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
        reason = self.reason(marks)
        if reason is None:
            return None
        values = (list(mark.args[1]) for mark in marks if mark.name == "parametrize")
        self.counts[reason] += math.prod(map(len, values))
        return []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out single cases, and with ``--family`` what is not about it."""
        left_out = []
        for item in items:
            reason = self.reason(item.iter_markers())
            own = self.family in (None, family_of(item)) or self.about(item.path)
            if reason is None and not own:
                reason = f"tests are left out, which are not about the family {self.family}"
            if reason is not None:
                self.counts[reason] += 1
                left_out.append(item)
        self.config.hook.pytest_deselected(items=left_out)
        absent = set(left_out)
        items[:] = [item for item in items if item not in absent]

    def pytest_sessionfinish(self) -> None:
        # Each process of pytest-xdist collects the same tests.
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["left_out"] = dict(self.counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.counts = Counter(getattr(node, "workeroutput", {}).get("left_out", self.counts))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in self.counts.items():
            terminalreporter.write_line(f"{count} {reason}")
        if selection.PROFILE_NAME == "quick":
            terminalreporter.write_line(
                "what is sampled has another share each day: "
                f"DETMODE_SHARE={selection.SHARE} has this one"
            )


@pytest.fixture(autouse=True)
def new_plans() -> None:
    """Calls are recorded again in each test, which may change what plans depend on."""
    plans.forget()


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytester in which pytest-randomly does not shuffle the tests."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly")
    return pytester


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in the test's folder, without the variables that ``detmode run`` sets."""

    def run(
        *arguments: str, input: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": str(ROOT), **environment},
            input=input,
            capture_output=True,
            text=True,
            timeout=500,
        )

    return run


@pytest.fixture
def run_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``detmode`` with arguments in the test's folder, in this process."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)  # nothing to start over for
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        with (
            pytest.MonkeyPatch.context() as patch,
            # The streams of pytest do not write to the descriptors.
            open(1, "w", encoding="utf-8", closefd=False) as stdout,
            open(2, "w", encoding="utf-8", closefd=False) as stderr,
        ):
            patch.setattr(sys, "stdout", stdout)
            patch.setattr(sys, "stderr", stderr)
            # What a command changes for its program.
            patch.setattr(sys, "argv", ["detmode"])
            patch.setattr(sys, "path", ["", *sys.path])
            # Process groups of other tests put their rank before each line.
            patch.setattr(sys, "excepthook", sys.__excepthook__)
            patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
            try:
                code = parser.main(arguments)
            except SystemExit as error:  # of argparse
                code = error.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def cublas_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.8 and 2.9 refuse matrix products of CUDA, or as if on CUDA, without it."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def family_of(item: pytest.Item) -> object:
    """The family of operators that a test's parameters name."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    of_values = (value.family for value in given.values() if hasattr(value, "family"))
    return given.get("family") or next(of_values, None)


def pytest_collection_finish() -> None:
    """Keep what collection has made out of garbage collections, which tests begin on purpose."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or not torch.cuda.is_initialized():
        return
    try:
        # What a CUDA kernel did wrong is the fault of the test that launched it.
        torch.cuda.synchronize()
    except RuntimeError as error:
        # Nothing runs any more in a process whose context is broken; xdist begins another one.
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(3)
        pytest.exit(f"{item.nodeid} broke the CUDA context ({error}); run the rest with -n 1", 3)
