"""The report of several processes, such as ranks: their rows together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow


def merged(records: Iterable[ReportRow]) -> list[ReportRow]:
    """Merge the rows of several modes: one row for each overload, action and site."""
    rows: dict[tuple[str, str, str], ReportRow] = {}
    for record in records:
        first = rows.get(record.line)
        if first is not None:
            record = replace(
                first,
                count=first.count + record.count,
                modules=Counter(first.modules) + Counter(record.modules),
                ranks=sorted({*first.ranks, *record.ranks}),
            )
        rows[record.line] = record
    return list(rows.values())


def of_ranks(
    local: Report, others: Iterable[Report], world_size: int, missing: Mapping[str, list[int]]
) -> Report:
    """Return the one report of several ranks.

    Args:
        local: the report of the process that gives it; the timeline shows its calls.
        others: the reports of the others, of which a rank may have several.
        world_size: the number of ranks.
        missing: for each reason why ranks have no report, these ranks.
    """
    rows = merged(row for report in (local, *others) for row in report.records)
    places = {row.line: place for place, row in enumerate(rows)}
    course = [
        (places[local.records[row].line], module, count) for row, module, count in local.course
    ]
    head = united([report.head for report in (local, *others)])
    head |= {"world_size": world_size, "missing": dict(missing)}
    rechecks = [report.head["recheck"] for report in (local, *others) if "recheck" in report.head]
    if rechecks:
        counts = rechecks[0].keys() - {"rate"}
        head["recheck"] = rechecks[0] | {n: sum(counted[n] for counted in rechecks) for n in counts}
    return Report(rows, course, head)


def united(heads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the head of a report of several processes: what each has met, and has not seen.

    What is unmatched in one may be matched in another. The other fields are those of the first head
    that has them.
    """
    whole = {name: value for head in reversed(heads) for name, value in head.items()}
    for name in whole.keys() & {"devices", "not_seen", "unsettled"}:
        texts = [text for head in heads for text in head.get(name, ())]
        whole[name] = list(dict.fromkeys(texts))
    if any("intercept" in head and "counts_native" not in head for head in heads):
        whole.pop("counts_native", None)
    unmatched = [set(head.get("unmatched", ())) for head in heads]
    if nowhere := sorted(set.intersection(*unmatched)):
        return whole | {"unmatched": nowhere}
    whole.pop("unmatched", None)
    return whole
