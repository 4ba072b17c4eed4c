"""Tells if a run of pytest has run a whole suite: then calls that it did not make are not made.

pytest imports this module with the plugin only if a suite runs under a mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

_DESELECTED = "detmode_deselected"
_WITHOUT_CALLS = ("collectonly", "setuponly", "setupplan")
"""Options of pytest under which it runs no test."""


class Completeness:
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
        from detmode.reports.page import plural

        if self.crashed:
            return f"{plural(self.crashed, 'worker')} crashed"
        if self._deselected or self._config.getoption("lf", False):
            return "not all tests were selected"
        if any("::" in argument for argument in self._config.args):
            return "tests were selected by name"
        if self._unfinished:
            return f"{plural(len(self._unfinished), 'test')} did not run to the end"
        return ""
