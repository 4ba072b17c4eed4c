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
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from detmode.process.files import FileError
from detmode.process.project import defaults_for
from detmode.table.override_option import as_override

if TYPE_CHECKING:
    from detmode.testing.suite import CheckedMode
    from detmode.verify.certificates.certificate import Certificate

_MARK = "deterministic"
_MARK_HELP = (
    f"{_MARK}(repeats=3, *, warn_only=False, simulate=None, ...): run the test several times under "
    "a detmode.DeterministicMode with these arguments; what it returns, or gives to the fixture "
    "deterministic_mode, must have the same bits each time."
)
_NO_ASYNC = (
    "pytest.mark.deterministic repeats a test as a plain call: an async test, or one that yields, "
    "is not supported"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--detmode`` and the options that belong to it."""
    group = parser.getgroup("detmode", "determinism (detmode)")
    group.addoption(
        "--detmode",
        nargs="?",
        const=True,  # as the project chooses
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
    from detmode.testing.whole_suite import WholeSuite

    try:
        project = defaults_for(config.rootpath)
    except FileError as error:
        raise pytest.UsageError(str(error)) from error
    if asked is True:
        asked = "strict" if project.get("strict") else "error"
        asked = "warn" if project.get("warn-only") else asked
    config.pluginmanager.register(WholeSuite(config, asked, project), "detmode-suite")


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
        pytest.fail(_NO_ASYNC, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Call a marked test as often as its marker asks."""
    if pyfuncitem.get_closest_marker(_MARK) is None:
        return (yield)
    from detmode.testing.repeats import captured

    mode = _mode_of(pyfuncitem)
    body = pyfuncitem.obj

    # Without functools.wraps: pytest unwraps what it is given.
    def repeated(**arguments: Any) -> None:
        def call() -> object:
            result = body(**{name: pyfuncitem.funcargs[name] for name in arguments})
            if inspect.isawaitable(result):
                getattr(result, "close", bool)()
                pytest.fail(_NO_ASYNC, pytrace=False)
            return result

        def shared() -> dict[str, Any]:
            fixtures = {f"fixture {name}": value for name, value in pyfuncitem.funcargs.items()}
            return {**captured(body), **fixtures}

        failure = mode.repeat(call, functools.partial(_set_up_again, pyfuncitem), shared)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    pyfuncitem.obj = repeated
    try:
        return (yield)
    finally:
        pyfuncitem.obj = body


def _set_up_again(item: pytest.Function) -> None:
    """Tear the fixtures of function scope down, and set them up for another repeat."""
    from _pytest.tmpdir import tmppath_result_key

    # tmp_path's teardown needs and removes it, and pytest adds it once a phase, not once a repeat.
    item.stash.setdefault(tmppath_result_key, {})
    state = item.session._setupstate
    assert item.parent is not None
    state.teardown_exact(item.parent)  # type: ignore[arg-type]  # asks for its collectors
    item._initrequest()
    state.setup(item)


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
