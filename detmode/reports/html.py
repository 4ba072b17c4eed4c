"""A report as one HTML page: no network, keyboard and screen readers, light and dark."""

from __future__ import annotations

import re
from collections import Counter

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import detmode
from detmode.reports.page import Page, shortened


def _code(text: str) -> Markup:
    """A name or a path, which a line may break after its parts."""
    return Markup(_PART_ENDS.sub(r"\1<wbr>", str(escape(shortened(text)))))


_PART_ENDS = re.compile(r"(::|[/._])(?=\w)")
_environment = Environment(
    loader=PackageLoader("detmode.reports", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters["code"] = _code


def to_html(page: Page) -> str:
    """The page; it is the same for the same report: it names versions, and no time."""
    counts = Counter(row.group for row in page.table.rows)
    return _environment.get_template("page.html").render(
        page=page, counts=counts, detmode=detmode.__version__, torch=torch.__version__
    )
