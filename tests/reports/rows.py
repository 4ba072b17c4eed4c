"""Rows of reports."""

from dataclasses import replace
from pathlib import Path

from detmode import ReportRow
from detmode.runs.probe_report import ProbeRow


def record(action: str, **changes: object) -> ReportRow:
    fields = {"overload": f"aten::{action}.default", "family": "scatter", "action": action}
    fields |= {"guarantee": None, "alert": "put_", "count": 2}
    fields |= {"site": f"{Path.cwd()}/train.py:7", "module": "Net.body"}
    return ReportRow(**{**fields, **changes})


def probed(**changes: object) -> ProbeRow:
    row = ProbeRow(
        *("mine::sum.default", 4, 2, ("schedule",), ("output 0",), 3, 0.5),
        *(f"{Path.cwd()}/train.py:9", None, None, None),
    )
    return replace(row, **changes)
