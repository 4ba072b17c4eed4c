"""A report as one HTML page: no network, keyboard and screen readers, light and dark.

A notebook shows a part of it: it has a page already, with colours of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import detmode
from detmode.reports.page import Page, plural, shortened
from detmode.reports.timeline import Lane

_HEIGHT = 22
"""Of a lane, in the units of its drawing."""
_SEEN = 3
"""The least height of calls of a group, however many others there are."""
_ROWS = 25
"""The rows that a notebook shows."""
_LABELS = {"because": "why", "remedy": "what to do", "outer_site": "your line"}


def _code(text: str) -> Markup:
    """A name or a path, which a line may break after its parts."""
    return Markup(_PART_ENDS.sub(r"\1<wbr>", str(escape(shortened(text)))))


def _prose(text: str) -> Markup:
    """A sentence, in which what stands between backticks is code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))


def _paths(lane: Lane) -> Iterator[tuple[str, str]]:
    """Yield an SVG path for each group of a lane: a bar for each bin, upon those before it."""
    calls = {place: sum(count for _, count in counts) for place, counts in lane.columns}
    largest = max(calls.values())
    bars: dict[str, list[tuple[int, int, int, int]]] = {}
    for bin, counts in lane.columns:
        whole = calls[bin] * _HEIGHT / largest
        top = _HEIGHT
        for group, count in counts:
            height = min(max(round(count / calls[bin] * whole), _SEEN), top)
            top -= height
            drawn = bars.setdefault(group, [])
            place, width, *like = drawn[-1] if drawn else (-1, 0, 0, 0)
            if place + width == bin and like == [top, height]:
                drawn[-1] = (place, width + 1, top, height)
            else:
                drawn.append((bin, 1, top, height))
    for group, rectangles in bars.items():
        yield group, "".join(f"M{x} {y}h{w}v{h}h-{w}z" for x, w, y, h in rectangles)


_PART_ENDS = re.compile(r"(::|[/_]|[.](?!py:)|[^\W_]{40})(?=\w)")
_QUOTED = re.compile("`([^`]+)`")
_environment = Environment(
    loader=PackageLoader("detmode.reports", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {"code": _code, "paths": _paths, "prose": _prose}
_environment.globals |= {"labels": _LABELS, "detmode": detmode.__version__}


def to_html(page: Page) -> str:
    """The page; it is the same for the same report: it names versions, and no time."""
    counts = Counter(row.group for row in page.rows)
    lanes = page.timeline.lanes if page.timeline else ()
    drawn = {group for lane in lanes for group, _ in lane.counts}
    return _environment.get_template("page.html").render(
        page=page, counts=counts, drawn=drawn, height=_HEIGHT
    )


def to_fragment(page: Page) -> str:
    """The part of the page that a notebook shows: the verdict, opened calls, and the first rows."""
    more = len(page.rows) - _ROWS
    return _environment.get_template("fragment.html").render(
        page=page,
        rows=page.rows[:_ROWS],
        more=f"{plural(more, 'more row')} in to_html()" if more > 0 else "",
    )
