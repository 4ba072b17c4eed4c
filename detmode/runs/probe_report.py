"""The report of a probe: the operators whose repeats differed, as a table or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from detmode.reports.by_line import Entry, by_line
from detmode.reports.modules import agreed
from detmode.reports.origin import origin_of, this_process
from detmode.reports.page import Group, Page, TableRow, plural
from detmode.reports.shown import Shown
from detmode.reports.terminal import wrapped
from detmode.reports.written_as import written_as
from detmode.sites.source_lines import source_of

REASONS = {
    "views": "return no data of their own",
    "allocations": "return uninitialized memory",
    "collectives": "need other processes",
    "memory": "tell of memory itself, and a copy lies elsewhere",
    "no outputs": "return nothing to compare",
    "no data": "their tensors are meta or fake tensors",
    "higher-order operators": "run below a mode, where their calls are not seen",
    "compiled graphs": "are not repeated as a whole; the operators called in them are",
    "objects": "take an object that has state",
    "skipped": "were excluded by skip",
    "raised": "raised in the program itself",
    "CUDA graph": "were captured",
    "unknown generator": "are random on a device whose generator is not known",
    "not copied": "an argument could not be copied",
    "not repeated": "a repeat raised",
}
"""The reasons why a call is not probed."""

UNKNOWN = Group("in no rule", "error", "the table has no rule for the operator")
KNOWN = Group("known", "warning", "the table has a rule for the call; detmode run follows it")
GROUPS = (UNKNOWN, KNOWN)
"""The groups of rows: operators without a rule, and those with one."""

_COLUMNS = (
    *("varied", "overload", "under", "differing", "elements", "largest"),
    *("rule", "site", "module"),
)
_SHOWN = ("varied", "under", "differing", "elements", "largest", "rule", "module")


@dataclass
class ProbeRow:
    """The calls of one overload at one site whose repeats differed.

    Args:
        overload: ``"aten::index_add_.default"``.
        count: the number of its calls at the site that were probed.
        varied: the number of those that differed from a repeat.
        conditions: those under which they differed: "again" (nothing was changed), "contention"
            (another CUDA stream was busy), "schedule" (the host runner ran blocks and threads in a
            different order), "threads" (PyTorch used a different number of CPU threads).
        differing: the tensors that differ: "output 0", "mutated self", "mutated params[2]".
        elements: the largest number of elements of one tensor that differ.
        largest: the largest absolute difference; ``None`` if it is undefined: NaN, infinity,
            different shapes.
        site: "file:line" of the user's code; for a backward operator, of the forward call.
        module: the ``nn.Module`` path of the calls that differed, or ``None``; for several paths, a
            pattern in which ``*`` stands for one name.
        family: the family of the table's row for the call, or ``None`` if there is no row.
        action: the action of that row: "substitute", "native", "refuse" or "allow".
        modules: the number of calls that differed, by path; calls outside modules are not counted.
    """

    overload: str
    count: int
    varied: int
    conditions: tuple[str, ...]
    differing: tuple[str, ...]
    elements: int
    largest: float | None
    site: str
    module: str | None
    family: str | None
    action: str | None
    modules: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.module, self.modules = agreed(self.module, self.modules, self.varied)

    @property
    def follows_threads(self) -> bool:
        """True if the calls differed only where PyTorch used another number of CPU threads."""
        return self.conditions == ("threads",)


@dataclass(frozen=True)
class PassedOver:
    """Calls of one overload that were not probed.

    Args:
        overload: as in :class:`ProbeRow`.
        reason: a name of :data:`REASONS`.
        count: the number of calls.
    """

    overload: str
    reason: str
    count: int


@dataclass(eq=False, repr=False)
class ProbeReport(Shown):
    """The report of a probe.

    >>> report = detmode.probe(torch.cumsum, torch.ones(3), 0, repeats=2)
    >>> report.probed, report.repeats
    (1, 2)

    Attributes:
        rows: the operators that varied, a tuple of :class:`ProbeRow`.
        probed: the number of calls that were repeated and compared.
        passed_over: the calls that were not, a tuple of :class:`PassedOver`.
        repeats: the number of repeats of each call.
        not_probed: the calls of other threads, as a text; ``None`` if there are none.
        failure: the error with which the program ended, or ``None``.
    """

    rows: tuple[ProbeRow, ...]
    probed: int
    passed_over: tuple[PassedOver, ...]
    repeats: int
    not_probed: str | None = None
    failure: str | None = None

    def __post_init__(self) -> None:
        self.rows, self.passed_over = tuple(self.rows), tuple(self.passed_over)

    @property
    def varied(self) -> bool:
        """True if a call differed from its repeats."""
        return bool(self.rows)

    @property
    def verdict(self) -> str:
        """The number of operators that varied, in a sentence."""
        if self.failure is not None:
            return f"not finished: {self.failure}; until then: {self._found()}"
        return self._found()

    def _found(self) -> str:
        if not self.rows and not self.probed:
            return f"not checked: {self.not_probed or 'no call was probed'}"
        if not self.rows:
            rest = f"; not probed: {self.not_probed}" if self.not_probed else ""
            return f"No probed call differed from its repeats{rest}."
        operators = plural(len({row.overload for row in self.rows}), "operator")
        return f"{operators} gave different bytes for the same inputs."

    @property
    def _severity(self) -> str:
        if self.rows or self.failure is not None:
            return "error"
        return "note" if self.probed and self.not_probed is None else "warning"

    @property
    def next_step(self) -> str:
        """The most useful next step after this probe."""
        if not self.rows:
            return "`detmode record` the program twice and `detmode diff` them: the whole run"
        worst = min(self.rows, key=lambda row: (row.follows_threads, row.action is not None))
        if worst.follows_threads:
            return (
                f"keep the number of CPU threads, which the bits of {worst.overload} follow: "
                "torch.set_num_threads(N), or OMP_NUM_THREADS"
            )
        if worst.action is None:
            return f"no rule lists {worst.overload}: replace it, or write a rule for it"
        if worst.action == "allow":
            return f"replace {worst.overload}, and report it: its rule says that it does not vary"
        return f"`detmode explain {worst.overload}` says why; `detmode run` follows its rule"

    def text(self, *, long: bool = False, width: int | None = None, colour: bool = False) -> str:
        """Return what varied, operators without a rule first, and the number of calls probed."""
        page = self.page()
        parts = [self.opening(width=width, colour=colour)]
        if self.rows:
            cells = page.cells(_SHOWN)
            entries = map(_entry, page.rows, cells)
            parts += ["", by_line(entries, width, everything=long), ""]
        parts.append(f"Probed {self.probed} calls, each repeated {self._times()}.")
        if self.passed_over:
            totals = self._passed_over()
            parts[-1] += f" Skipped {sum(totals.values())}:"
            rows = sorted(((count, reason) for reason, count in totals.items()), reverse=True)
            parts += [
                wrapped(f"{count:>5}  ", f"{reason}: {REASONS[reason]}", width)
                for count, reason in rows
            ]
        return "\n".join(parts)

    def page(self) -> Page:
        """Return the page: a row for each operator and site that varied, unknown ones first."""
        ordered = sorted(self.rows, key=lambda row: (row.action is not None, -row.varied))
        facts = [f"{plural(self.probed, 'call')} probed, each repeated {self._times()}."]
        facts += [
            f"{plural(count, 'call')} skipped: {reason} ({REASONS[reason]})."
            for reason, count in sorted(self._passed_over().items())
        ]
        return Page(
            title="Operators that vary",
            verdict=self.verdict,
            severity=self._severity,
            groups=GROUPS,
            columns=_COLUMNS,
            rows=tuple(map(_row, ordered)),
            facts=tuple(facts),
            origin=origin_of(this_process()),
        )

    def _times(self) -> str:
        return "once" if self.repeats == 1 else f"{self.repeats} times"

    def _passed_over(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for passed in self.passed_over:
            totals[passed.reason] += passed.count
        return totals

    def to_json(self) -> str:
        """Return a JSON object with ``rows``, ``probed``, ``passed_over`` and ``repeats``."""
        return json.dumps(asdict(self), indent=2)


def _entry(row: TableRow, cells: Sequence[str]) -> Entry:
    varied, under, differing, elements, largest, rule, module = cells
    more = f"differs {under}: {differing}, {elements} elements, largest difference {largest}"
    return Entry(row, f"{varied} calls  ", (module, more, rule))


def _row(row: ProbeRow) -> TableRow:
    outside = (None,) if sum(row.modules.values()) < row.varied else ()
    rule = "in no rule" if row.family is None else f"{row.family}: {row.action}"
    largest = "-" if row.largest is None else f"{row.largest:.3g}"
    differing, under = ", ".join(row.differing), ", ".join(row.conditions)
    cells = (f"{row.varied} of {row.count}", row.overload, under, differing, str(row.elements))
    return TableRow(
        cells=(*cells, largest, rule, row.site, row.module or ""),
        group=UNKNOWN.name if row.family is None else KNOWN.name,
        rule=row.overload,
        message=f"{row.overload}: {row.varied} of {plural(row.count, 'call')} differed from their "
        f"repeats in {differing}.",
        site=row.site,
        modules=(*row.modules, *outside),
        source=(source := source_of(row.site)),
        called=written_as(row.overload, source),
    )
