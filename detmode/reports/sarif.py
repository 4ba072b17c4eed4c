"""A report as SARIF 2.1.0, the format of code scanning services."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import detmode
from detmode.process.text import writable
from detmode.reports.page import Page, TableRow, working_folder

_MOST_DIGITS = 9
_HELP = "https://docs.pytorch.org/docs/stable/notes/randomness.html"
_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def to_sarif(page: Page) -> str:
    """The rows as results: a rule an operator, a location a line of the program.

    A call in an installed package is at the program's own line that leads to it: services show what
    lies in the repository. Its site is a related location. Files in the working directory are named
    relative to it, as ``%SRCROOT%``.
    """
    rules = {row.rule: row for row in reversed(page.rows)}
    names = sorted(rules)
    run = {
        "tool": {
            "driver": {
                "name": "detmode",
                "version": detmode.__version__,
                "rules": [_rule(page, rules[name]) for name in names],
            }
        },
        "results": [
            {
                "ruleId": row.rule,
                "ruleIndex": names.index(row.rule),
                "level": page.level(row.group),
                "message": {"text": " ".join([row.message, *_advice(row)])},
                "locations": _locations(row.outer_site or row.site, row.modules),
                "relatedLocations": _locations(row.site) if row.outer_site else [],
                "properties": dict((*zip(page.columns, row.cells), *row.more)),
            }
            for row in page.rows
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(page: Page, row: TableRow) -> dict[str, Any]:
    advice = _advice(row)
    explain = [f"Run detmode explain {row.rule}."] if "::" in row.rule else []
    return {
        "id": row.rule,
        "shortDescription": {"text": f"{row.rule}: {page.title}"},
        "fullDescription": {"text": (advice or [row.message])[0]},
        "help": {"text": "\n\n".join([*(advice or page.facts or [row.message]), *explain])},
        "helpUri": _HELP,
        "defaultConfiguration": {"level": page.level(row.group)},
    }


def _advice(row: TableRow) -> list[str]:
    """Return the reason and the remedy of a row, where it has them, each as a sentence."""
    texts = [text for name, text in row.more if name in ("because", "remedy")]
    return [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in texts]


def file_and_line(site: str) -> tuple[Path, int] | None:
    """Return the file and the line that a site names; ``None`` if it names none."""
    file, _, line = writable(site).rpartition(":")
    if file and line.isdecimal() and len(line) <= _MOST_DIGITS and os.path.isabs(file):
        return Path(file), max(int(line), 1)
    return None


def _locations(site: str, modules: tuple[str | None, ...] = ()) -> list[dict[str, Any]]:
    location: dict[str, Any] = {}
    place = file_and_line(site)
    if place is not None:
        path, line = place
        if path.is_relative_to(working_folder()):
            relative = path.relative_to(working_folder())
            artifact = {"uri": quote(os.fsencode(relative.as_posix())), "uriBaseId": "%SRCROOT%"}
        else:
            artifact = {"uri": path.as_uri()}
        region = {"startLine": line}
        location["physicalLocation"] = {"artifactLocation": artifact, "region": region}
    if any(modules):
        location["logicalLocations"] = [
            {"fullyQualifiedName": module, "kind": "module"} for module in modules if module
        ]
    return [location] if location else []
