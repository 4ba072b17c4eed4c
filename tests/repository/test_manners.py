"""Python's manners: reports are collections, objects say what they are, completion helps."""

import builtins
import inspect
import re
import types

import pytest
import torch

import detmode
from detmode import DeterministicMode, Report, ReportRow, RuleTable
from detmode.runs.ranks_comparison import RunComparison
from detmode.testing import assert_reproducible
from detmode.testing.suite import CheckedMode


def row(overload, action, guarantee, count, site, module=None):
    return ReportRow(overload, "index", action, guarantee, None, count, site, module)


ROWS = (
    row("aten::index_add.default", "substitute", "gpu_to_gpu", 3, "a[1].py:7", "Net.head"),
    row("aten::histc.default", "warn", None, 2, "b.py:1"),
    row("aten::index_put.default", "error", None, 1, "b.py:9", "Net.body.0"),
)
REPORT = Report(
    ROWS, [(0, "Net.head", 1), (2, "Net.body.0", 1), (1, None, 1), (2, "Net.body.0", 1)]
)


def step():
    x = torch.rand(3, requires_grad=True)
    x.index_add(0, torch.tensor([1, 1]), torch.rand(2)).sum().backward()
    return x.grad


def test_a_report_is_a_collection():
    """It iterates over its rows in order, and has as many as it says."""
    assert list(REPORT) == [*ROWS]
    assert len(REPORT) == 3
    assert ROWS[1] in REPORT


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({"action": "warn"}, [1]),
        ({"action": ("warn", "error")}, [1, 2]),
        ({"varies": False}, [0]),
        ({"overload": "aten::index_*"}, [0, 2]),
        ({"overload": ["*histc*", "aten::index_put.default"], "count": 1}, [2]),
        ({"module": None}, [1]),
        ({"guarantee": {None}}, [1, 2]),
        # A text that is a glob as well.
        ({"site": "a[1].py:7"}, [0]),
        ({"module": "Other.*"}, []),
    ],
)
def test_filters(wanted, kept):
    """A filter keeps the rows that meet all conditions: values, globs, or one of several."""
    assert list(REPORT.where(**wanted)) == [ROWS[number] for number in kept]


def test_a_filtered_report_says_so():
    """Nobody reads its verdict, which is on its rows alone, for that of all; JSON keeps that.

    Its timeline has the calls of its rows.
    """
    some = REPORT.where(varies=True).where(action="error")
    note = " (of the rows where varies=True and action='error' alone)"
    assert some.verdict == f"may vary: 1 call at 1 line{note}"
    assert some.course == ((0, "Net.body.0", 1), (0, "Net.body.0", 1))
    assert Report.from_json(some.to_json()).verdict == some.verdict
    assert REPORT.where().verdict == "may vary: 3 calls at 2 lines"
    with pytest.raises(TypeError, match=r"where\(\) filters by a field of ReportRow .*got 'acton'"):
        REPORT.where(acton="warn")


def test_to_pandas():
    """A line for each row, with the fields of a row as columns; an empty report has columns too."""
    pytest.importorskip("pandas", reason="pandas is optional")
    frame = REPORT.to_pandas()
    assert [*frame.columns] == [*inspect.signature(ReportRow).parameters]
    assert frame.groupby("action")["count"].sum().to_dict() == {
        "error": 1,
        "substitute": 3,
        "warn": 2,
    }
    assert [*Report([]).to_pandas().columns] == [*frame.columns]


def test_without_pandas(monkeypatch):
    """One error says what is missing, and what to do."""
    found = builtins.__import__

    def refuse(name, *rest, **options):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return found(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"needs pandas \(No module .*\); run pip install pandas"):
        REPORT.to_pandas()


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (REPORT, "<Report: may vary: 3 calls at 2 lines>"),
        (detmode.audit(step), "<AuditReport: deterministic on one GPU model .*>"),
        (detmode.probe(torch.sum, torch.ones(2)), "<ProbeReport: No probed call differed.*>"),
        (lambda: DeterministicMode(), r"DeterministicMode\(\)"),
        (
            lambda: DeterministicMode(
                warn_only=True, overrides={"aten::histc": "allow"}, simulate="cuda"
            ),
            r"DeterministicMode\(warn_only=True, overrides={'aten::histc': 'allow'}, "
            r"simulate='cuda'\)",
        ),
        (DeterministicMode(rules=RuleTable()), r"DeterministicMode\(rules=<RuleTable: 0 rows.*>\)"),
        (lambda: CheckedMode(2, strict=True), r"CheckedMode\(strict=True\)"),
        (detmode.default_rules(), r"<RuleTable: \d+ rows of \d+ operators>"),
        (detmode.allow("aten::histc", torch.ops.aten.sin), r"allow\('aten::histc', 'aten::sin'\)"),
        (detmode.conditions.on("cuda"), r"on\('cuda'\)"),
        (ROWS[0], r"ReportRow\(overload='aten::index_add.default', .*"),
        (detmode.Native(), r"Native\(\)"),
        (detmode.RUN_TO_RUN, r"<Guarantee.RUN_TO_RUN: .*"),
        (detmode.doctor.findings()[0], r"Finding\(subject=.*"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_say_what_they_are(thing, text):
    """The repr is what matters about an object, and no address."""
    if isinstance(thing, types.FunctionType):
        thing = thing()  # made here: the default table may be made anew meanwhile
    assert re.fullmatch(text, repr(thing), re.DOTALL), repr(thing)


def test_recordings_and_comparisons_say_what_they_are(tmp_path):
    """A recording says how much it has recorded and where; a comparison, of any level, its result.

    None lists all that it holds, which may be thousands of lines.
    """
    for level, extent in (("call", "2 calls"), ("step", "1 step")):
        for name, value in (("first", 1.0), ("second", 2.0)):
            path = tmp_path / level / name
            path.parent.mkdir(exist_ok=True)
            recording = detmode.record(path, level=level)
            assert repr(recording) == f"<record: 0 {level}s to {path}>"
            given = torch.full((2,), value)
            parameter = torch.nn.Parameter(given)
            with recording:
                if level == "call":
                    given.neg().neg()
                else:
                    parameter.grad = torch.ones(2)
                    torch.optim.SGD([parameter]).step()
            assert repr(recording) == f"<record: {extent} to {path}>"
        compared = detmode.diff(*(tmp_path / level / name for name in ("first", "second")))
        kind = type(compared).__name__
        assert re.fullmatch(rf"<{kind}: The runs d.*\.>", repr(compared))
        assert str(compared).startswith(f"{compared.verdict}\nnext: {compared.next_step}\n")
    assert repr(RunComparison(None, None, None, 1, 0, 0, 0, ())).startswith("<RunComparison: The")


def test_completion_shows_public_names():
    """`dir()` of a module has its `__all__` and no import; that of a mode what users call."""
    for module in (detmode, detmode.cuda, detmode.conditions, detmode.doctor, detmode.rules):
        assert dir(module) == sorted(module.__all__), module.__name__
        for name in module.__all__:
            assert hasattr(module, name)
    shown = {name for name in dir(DeterministicMode()) if name[0] != "_"}
    assert shown == {"records", "report"}
    assert {name for name in dir(CheckedMode()) if name[0] != "_"} == shown | {"compare"}
    assert set(dir(detmode.testing)) == {
        "VARIED",
        "assert_order_independent",
        "assert_reproducible",
    }


@pytest.mark.parametrize("calling", [detmode.audit, detmode.probe, assert_reproducible])
def test_a_function_that_is_called_may_have_any_keyword(calling):
    """Even ``fn``, which is the name of the function itself."""
    received = []
    calling(lambda *, fn: received.append(fn), fn=3)
    assert set(received) == {3}
