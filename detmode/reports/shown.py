"""A report that can be shown in every form."""

from __future__ import annotations

from detmode.reports.page import Page
from detmode.reports.sarif import to_sarif


class Shown:
    """A report that can be shown: one that gives a :class:`Page`."""

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

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from detmode.reports.html import to_fragment

        return to_fragment(self.page())

    def to_sarif(self) -> str:
        """SARIF 2.1.0, as code scanning services read it."""
        return to_sarif(self.page())
