"""A report as workflow commands, which GitHub Actions shows as annotations at lines of code."""

from __future__ import annotations

import os
from pathlib import Path

from detmode.process.text import in_a_line
from detmode.reports.page import Page, plural, working_folder
from detmode.reports.sarif import file_and_line

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
"""GitHub's word for a level; what has none is not shown."""


def to_github(page: Page) -> str:
    """Return a line for the verdict, and one for each row that is an error or a warning.

    What needs no attention is not annotated: GitHub shows ten annotations of a kind in a step.
    """
    lines = [annotation(page.severity, f"detmode: {page.title}", page.verdict)]
    quiet = 0
    for row in page.rows:
        level = page.level(row.group)
        if level in ("error", "warning"):
            about = "\n".join([row.message, *(f"{name}: {text}" for name, text in row.more)])
            lines.append(annotation(level, row.rule, about, row.outer_site or row.site))
        else:
            quiet += 1
    if quiet:
        lines.append(f"{plural(quiet, 'row')} without a warning")
    return "\n".join(lines)


def annotation(level: str, title: str, message: str, site: str = "") -> str:
    """Return one workflow command.

    Args:
        level: one of SARIF's words for how much it matters.
        title: the annotation's heading.
        message: its text.
        site: "file:line", if it belongs to one. The file is named relative to the repository, which
            ``GITHUB_WORKSPACE`` names, or else to the working directory.
    """
    place = file_and_line(site)
    properties = {}
    if place is not None:
        path, line = place
        root = Path(os.environ.get("GITHUB_WORKSPACE") or working_folder())
        inside = path.relative_to(root) if path.is_relative_to(root) else path
        properties = {"file": inside.as_posix(), "line": str(line)}
    properties["title"] = title
    assigned = ",".join(f"{name}={_in_property(text)}" for name, text in properties.items())
    return f"::{_COMMANDS[level]} {assigned}::{_in_message(message)}"


def _in_message(text: str) -> str:
    return in_a_line(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _in_property(text: str) -> str:
    return _in_message(text).replace(":", "%3A").replace(",", "%2C")
