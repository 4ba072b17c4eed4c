"""The pytest plugin: the marker ``deterministic``, and a mode around the whole suite.

pytest imports this module in every run if detmode is installed, so PyTorch and the mode are
imported only when a test uses them. PYTEST_DONT_REWRITE: this module has no test assertions.
"""

from __future__ import annotations

import functools
import inspect
import sys
import unittest
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from detmode.table.override_option import as_override

if TYPE_CHECKING:
    from detmode.reports.report import Report
    from detmode.reports.report_row import ReportRow
    from detmode.testing.baseline import Key
    from detmode.testing.suite import CheckedMode, SuiteMode
    from detmode.verify.certificates.certificate import Certificate

_MARK = "deterministic"
_MARK_HELP = (
    f"{_MARK}(repeats=3, *, warn_only=False, simulate=None, ...): run the test several times under "
    "a detmode.DeterministicMode with these arguments; what it returns, or gives to the fixture "
    "deterministic_mode, must have the same bits each time."
)
_OFFENDERS = ("error", "warn")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--detmode`` and the options that belong to it."""
    group = parser.getgroup("detmode", "determinism (detmode)")
    group.addoption(
        "--detmode",
        nargs="?",
        const="error",
        choices=("error", "warn", "strict"),
        help="run all tests under a DeterministicMode; calls that may vary raise (error, the "
        "default), also where PyTorch is silent (strict), or are listed at the end only (warn)",
    )
    group.addoption(
        "--detmode-simulate",
        choices=("cuda",),
        help="match rules as if CPU tensors were CUDA tensors, for machines without a GPU",
    )
    group.addoption(
        "--detmode-override",
        action="append",
        default=[],
        type=as_override,
        metavar="OP=ACTION",
        help="what an operator meets: allow, warn, error, native or substitute; may be repeated",
    )
    group.addoption(
        "--detmode-recheck",
        type=float,
        default=0.0,
        metavar="RATE",
        help="make this share of the calls twice, from 0 to 1: a test fails in which bits differ",
    )
    group.addoption(
        "--detmode-baseline", metavar="FILE", help="let the calls pass that this file lists"
    )
    group.addoption(
        "--detmode-update-baseline",
        action="store_true",
        help="raise nothing, and write the calls that may vary to --detmode-baseline",
    )
    group.addoption(
        "--detmode-sarif",
        metavar="FILE.sarif",
        help="write the calls that may vary there too, for code scanning",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and set up the mode of the suite if it is requested."""
    config.addinivalue_line("markers", _MARK_HELP)
    asked = config.getoption("--detmode")
    if asked is None:
        for name in ("simulate", "override", "recheck", "baseline", "update-baseline", "sarif"):
            if config.getoption(f"--detmode-{name}"):
                raise pytest.UsageError(f"--detmode-{name} needs --detmode")
        return
    config.pluginmanager.register(_Suite(config, asked), "detmode-suite")


# One test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test that cannot be repeated; a test that is run again has a new mode."""
    if _mode_key in item.stash:
        del item.stash[_mode_key]
    if item.get_closest_marker(_MARK) is None:
        return
    if not isinstance(item, pytest.Function):
        pytest.fail("pytest.mark.deterministic is for test functions", pytrace=False)
    function = inspect.unwrap(item.obj)
    if item.cls is not None and issubclass(item.cls, unittest.TestCase):
        pytest.fail(
            "pytest.mark.deterministic does not reach methods of unittest.TestCase; use "
            "detmode.testing.assert_reproducible there",
            pytrace=False,
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        from detmode.testing.suite import NO_ASYNC

        pytest.fail(NO_ASYNC, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Call a marked test as often as its marker asks."""
    if pyfuncitem.get_closest_marker(_MARK) is None:
        return (yield)
    from detmode.testing.suite import DifferError

    mode = _mode_of(pyfuncitem)
    body = pyfuncitem.obj

    # Without functools.wraps: pytest unwraps what it is given.
    def repeated(**arguments: Any) -> None:
        failure = None
        try:
            mode.repeat(functools.partial(body, **arguments))
        except DifferError as error:
            failure = str(error)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    pyfuncitem.obj = repeated
    try:
        return (yield)
    finally:
        pyfuncitem.obj = body


@pytest.fixture
def deterministic_mode(request: pytest.FixtureRequest) -> Iterator[CheckedMode]:
    """An entered DeterministicMode, with the arguments of the test's marker ``deterministic``.

    ``deterministic_mode.compare(name=tensor)`` requires that a value of a marked test has the same
    bits in each repeat.
    """
    mode = _mode_of(request.node)
    with mode:
        yield mode


@pytest.fixture
def order_independent(request: pytest.FixtureRequest) -> Callable[..., Certificate]:
    """Certify a kernel as :func:`detmode.testing.assert_order_independent` does.

    A kernel that is not order-independent fails the test. Every certificate is a property
    ``detmode_certificate`` of the test, as JSON, in the results that pytest writes.
    """
    from detmode.verify.certificates import certify

    def certified(kernel: object, arguments: Any, **options: Any) -> Certificate:
        certificate = certify(kernel, arguments, **options)
        request.node.user_properties.append(("detmode_certificate", certificate.to_json()))
        if not certificate.is_order_independent:
            pytest.fail(str(certificate), pytrace=False)
        return certificate

    return certified


_mode_key = pytest.StashKey["CheckedMode"]()


def _mode_of(item: pytest.Item) -> CheckedMode:
    mode = item.stash.get(_mode_key, None)
    if mode is None:
        from detmode.testing.suite import CheckedMode

        mark = item.get_closest_marker(_MARK)
        try:
            mode = CheckedMode(*mark.args, **mark.kwargs) if mark else CheckedMode()
        except (TypeError, ValueError) as error:
            wrong = str(error)
        if mode is None:
            pytest.fail(f"pytest.mark.deterministic: {wrong}", pytrace=False)
        item.stash[_mode_key] = mode
    return mode


# A refused call


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a refused call at the lines of the program, its own line first in the short summary."""
    # Where no mode has been made, none has refused a call.
    messages = sys.modules.get("detmode.mode.messages")
    site = messages and call.excinfo and messages.site_of(call.excinfo.value)
    if not site or call.excinfo is None:
        return (yield)
    from detmode.reports.page import shortened

    if not item.config.getoption("fulltrace"):
        error = call.excinfo.value
        error.__traceback__ = _of_the_program(error.__traceback__) or error.__traceback__
        call.excinfo = pytest.ExceptionInfo.from_exception(error)
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = f"{shortened(site)}: {crash.message}"
    return report


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of PyTorch and detmode."""
    if traceback is None:
        return None
    below = _of_the_program(traceback.tb_next)
    frame = traceback.tb_frame
    if frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "detmode"):
        return below
    return TracebackType(below, frame, traceback.tb_lasti, traceback.tb_lineno)


# The whole suite


class _Suite:
    """The mode around the suite, its summary and its baseline."""

    def __init__(self, config: pytest.Config, asked: str) -> None:
        from detmode.testing import baseline
        from detmode.testing.completeness import Completeness

        self._config = config
        self._mode: SuiteMode | None = None
        self._records: list[ReportRow] = []
        self._head: dict[str, Any] = {}
        self._written: list[str] = []
        self._completeness = Completeness(config)
        config.pluginmanager.register(self._completeness, "detmode-completeness")
        # A refused call may occur in every step of a test, and the file may be edited meanwhile.
        self._key = functools.cache(functools.partial(baseline.key_of, root=config.rootpath))
        self._update: bool = config.getoption("--detmode-update-baseline")
        self._warns = asked == "warn" or self._update
        # An update writes down what would raise, silent calls too: it only warns.
        self._strict = asked == "strict" and not self._update
        self._known: frozenset[Key] = frozenset()
        self._file = self._path("--detmode-baseline")
        self._sarif = self._path("--detmode-sarif")
        if self._update and self._file is None:
            raise pytest.UsageError("--detmode-update-baseline needs --detmode-baseline FILE")
        if self._file is not None and not self._update:
            try:
                self._known = baseline.read(self._file)
            except baseline.BaselineError as error:
                raise pytest.UsageError(str(error)) from error

    def _path(self, option: str) -> Path | None:
        """Return the file that an option names, relative to where pytest was called."""
        name = self._config.getoption(option)
        return None if name is None else self._config.invocation_params.dir / Path(name)

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
                simulate=self._config.getoption("--detmode-simulate"),
                overrides=dict(self._config.getoption("--detmode-override")),
                recheck=self._config.getoption("--detmode-recheck"),
            )
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"--detmode: {error}") from error
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
        from detmode.reports.report import Report

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
        from detmode.reports.report import Report

        text = getattr(node, "workeroutput", {}).get("detmode")
        if text is not None:
            self._collect(Report.from_json(text))

    def _collect(self, report: Report) -> None:
        """Collect the rows of a process, and what it says that it has met."""
        from detmode.reports.report import united

        self._records += report.records
        self._head = united([self._head, report.head])

    def _write(self, session: pytest.Session, exitstatus: int) -> str:
        from detmode.testing import baseline

        assert self._file is not None
        if reason := self._completeness.cut_short(session, exitstatus):
            return f"{reason}: {self._file} is unchanged"
        keys = {self._key(record.overload, record.site) for record in self._offenders()}
        absent, earlier = self._completeness.absent(), frozenset[tuple[str, str, str]]()
        try:
            if absent and self._file.exists():
                earlier = baseline.read(self._file) - keys
            baseline.write(self._file, keys | earlier)
        except baseline.BaselineError as error:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return str(error)
        remaining = f"; kept {len(earlier)} more, as {absent}" if earlier else ""
        return f"wrote {len(keys)} to {self._file}{remaining}"

    def _write_sarif(self, session: pytest.Session, file: Path) -> str:
        from detmode.process.files import replace_file
        from detmode.reports.report import Report

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
        from detmode.reports.report import merged

        return sorted(merged(self._records), key=_line)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the calls that may vary, and how many were made deterministic."""
        from detmode.reports.page import plural
        from detmode.reports.report import Report
        from detmode.reports.terminal import painted, terminal_width

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
            line += f", in addition to {len(offenders) - len(new)} in the baseline"
            line += f"; {len(self._known - occurred)} of the baseline did not occur"
        terminalreporter.write_line(line)
        terminalreporter.write_line(
            f"{plural(calls['substitute'], 'call')} substituted, {calls['native']} made "
            "deterministic by PyTorch"
        )
        for line in self._written:
            terminalreporter.write_line(line)


def _line(record: ReportRow) -> tuple[str, int, str]:
    file, _, line = record.site.rpartition(":")
    return (file, int(line), record.overload) if line.isdecimal() else (record.site, 0, "")
