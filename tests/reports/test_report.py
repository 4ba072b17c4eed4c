"""Records, the report's table, and JSON."""

import json
import sys
from dataclasses import replace

import pytest
import torch

import detmode
from detmode import Report, ReportRow
from detmode.mode.audit import AuditReport
from tests.shared.programs import cumsum, index_add

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ROW = ReportRow(
    overload="aten::put_.default",
    family="put",
    action="warn",
    guarantee=None,
    alert="put_",
    count=3,
    site="train.py:7",
    module="Net.head",
)


DETERMINISTIC = "deterministic on this GPU model with this software: every call met is covered"
RUN_TO_RUN = {"action": "native", "guarantee": "run_to_run"}


@pytest.mark.parametrize(
    ("changes", "verdict", "step"),
    [
        (
            [{}, {"count": 1, "site": "x.py:1"}],
            "may vary: 4 calls at 2 lines",
            "train.py:7, aten::put",
        ),
        ([{}, {"action": "error", "count": 1}], "may vary: 4 calls at 1 line", "a remedy of 1"),
        (
            [{"action": "allow"}, {"outer_site": "own.py:2", "count": 9}],
            "may vary: 12 ",
            "at own.py:2",
        ),
        # PyTorch's own path by an override, of an operator for which nobody promises anything.
        ([{"action": "native"}], "may vary: 3 calls at 1 line", "a remedy of 3"),
        ([RUN_TO_RUN], f"{DETERMINISTIC}", "detmode record"),
        (
            [{"guarantee": "gpu_to_gpu"}, {**RUN_TO_RUN, "family": "uninitialized_memory"}],
            DETERMINISTIC,
            "detmode record",
        ),
        ([], "not checked: no call ran on a GPU", "detmode audit"),
    ],
)
def test_the_verdict(changes, verdict, step):
    """One line says what was seen; the step is that of the worst row with most calls."""
    rows = [replace(ROW, modules={}, **each) for each in changes]
    report = Report(replace(row, remedy=f"a remedy of {row.count}") for row in rows)
    assert report.verdict.startswith(verdict)
    assert step in report.next_step
    assert str(report).startswith(f"{report.verdict}\nnext: {report.next_step}")


@pytest.mark.parametrize(
    ("rows", "head", "verdict", "severity"),
    [
        ([RUN_TO_RUN], {"devices": []}, "not checked: no call ran on a GPU", "warning"),
        ([], {"devices": ["cuda"]}, DETERMINISTIC, "note"),
        (
            [RUN_TO_RUN],
            {"not_seen": ["2 calls of other threads"]},
            "not checked: 2 calls of other threads",
            "warning",
        ),
        ([RUN_TO_RUN], {"missing": {"it died": [1]}}, "not checked: rank 1", "warning"),
        (
            [{}],
            {"not_seen": ["2 calls of other threads"], "missing": {"it died": [1]}},
            "may vary: 3 calls at 1 line (without rank 1; without 2 calls of other threads)",
            "warning",
        ),
        (
            [],
            {"failure": "OSError at a.py:1", "devices": []},
            "not finished: OSError at a.py:1; until then: not checked: no call ran on a GPU",
            "error",
        ),
        (
            [RUN_TO_RUN],
            {"failure": "exit code 3"},
            f"not finished: exit code 3; until then: {DETERMINISTIC}",
            "error",
        ),
        (
            [RUN_TO_RUN],
            {"simulate": "cuda"},
            f"{DETERMINISTIC} (CUDA simulated)",
            "note",
        ),
    ],
)
def test_a_verdict_says_no_more_than_was_seen(rows, head, verdict, severity):
    """Its first word is `deterministic` only if every call was met; JSON keeps what it is from."""
    report = Report([replace(ROW, modules={}, **changes) for changes in rows], head=head)
    assert (report.verdict, report.page().severity) == (verdict, severity)
    assert Report.from_json(report.to_json()).verdict == verdict


@pytest.mark.parametrize(
    ("head", "is_named"),
    [
        ({"devices": ["cuda"], "interface": "command"}, True),
        ({"devices": ["cuda"]}, True),
        ({"devices": ["cuda"], "simulate": "cuda"}, False),
        ({"devices": ["cuda"], "interface": "pytest"}, False),
    ],
    ids=["command", "python", "simulated", "pytest"],
)
def test_the_step_where_filling_costs(head, is_named):
    """On a GPU the step names the recording that tells whether new memory must be filled."""
    row = replace(ROW, modules={}, **RUN_TO_RUN, family="uninitialized_memory")
    step = Report([row], head=head).next_step
    assert step.startswith("to prove it, ")
    assert ("`detmode record` says whether anything reads it" in step) == is_named


LINES = ["train.py:7", "    3  warn                    Tensor.put_  aten::put_.default  Net.head"]


def test_the_text(monkeypatch):
    """Rows stand below their line of code, no wider than the terminal; what fills memory is one."""
    filled = replace(ROW, **RUN_TO_RUN, family="uninitialized_memory")
    library = "/env/lib/python3.13/site-packages/lib/conv.py:3"
    long = replace(ROW, site=library, outer_site="train.py:9", because="it races", ranks=[0, 2])
    report = Report([ROW, filled, replace(filled, site="x.py:2", count=1000)])
    for columns in (None, 80, 120):
        lines = report.text(width=columns).splitlines()
        assert lines[lines.index(LINES[0]) + 1] == LINES[1]
    for columns in (60, 119):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = str(report).splitlines()
        assert max(map(len, lines)) <= columns
        last = " ".join(str(report).split("\n\n")[-1].split())
        assert last == "+ 1,003 allocations at 2 lines (filled by PyTorch; nothing to do)"
    assert "  family     uninitialized_memory" in report.text(long=True)
    told = Report([long]).text(long=True, width=80).partition("\n\n")[2].splitlines()
    assert told[0] == "train.py:9"
    assert {
        "  overload    aten::put_.default",
        "  site        lib/conv.py:3",
        "  outer_site  train.py:9",
        "  because     it races",
        "  ranks       0, 2",
    } <= set(told)


def test_a_screen_of_rows():
    """A terminal gets the first rows and a count; a file, and who asks for all, get every row."""
    rows = [replace(ROW, site=f"train.py:{line}") for line in range(1, 21)]
    report = Report([*rows, replace(ROW, action="error", site="train.py:99")])
    shown = report.text(width=80)
    assert shown.index("train.py:99") < shown.index("train.py:1\n")
    assert "train.py:12\n" not in shown
    assert shown.endswith("+ 9 rows (--all, or long=True, shows them)")
    for text in (report.text(), report.text(long=True, width=80)):
        assert all(f"{row.site}\n" in text for row in rows)


def test_json_round_trip(mode):
    """``from_json`` gives back what ``to_json`` wrote: an object that says what made it."""
    with mode() as made:
        cumsum()
        index_add()
    report = Report([*made.records, ROW])
    again = Report.from_json(report.to_json())
    assert again.records == report.records
    assert str(again) == str(report)
    whole = json.loads(report.to_json())
    other = {**whole, "detmode": "0.2", "torch": "2.0", "command": ["python", "x.py"]}
    assert json.loads(Report.from_json(json.dumps(other)).to_json()) == other
    (*_, last) = whole.pop("rows")
    assert whole == {
        "version": 3,
        "detmode": detmode.__version__,
        "torch": torch.__version__,
        "command": sys.orig_argv,
        "verdict": "may vary: 3 calls at 1 line",
    }
    assert last == {
        "overload": "aten::put_.default",
        "family": "put",
        "action": "warn",
        "guarantee": None,
        "alert": "put_",
        "count": 3,
        "site": "train.py:7",
        "module": "Net.head",
        "modules": {"Net.head": 3},
        "because": None,
        "remedy": None,
        "outer_site": None,
        "ranks": [],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property"),
        ("3", "make it again with this detmode"),
        ("[]", "make it again with this detmode"),
        ('{"version": 2}', "not a report of version 3"),
        ('{"version": 3}', "not a report of detmode"),
        ('{"version": 3, "detmode": "", "torch": "", "command": [], "rows": [{}]}', "not a report"),
    ],
)
@pytest.mark.parametrize("kind", [Report, AuditReport])
def test_json_that_is_no_report(kind, text, message):
    """Anything else is a ValueError that says what was expected, or what to do."""
    with pytest.raises(ValueError, match=f"{message}|not a report of an audit"):
        kind.from_json(text)


def test_a_guarantee_is_an_enum_that_stays_its_text():
    """A row has it after a run and from JSON; it equals, hashes, prints and filters as text."""
    with detmode.DeterministicMode(simulate="cuda") as mode:
        index_add()
    report = mode.report()
    for row in (report.records[0], Report.from_json(report.to_json()).records[0]):
        assert row.guarantee is detmode.GPU_TO_GPU
        assert {row.guarantee} == {"gpu_to_gpu"}
        assert f"{row.guarantee}" == str(row.guarantee) == "gpu_to_gpu"
    assert '"guarantee": "gpu_to_gpu"' in report.to_json()
    assert len(report.where(guarantee="gpu_*")) == 1


@pytest.mark.parametrize(("field", "value"), [("action", "permit"), ("guarantee", "always")])
def test_a_row_of_a_file_has_an_action_and_a_guarantee_that_there_are(field, value):
    """JSON with another word is no report; the row as it was is one."""
    whole = json.loads(Report([ROW]).to_json())
    whole["rows"][0][field] = value
    with pytest.raises(ValueError, match="not a report of detmode"):
        Report.from_json(json.dumps(whole))
    whole["rows"][0] |= {"action": "warn", "guarantee": "run_to_run"}
    assert Report.from_json(json.dumps(whole)).records[0].guarantee is detmode.RUN_TO_RUN
