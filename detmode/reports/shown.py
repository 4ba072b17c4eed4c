"""A report that can be shown in every form."""

from __future__ import annotations

import sys

from detmode.process.text import in_a_line
from detmode.reports.github import to_github
from detmode.reports.page import Page
from detmode.reports.sarif import to_sarif
from detmode.reports.terminal import painted, terminal_width, wrapped


class Shown:
    """A report that can be shown: one that gives a :class:`Page`."""

    @property
    def verdict(self) -> str:
        """The result in one line."""
        raise NotImplementedError

    @property
    def next_step(self) -> str:
        """The most useful next step, in one line."""
        raise NotImplementedError

    def text(self, *, long: bool = False, width: int | None = None, colour: bool = False) -> str:
        """Return the verdict, the next step, and what the report has.

        Args:
            long: all that is known of each row.
            width: the columns of the terminal; ``None`` is for files and pipes.
            colour: with escapes that colour it by how much it matters.
        """
        raise NotImplementedError

    def opening(self, *, width: int | None = None, colour: bool = False) -> str:
        """Return the first lines of the text: the verdict and the next step."""
        verdict = wrapped("", in_a_line(self.verdict), width)
        verdict = painted(verdict, self.page().severity if colour else "none")
        return f"{verdict}\n{wrapped('next: ', in_a_line(self.next_step), width)}"

    def __str__(self) -> str:
        """Return the report as text, as wide as the terminal on stdout."""
        return self.text(width=terminal_width(sys.stdout))

    def page(self) -> Page:
        """Return the content of the report."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.page().verdict}>"

    def to_json(self) -> str:
        """The report's own data."""
        raise NotImplementedError

    def to_html(self) -> str:
        """One HTML page with all that it needs in it: styles, script, data."""
        from detmode.reports.html import to_html  # jinja2 costs start-up time

        return to_html(self.page())

    def to_github(self) -> str:
        """Workflow commands, which GitHub Actions shows as annotations at lines of code."""
        return to_github(self.page())

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from detmode.reports.html import to_fragment

        return to_fragment(self.page())

    def to_sarif(self) -> str:
        """SARIF 2.1.0, as code scanning services read it."""
        return to_sarif(self.page())
