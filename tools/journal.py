"""A pytest plugin: a line for each test as it begins and as it ends, in a file that many share.

``pytest -p journal --journal FILE``. What a process did is there when it hangs or dies, and a
test that the file says ended is not run again. ``--share 2/8`` runs the second of eight parts, in
which the tests of a family of operators stay together. With ``--variant TEXT`` tests are others: of
those that other options make.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pytest

STARTED = "started"
WITHOUT_FAMILY = "others"


def write(path: Path, line: dict[str, Any]) -> None:
    """Append a line, whole beside those of other processes."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each test. One that was cut off when the machine went is left out."""
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        found[line["test"]] = line
    return found


def family_of(item: pytest.Item) -> str:
    """The family of the case that the test is of."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value.family for value in values if hasattr(value, "family")), WITHOUT_FAMILY)


def _share(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"a share is like 2/8, not {text}")
    return int(number), int(count)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("journal")
    group.addoption("--journal", type=Path, help="of lines; what ended there is not run")
    group.addoption("--part", default="", help="is written into each line")
    group.addoption("--variant", default="", help="stands behind the name of each test")
    group.addoption("--share", type=_share, default=(1, 1), help="2/8: the second of eight parts")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.journal is not None:
        config.pluginmanager.register(Journal(config))


class Journal:
    """Writes the lines of one process."""

    def __init__(self, config: pytest.Config) -> None:
        self.path: Path = config.option.journal
        self.part: str = config.option.part
        self.share: tuple[int, int] = config.option.share
        self.variant: str = config.option.variant
        self.families: dict[str, str] = {}
        self.line: dict[str, Any] = {}
        self.start = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        # After all others: what is deselected by a marker is in no share.
        ordered = sorted(items, key=family_of)
        number, count = self.share
        n = len(ordered)
        mine = ordered[(number - 1) * n // count : number * n // count]
        ended = {test for test, line in read(self.path).items() if line["outcome"] != STARTED}
        left = [item for item in mine if self.name(item.nodeid) not in ended]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
        items[:] = left
        self.families = {item.nodeid: family_of(item) for item in left}

    def name(self, nodeid: str) -> str:
        """The name of a test, as lines have it."""
        return f"{nodeid}, {self.variant}" if self.variant else nodeid

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        family = self.families.get(nodeid, WITHOUT_FAMILY)
        self.line = {"test": self.name(nodeid), "part": self.part, "family": family}
        self.line["outcome"] = STARTED
        write(self.path, self.line)
        self.start = time.monotonic()
        self.line["outcome"] = "passed"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash is not None else report.longreprtext
            self.line.update(outcome="failed", found=text.strip().partition("\n")[0][:300])
        elif report.skipped and self.line["outcome"] == "passed":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.line.update(outcome="skipped", found=str(reason)[:300])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        write(self.path, {**self.line, "seconds": round(time.monotonic() - self.start, 2)})
