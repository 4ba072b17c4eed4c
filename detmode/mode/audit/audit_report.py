"""The report of an audit: the rows, the cost of determinism, and what the audit cannot see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from detmode.mode.audit.blind_spots import Unseen, listing_of
from detmode.mode.audit.blind_spots import text_of as text_of_unseen
from detmode.process.checked import checked
from detmode.process.text import text_of
from detmode.reports.page import Listing, Page, plural
from detmode.reports.report import Report, head_of, read_json, rows_of
from detmode.reports.report_row import ReportRow
from detmode.reports.terminal import table, wrapped
from detmode.reports.verdict import gaps_of, verdict_of

_MODULES_SHOWN = 5
_SIZES = 41
"""The characters of the columns beside the modules."""
_COST = 0.01
"""The share of all bytes from which on filling new memory counts as a cost."""
_COVERED = "deterministic on one GPU model with one software: every call met would be covered"
_TOTALS = ("calls", "total_bytes", "extra_bytes", "uncounted_bytes", "fill_bytes")


@dataclass
class Cost:
    """The memory traffic of some calls.

    Args:
        calls: the number of calls.
        bytes: the floor: their inputs read once and their outputs written once.
        extra_bytes: the bytes that determinism adds, as far as they have been counted.
        uncounted_bytes: the floor of the calls whose extra bytes have not been counted.
    """

    calls: int = 0
    bytes: int = 0
    extra_bytes: int = 0
    uncounted_bytes: int = 0

    @classmethod
    def of(cls, moved: int, extra: int | None, *, calls: int = 1) -> Cost:
        """Return the cost of calls; ``extra`` is None if it has not been counted."""
        return cls(calls, moved, extra or 0, moved if extra is None else 0)

    def add(self, cost: Cost) -> None:
        """Count further calls."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(cost, item.name))


class AuditReport(Report):
    """The report of an audit: the mode's actions in a CUDA run, and an estimate of their cost.

    The estimate counts bytes; it measures nothing.

    Attributes:
        records: the rows, a tuple of :class:`~detmode.reports.report.ReportRow`.
        costs: the :class:`Cost` of each row, in the same order.
        modules: the :class:`Cost` of all calls by ``nn.Module`` path, ``""`` if none is known;
            includes calls that no rule lists.
        total: the :class:`Cost` of all calls.
        fill_bytes: the bytes that filling uninitialized memory writes, also included in
            ``total.extra_bytes``. Counts ``torch.empty`` and similar operators, and not what ATen
            allocates inside its kernels.
        unseen: calls that the audit could not see, a tuple of :class:`Unseen`.
    """

    def __init__(
        self,
        records: Iterable[ReportRow],
        costs: Iterable[Cost],
        modules: Mapping[str, Cost],
        total: Cost,
        fill_bytes: int,
        unseen: Iterable[Unseen],
        course: Iterable[tuple[int, str | None, int]] = (),
        head: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(records, course, head)
        self.costs = tuple(costs)
        self.modules = dict(modules)
        self.total = total
        self.fill_bytes = fill_bytes
        self.unseen = tuple(unseen)

    @property
    def verdict(self) -> str:
        """As a mode's; what CUDA calls in place of the program's operators was not met."""
        gaps = [
            f"what CUDA runs for {', '.join(unseen.calls)}"
            for unseen in self.unseen
            if unseen.calls
        ]
        return verdict_of(self.records, self.head, gaps_of(self.head) + gaps, (), _COVERED)

    @property
    def next_step(self) -> str:
        """The most useful next step after this audit."""
        if self.verdict.startswith("not checked") and self.head.get("devices"):
            return f"{self.interface.on_gpu}: it meets what an audit does not see"
        if self.verdict.startswith("not checked"):
            return "audit what calls PyTorch's operators: the audit has met none"
        return super().next_step

    def _how_to_prove(self) -> str:
        return f"on a GPU, {super()._how_to_prove()}"

    @property
    def _fills_at_a_cost(self) -> bool:
        return self.fill_bytes > _COST * self.total_bytes

    @property
    def total_bytes(self) -> int:
        """The floor of all calls, in bytes."""
        return self.total.bytes

    @property
    def extra_bytes(self) -> int:
        """The bytes that determinism adds, as far as they have been counted, with the fill."""
        return self.total.extra_bytes

    @property
    def raises(self) -> bool:
        """True if a call would raise."""
        return any(record.action == "error" for record in self.records)

    def text(self, *, long: bool = False, width: int | None = None, colour: bool = False) -> str:
        """Return the rows, the estimate, the costliest modules, and what the audit cannot see."""
        estimate = "\n".join(wrapped("", sentence, width) for sentence in self._estimate())
        parts = [
            super().text(long=long, width=width, colour=colour),
            estimate,
            self._where(width, long=long),
            text_of_unseen(self.unseen, width, long=long),
        ]
        return "\n\n".join(part for part in parts if part)

    def page(self) -> Page:
        """Return a mode's page with the bytes of each row, the modules, and what is not seen."""
        page = super().page()
        costs = {id(record): cost for record, cost in zip(self.records, self.costs)}
        rows = tuple(
            replace(row, cells=(*row.cells, *_bytes_of(costs[id(record)])))
            for row, record in zip(page.rows, self.ordered())
        )
        columns, modules = self._modules()
        listings = [Listing("Where the bytes are moved", columns, modules)] if modules else []
        return replace(
            page,
            title="Audit of a CUDA run",
            facts=(*page.facts, *self._estimate()),
            columns=(*page.columns, "moves", "added"),
            rows=rows,
            listings=(*listings, *map(listing_of, self.unseen)),
        )

    def _estimate(self) -> tuple[str, ...]:
        total = self.total
        share = total.extra_bytes / total.bytes if total.bytes else 0.0
        uncounted = (
            f"Not counted: what it adds to calls that move {_size(total.uncounted_bytes)} "
            "(PyTorch's own deterministic paths, and substitutes without a count).",
        )
        return (
            f"{plural(total.calls, 'call')} move at least {_size(total.bytes)}: inputs read once, "
            "outputs written once.",
            f"Determinism adds at most about {share:.1%} to that: substitutes "
            f"{_size(total.extra_bytes - self.fill_bytes)}, the fill of uninitialized memory "
            f"{_size(self.fill_bytes)}.",
            *(uncounted if total.uncounted_bytes else ()),
            "This counts bytes and measures no time; for operators bound by arithmetic the share "
            "is smaller.",
        )

    def _where(self, width: int | None, *, long: bool) -> str:
        columns, rows = self._modules()
        if not rows:
            return ""
        most = len(rows) if long else _MODULES_SHOWN
        widths = (width and width - _SIZES, None, None, None)
        shown, more = table(columns, rows[:most], widths), len(rows) - most
        return f"{shown}\n+ {plural(more, 'module')}" if more > 0 else shown

    def _modules(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Return columns and rows for the modules, the costliest first."""
        costliest = sorted(
            self.modules.items(), key=lambda item: (-item[1].extra_bytes, -item[1].bytes)
        )
        rows = tuple(
            (path or "(none)", str(cost.calls), _size(cost.bytes), _size(cost.extra_bytes))
            for path, cost in costliest
        )
        return ("module", "calls", "moves", "determinism adds"), rows if any(self.modules) else ()

    def _as_dict(self) -> dict[str, Any]:
        """Return a report's object with everything else that the audit found.

        ``rows`` also has ``bytes``, and ``extra_bytes``, which is null if it has not been counted.
        ``modules`` and ``unseen`` are lists of objects with the fields of :class:`Cost` and
        :class:`Unseen`. The other fields are the totals.
        """
        whole = super()._as_dict()
        for row, cost in zip(whole["rows"], self.costs):
            extra = None if cost.uncounted_bytes else cost.extra_bytes
            row |= {"bytes": cost.bytes, "extra_bytes": extra}
        return {
            **whole,
            "modules": [{"module": path, **asdict(cost)} for path, cost in self.modules.items()],
            "unseen": [asdict(unseen) for unseen in self.unseen],
            "calls": self.total.calls,
            "total_bytes": self.total.bytes,
            "extra_bytes": self.total.extra_bytes,
            "uncounted_bytes": self.total.uncounted_bytes,
            "fill_bytes": self.fill_bytes,
            "raises": self.raises,
        }

    @staticmethod
    def from_json(text: str) -> AuditReport:
        """Read the report that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is not such a report, or one of another version.
        """
        whole = read_json(text)
        try:
            moved = [
                (checked(int, row.pop("bytes")), checked(int | None, row.pop("extra_bytes")))
                for row in whole["rows"]
            ]
            records = rows_of(whole["rows"])
            costs = [
                Cost.of(*fields, calls=row.count)
                for fields, row in zip(moved, records, strict=True)
            ]
            modules = {
                text_of(entry.pop("module")): checked(Cost, entry) for entry in whole["modules"]
            }
            *totals, fill_bytes = (checked(int, whole[name]) for name in _TOTALS)
            unseen = checked(list[Unseen], whole["unseen"])
            return AuditReport(
                *(records, costs, modules, Cost(*totals), fill_bytes, unseen), head=head_of(whole)
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "not a report of an audit as written by AuditReport.to_json"
            ) from error


def _size(count: int) -> str:
    amount, units = float(count), iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while amount >= 1000 and unit != "TB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"


def _bytes_of(cost: Cost) -> tuple[str, str]:
    extra = "not counted" if cost.uncounted_bytes else _size(cost.extra_bytes)
    return _size(cost.bytes), extra
