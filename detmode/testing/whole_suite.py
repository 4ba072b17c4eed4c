"""A plugin for one run of pytest: the mode around the whole suite, its summary and its baseline.

PYTEST_DONT_REWRITE: this module has no test assertions.
"""

from __future__ import annotations

import functools
import sys
from argparse import ArgumentTypeError
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from detmode.process.files import FileError, replace_file
from detmode.process.interface import PYTEST
from detmode.reports.page import plural
from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow
from detmode.reports.terminal import painted, terminal_width
from detmode.reports.union import merged, united
from detmode.table.override_option import as_override
from detmode.testing import baseline

if TYPE_CHECKING:
    from detmode.testing.suite import SuiteMode

_DESELECTED = "detmode_deselected"
_WITHOUT_CALLS = ("collectonly", "setuponly", "setupplan")
"""Options of pytest under which it runs no test."""
_OFFENDERS = ("error", "warn")
_NOTHING_NEW = "No new nondeterministic calls"


class WholeSuite:
    """The mode around the suite, its summary and its baseline.

    Args:
        config: of the run.
        asked: the value of ``--detmode``: ``"error"``, ``"warn"`` or ``"strict"``.
        project: the options that the project chooses.

    Raises:
        pytest.UsageError: an option is wrong, or the baseline cannot be read.
    """

    def __init__(self, config: pytest.Config, asked: str, project: Mapping[str, Any]) -> None:
        self._config, self._project = config, project
        self._mode: SuiteMode | None = None
        self._records: list[ReportRow] = []
        self._head: dict[str, Any] = {}
        self._written: list[str] = []
        self._completeness = _Completeness(config)
        config.pluginmanager.register(self._completeness, "detmode-completeness")
        # A refused call may occur in every step of a test, and the file may be edited meanwhile.
        self._key = functools.cache(functools.partial(baseline.key_of, root=config.rootpath))
        self._update: bool = config.getoption("--detmode-update-baseline")
        self._warns = asked == "warn" or self._update
        # An update writes down what would raise, silent calls too: it only warns.
        self._strict = asked == "strict" and not self._update
        self._known: frozenset[baseline.Key] = frozenset()
        self._file = self._path("--detmode-baseline")
        self._sarif = self._path("--detmode-sarif")
        if self._update and self._file is None:
            raise pytest.UsageError("--detmode-update-baseline needs --detmode-baseline FILE")
        if self._file is not None and not self._update:
            try:
                self._known = baseline.read(self._file)
            except FileError as error:
                raise pytest.UsageError(str(error)) from error

    def _path(self, option: str) -> Path | None:
        """Return the file that an option names, relative to where pytest was called."""
        name = self._config.getoption(option)
        return None if name is None else self._config.invocation_params.dir / Path(name)

    def _chosen(self, name: str) -> Any:
        return self._config.getoption(f"--detmode-{name}") or self._project.get(name)

    def _overrides(self) -> list[tuple[str, str]]:
        """Return the project's overrides, and those of the command line, which win."""
        project = map(as_override, self._project.get("override", ()))
        return [*project, *self._config.getoption("--detmode-override")]

    @property
    def _distributes(self) -> bool:
        """True if this process distributes the tests to workers of pytest-xdist.

        The option ``--dist`` does not tell: without ``-n`` there are no workers.
        """
        return self._config.pluginmanager.hasplugin("dsession")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Enter the mode once: fixtures of every scope begin and end within it."""
        if self._distributes:
            return (yield)
        from detmode.testing.suite import SuiteMode

        try:
            self._mode = SuiteMode(
                lambda overload, site: self._key(overload, site) in self._known,
                warn_only=self._warns,
                strict=self._strict,
                substitute=not self._project.get("no-substitute"),
                simulate=self._chosen("simulate"),
                overrides=dict(self._overrides()),
                recheck=self._chosen("recheck") or 0.0,
            )
        except (ArgumentTypeError, TypeError, ValueError) as error:
            raise pytest.UsageError(f"--detmode: {PYTEST.in_words(str(error))}") from error
        with self._mode:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Compare the calls that this test has made twice, so that no other test fails for it."""
        try:
            return (yield)
        finally:
            if self._mode is not None and self._mode.rechecked is not None:
                self._mode.rechecked.compare()

    pytest_runtest_setup = pytest_runtest_teardown = pytest_runtest_call

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Collect the rows; write the files, the baseline only if the run was complete."""
        if self._mode is not None:
            self._collect(self._mode.report())
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["detmode"] = Report(self._records, head=self._head).to_json()
            return
        if self._update:
            self._written.append(self._write(session, exitstatus))
        if self._sarif is not None:
            self._written.append(self._write_sarif(session, self._sarif))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the rows of a worker of pytest-xdist."""
        text = getattr(node, "workeroutput", {}).get("detmode")
        if text is not None:
            self._collect(Report.from_json(text))

    def _collect(self, report: Report) -> None:
        """Collect the rows of a process, and what it says that it has met."""
        self._records += report.records
        self._head = united([self._head, report.head])

    def _write(self, session: pytest.Session, exitstatus: int) -> str:
        assert self._file is not None
        if reason := self._completeness.cut_short(session, exitstatus):
            return f"{reason}: {self._file} is unchanged"
        keys = {self._key(record.overload, record.site) for record in self._offenders()}
        absent, earlier = self._completeness.absent(), frozenset[tuple[str, str, str]]()
        try:
            if absent and self._file.exists():
                earlier = baseline.read(self._file) - keys
            baseline.write(self._file, keys | earlier)
        except FileError as error:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return str(error)
        rest = f"; kept {len(earlier)} more, as {absent}" if earlier else ""
        return f"wrote {len(keys)} to {self._file}{rest}"

    def _write_sarif(self, session: pytest.Session, file: Path) -> str:
        new = self._new()
        try:
            replace_file(file, Report(new).to_sarif().encode())
        except OSError as error:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return f"cannot write {file}: {error.strerror}"
        return f"wrote {len(new)} to {file}"

    def _new(self) -> list[ReportRow]:
        """Return the offenders that the baseline does not list."""
        return [
            record
            for record in self._offenders()
            if self._key(record.overload, record.site) not in self._known
        ]

    def _offenders(self) -> list[ReportRow]:
        return [record for record in self._merged() if record.action in _OFFENDERS]

    def _merged(self) -> list[ReportRow]:
        """Return the rows of all processes by line, one for each overload, action and site.

        Tests may run in any order, and in any process.
        """
        return sorted(merged(self._records), key=_line)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the calls that may vary, and how many were made deterministic."""
        terminalreporter.section("detmode")
        if crashed := self._completeness.crashed:
            lost = f"without the calls of {plural(crashed, 'worker')} that crashed:"
            terminalreporter.write_line(lost)
        new = self._new()
        report = Report(new or self._merged(), head=self._head)
        colour = terminalreporter.hasmarkup
        terminalreporter.write_line(
            report.text(width=terminal_width(sys.stdout), colour=colour)
            if new
            else painted(report.verdict, report.page().severity, colour)
        )
        calls = dict.fromkeys(("substitute", "native"), 0)
        for record in self._merged():
            calls[record.action] = calls.get(record.action, 0) + record.count
        line = f"{plural(len(new), 'place')} may vary"
        if self._known:
            offenders = self._offenders()
            occurred = {self._key(record.overload, record.site) for record in offenders}
            count = plural(len(new), "new nondeterministic call") if new else _NOTHING_NEW
            line = f"{count} ({len(offenders) - len(new)} known, in the baseline)"
            if missed := len(self._known - occurred):
                line += f"; {missed} of the baseline did not occur"
        terminalreporter.write_line(line)
        terminalreporter.write_line(
            f"{plural(calls['substitute'], 'call')} substituted, {calls['native']} made "
            "deterministic by PyTorch"
        )
        for line in self._written:
            terminalreporter.write_line(line)


class _Completeness:
    """Counts the tests of a run, as a plugin of pytest.

    Attributes:
        crashed: the number of workers of pytest-xdist whose rows are lost.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lacks_tests = False
        self._deselected = self.crashed = 0
        self._ended: set[str] = set()
        self._unfinished: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that tests are missing, which need not stop the run."""
        self._lacks_tests |= report.failed

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that tests were left out, as by -k."""
        self._deselected += len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the tests that have ended, and those whose calls were not all made."""
        self._ended.add(report.nodeid)
        if report.outcome in ("failed", "skipped"):
            self._unfinished.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Tell the process that distributes tests how many this worker has left out."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_DESELECTED] = self._deselected

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Note a worker of pytest-xdist that has left nothing; the others left out the same."""
        output = getattr(node, "workeroutput", None)
        if output is None:
            self.crashed += 1
        else:
            self._deselected = max(self._deselected, output.get(_DESELECTED, 0))

    def cut_short(self, session: pytest.Session, exitstatus: int) -> str:
        """Return why the run says nothing of the suite; empty if it does."""
        ran = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not ran or session.shouldfail or session.shouldstop:
            return "the run was cut short"
        if self._lacks_tests:
            return "not all tests could be collected"
        if not self._ended or any(map(self._config.getoption, _WITHOUT_CALLS)):
            return "no test ran"
        return ""

    def absent(self) -> str:
        """Return why calls of the suite may not have been seen; empty if all were."""
        if self.crashed:
            return f"{plural(self.crashed, 'worker')} crashed"
        if self._deselected or self._config.getoption("lf", False):
            return "not all tests were selected"
        if any("::" in argument for argument in self._config.args):
            return "tests were selected by name"
        if self._unfinished:
            return f"{plural(len(self._unfinished), 'test')} did not run to the end"
        return ""


def _line(record: ReportRow) -> tuple[str, int, str]:
    file, _, line = record.site.rpartition(":")
    return (file, int(line), record.overload) if line.isdecimal() else (record.site, 0, "")
