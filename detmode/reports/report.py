"""The report of a mode: its rows, the verdict on them, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import detmode
from detmode.process.checked import checked
from detmode.process.files import parsed_json
from detmode.process.interface import INTERFACES, PYTHON, Interface
from detmode.process.rank import named
from detmode.reports.origin import origin_of, this_process
from detmode.reports.page import Page, plural, shortened
from detmode.reports.report_row import ReportRow
from detmode.reports.rows import ACTIONS, COLUMNS, ERROR, WARN, row_of, text_of
from detmode.reports.shown import Shown
from detmode.reports.terminal import wrapped
from detmode.reports.timeline import timeline_of
from detmode.reports.verdict import gaps_of, has_met, limits_of, verdict_of

if TYPE_CHECKING:
    import pandas

_NAMES = tuple(group.name for group in ACTIONS)
VERSION = 3
"""The version of the JSON."""

_HEAD = {"detmode": str, "torch": str, "command": list[str]}
"""Fields of the JSON's head, and their types."""

_OPTIONAL = {
    "interface": str,
    "intercept": str,
    "counts_native": bool,
    "unsettled": list[str],
    "simulate": str,
    "recheck": dict[str, float],
    "where": str,
    "world_size": int,
    "missing": dict[str, list[int]],
    "devices": list[str],
    "not_seen": list[str],
    "unmatched": list[str],
    "failure": str,
}
"""Those that not every report has."""

_RECHECKED = frozenset(("rate", "calls", "sampled", "made_twice", "differing"))


_FIELDS = tuple(item.name for item in fields(ReportRow))
_FILTERS = (*_FIELDS, "varies", "fills_memory")


class Report(Shown):
    """The rows of one mode, in the order of their first calls: it iterates over them.

    >>> with detmode.DeterministicMode(simulate="cuda") as mode:
    ...     sums = torch.ones(3).cumsum(0)
    >>> report = mode.report()
    >>> len(report), len(report.where(action="warn"))
    (1, 0)

    Attributes:
        records: the rows, a tuple of :class:`ReportRow`.
        course: the run's calls in their order: for each of its parts, the position of a row, the
            module, and the number of calls; a part of a short run is one call.
        head: the report's origin: the versions of detmode and PyTorch, and the command;
            ``interface``, through which the mode was started, such as ``"command"``;
            ``simulate``, the type of device that CPU tensors have counted as; ``intercept``, if the
            mode has intercepted ``"listed"`` operators alone, and ``counts_native``, true if native
            calls have been counted all the same; ``unsettled``, texts, if the program has changed
            settings to which native calls were left; ``recheck``, if it makes calls twice:
            ``rate``, and the numbers of ``calls`` that it has received, ``sampled``,
            ``made_twice``, and found ``differing``; ``where``, if the rows are those of a filter;
            ``devices``, the types of devices that the rules are about and on which calls were met;
            ``not_seen``, calls that were not met, as texts; ``unmatched``, the modules of
            ``overrides`` in which no listed call was made; ``failure``, the error with which the
            program ended; and for a distributed run ``world_size``, and ``missing``: for each
            reason why ranks have no rows here, these ranks.

    Args:
        records: the rows.
        course: as the attribute.
        head: the report's origin, as far as it is not this process.
    """

    def __init__(
        self,
        records: Iterable[ReportRow],
        course: Iterable[tuple[int, str | None, int]] = (),
        head: Mapping[str, Any] | None = None,
    ) -> None:
        self.records = tuple(records)
        self.course = tuple(course)
        self.head = {**this_process(), **(head or {})}

    @property
    def verdict(self) -> str:
        """One line that begins with what was seen.

        ``deterministic``, ``may vary``, ``not checked`` or ``not finished``.
        """
        return verdict_of(self.records, self.head, gaps_of(self.head), limits_of(self.head))

    def by(self, rank: int) -> Report:
        """Return the report with all rows as a rank's."""
        rows = [replace(record, ranks=[rank]) for record in self.records]
        return Report(rows, self.course, self.head)

    @property
    def missing(self) -> dict[str, list[int]]:
        """The ranks of a distributed run that have no rows here, by reason."""
        return dict(self.head.get("missing", {}))

    @property
    def unsettled(self) -> list[str]:
        """The changes of settings to which native calls were left, as texts."""
        return list(self.head.get("unsettled", ()))

    @property
    def interface(self) -> Interface:
        """The interface through which the mode was started, in whose words the next step is."""
        return INTERFACES.get(self.head.get("interface", ""), PYTHON)

    @property
    def next_step(self) -> str:
        """The most useful next step after this run, as a command or a line of code."""
        worst = min(
            (record for record in self.records if record.varies),
            key=lambda record: (_NAMES.index(record.action), -record.count),
            default=None,
        )
        if worst is not None:
            remedy = worst.remedy or f"`detmode rules --op {worst.overload}` says why"
            where = shortened(worst.outer_site or worst.site)
            return f"at {where}, {worst.overload}: {remedy}"
        interface = self.interface
        if self.unsettled:
            every = interface.option("intercept", "all")
            return f"leave PyTorch's settings alone inside the block, or use {every}"
        if "failure" in self.head:
            return "mend the error; what the program does after it was not checked"
        if gaps_of(self.head):
            return interface.see_rest
        if has_met(self.records, self.head):
            return self._how_to_prove()
        is_simulated = "simulate" in self.head
        return "run what calls PyTorch's operators: none was" if is_simulated else interface.no_call

    def _how_to_prove(self) -> str:
        # A launcher may start each rank under the command by itself.
        step = (PYTHON if "world_size" in self.head else self.interface).prove
        if not self._fills_at_a_cost or not self.interface.fill:
            return step
        return f"{step}; {self.interface.fill}"

    @property
    def _fills_at_a_cost(self) -> bool:
        """True if PyTorch's flag has filled new memory on a GPU, and not where one is simulated."""
        filled = any(record.fills_memory for record in self.records)
        return filled and "cuda" in self.head.get("devices", ()) and "simulate" not in self.head

    def text(self, *, long: bool = False, width: int | None = None, colour: bool = False) -> str:
        """Return the verdict, the next step, and the rows below their lines, urgent ones first.

        Files are relative to the working directory, or to where packages are installed. The text of
        a line is what its file has now.

        Args:
            long: every row, as a paragraph with all that is known of it. Otherwise rows that only
                fill new memory are one line together.
            width: the columns of the terminal, which no line exceeds. ``None`` is for files and
                pipes: lines as long as they are, and every row.
            colour: the verdict and the actions in colour.
        """
        parts = [self.opening(width=width, colour=colour)]
        page = self.page()
        pairs = list(zip(self.ordered(), page.rows))
        rows = tuple(row for record, row in pairs if long or not record.fills_memory)
        if rows:
            parts.append(text_of(replace(page, rows=rows), long=long, width=width, colour=colour))
        filling = [] if long else [record for record, _ in pairs if record.fills_memory]
        if filling:
            calls = sum(record.count for record in filling)
            lines = len({record.site for record in filling})
            filled = (
                f"+ {plural(calls, 'allocation')} at {plural(lines, 'line')} "
                "(filled by PyTorch; nothing to do)"
            )
            parts.append(wrapped("", filled, width))
        more = filter(None, (self._rechecked, self._unmatched))
        return "\n\n".join([*parts, *(wrapped("", text, width) for text in more)])

    @property
    def _rechecked(self) -> str:
        """A line about the calls that were made twice; empty where none was to be."""
        recheck = self.head.get("recheck")
        if recheck is None:
            return ""
        results = f"{recheck['differing']:,} differed" if recheck["differing"] else "none differed"
        calls = plural(recheck["calls"], "call")
        share = f"{recheck['made_twice']:,} of {calls} made twice"
        return f"{share} (recheck={recheck['rate']}): {results}"

    @property
    def _unmatched(self) -> str:
        """A line about the modules of ``overrides`` in which no listed call was made."""
        paths = ", ".join(map(repr, self.head.get("unmatched", ())))
        return f"overrides: no listed call was made in {paths}" if paths else ""

    def ordered(self) -> list[ReportRow]:
        """Return the records, those that need attention first."""
        return sorted(self.records, key=lambda record: _NAMES.index(record.action))

    def page(self) -> Page:
        """Return the page: a row for each record, those that need attention first."""
        actions = {record.action for record in self.records}
        course = [(module, self.records[row].action, count) for row, module, count in self.course]
        calls = sum(count for *_, count in course)
        total = sum(record.count for record in self.records)
        remarks = (self._rechecked, self._unmatched, *self.absences())
        columns = (*COLUMNS, *(("ranks",) if any(record.ranks for record in self.records) else ()))
        what = "calls" if calls == total else f"calls of {total:,}, those of one rank"
        return Page(
            title="What the mode intercepted",
            verdict=self.verdict,
            severity=self._severity(actions),
            groups=ACTIONS,
            columns=columns,
            rows=tuple(row_of(record, columns) for record in self.ordered()),
            facts=(f"Next: {self.next_step}.", *map("{}.".format, filter(None, remarks))),
            origin=origin_of(self.head),
            timeline=timeline_of(course, calls, _NAMES, what) if course else None,
        )

    def _severity(self, actions: Collection[str]) -> str:
        if ERROR.name in actions or "failure" in self.head:
            return ERROR.level
        return "note" if self.verdict.startswith("deterministic") else WARN.level

    def absences(self) -> list[str]:
        """Return a line for each reason why ranks have no rows here."""
        return [f"{named(ranks)}: {reason}" for reason, ranks in self.missing.items()]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ReportRow]:
        return iter(self.records)

    def where(self, **wanted: object) -> Report:
        """Return a report of some rows, whose verdict is on those alone, and says so.

        ``report.where(action=("warn", "error"), overload="aten::index*")`` has the rows that meet
        both conditions.

        Args:
            wanted: by the name of a field of :class:`ReportRow`, of ``varies`` or of
                ``fills_memory``: the value, a glob of texts, or a tuple, list or set of these.

        Raises:
            TypeError: a row has no such field.
        """
        for name in wanted:
            if name not in _FILTERS:
                raise TypeError(
                    f"where() filters by a field of ReportRow ({', '.join(_FILTERS)}), got {name!r}"
                )
        selected = [
            number
            for number, record in enumerate(self.records)
            if all(_is_wanted(getattr(record, name), value) for name, value in wanted.items())
        ]
        places = {number: place for place, number in enumerate(selected)}
        conditions = " and ".join(f"{name}={value!r}" for name, value in wanted.items())
        if "where" in self.head:
            conditions = f"{self.head['where']} and {conditions}"
        return Report(
            (self.records[number] for number in selected),
            ((places[row], module, count) for row, module, count in self.course if row in places),
            self.head | {"where": conditions} if wanted else self.head,
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a line for each row, and the fields of :class:`ReportRow`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                f"to_pandas() needs pandas ({error}); run pip install pandas"
            ) from error
        return pandas.DataFrame(map(asdict, self.records), columns=list(_FIELDS))

    def to_json(self) -> str:
        """Return JSON: ``version``, ``detmode``, ``torch``, ``command``, ``verdict``, ``rows``.

        There is also ``intercept`` where a mode has intercepted ``"listed"`` operators alone, and
        ``world_size`` and ``missing`` for a distributed run, ``where`` with the conditions of a
        filter, ``recheck`` with what is said of calls made twice, ``devices``, ``not_seen`` and
        ``failure``, as :attr:`head` has them.
        ``rows`` is a list of objects with the fields of :class:`ReportRow`.
        """
        return json.dumps(self._as_dict(), indent=2)

    def _as_dict(self) -> dict[str, Any]:
        rows = [asdict(record) for record in self.records]
        return {"version": VERSION, **self.head, "verdict": self.verdict, "rows": rows}

    @staticmethod
    def from_json(text: str) -> Report:
        """Read the report that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is not such a report, or one of another version.
        """
        whole = read_json(text)
        try:
            return Report(rows_of(whole["rows"]), head=head_of(whole))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("not a report of detmode, as Report.to_json writes it") from error


def _is_wanted(value: object, wanted: object) -> bool:
    """Return whether a row's field is what a filter asks for, or one of these."""
    if value == wanted:
        return True
    if isinstance(wanted, str):
        return isinstance(value, str) and fnmatchcase(value, wanted)
    return isinstance(wanted, Collection) and any(
        _is_wanted(value, alternative) for alternative in wanted
    )


def read_json(text: str) -> dict[str, Any]:
    """Read the JSON object of a report.

    Raises:
        ValueError: the text is not JSON, not a report, or of another version; has the remedy.
    """
    whole = parsed_json(text)
    # Before there was a version, a report was the list of its rows.
    version = whole.get("version") if isinstance(whole, dict) else 1
    if version != VERSION:
        raise ValueError(
            f"not a report of version {VERSION}, which detmode {detmode.__version__} reads: "
            "make it again with this detmode (--report FILE.json, or report.to_json())"
        )
    return dict(whole)


def head_of(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the head of a report's JSON object.

    Raises:
        KeyError, TypeError: a field is missing, or of another type.
    """
    kinds = _HEAD | {name: kind for name, kind in _OPTIONAL.items() if name in whole}
    head = {name: checked(kind, whole[name]) for name, kind in kinds.items()}
    if "recheck" in head and not head["recheck"].keys() >= _RECHECKED:
        raise KeyError("recheck")
    return head


def rows_of(objects: Any) -> list[ReportRow]:
    """Return the rows of a report's JSON object.

    Raises:
        TypeError, ValueError: one is not a row.
    """
    rows: list[ReportRow] = checked(list[ReportRow], objects)
    return rows
