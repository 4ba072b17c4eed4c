"""Copies and pickles of modes, reports and tables: right, or refused in one line."""

import copy
import pickle
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F

import detmode
from detmode import (
    GPU_TO_GPU,
    DeterministicMode,
    Refuse,
    Rule,
    RuleTable,
    Substitute,
    default_rules,
)
from detmode.mode.audit import Audit
from detmode.table.conditions import Condition, argument, on
from detmode.testing.suite import CheckedMode
from tests.shared.programs import in_another_thread

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def again(value):
    return pickle.loads(pickle.dumps(value))


HOWS = pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, again])


@HOWS
@pytest.mark.parametrize("kind", [DeterministicMode, Audit, CheckedMode])
def test_a_copy_of_a_mode_has_its_arguments_and_counts_anew(how, kind):
    """The copy's calls are in its own report, and meet what the original's would."""
    simulated = {} if kind is Audit else {"simulate": "cuda"}
    mode = kind(strict=True, substitute=False, overrides={"aten::histc": "allow"}, **simulated)
    mode.name = "mine"

    def run(entered):
        with entered:
            torch.histc(torch.ones(3))
            x = torch.ones(1, 1, 5, 5, 5, requires_grad=True)
            with suppress(RuntimeError):  # PyTorch is silent about it
                F.adaptive_max_pool3d(x, 3).sum().backward()
            torch.ones(3, requires_grad=True).cumsum(0).sum().backward()
        return [(row.overload, row.action, row.count) for row in entered.records]

    expected = run(mode)
    copied = how(mode)
    assert "error" in {action for _, action, _ in expected}
    assert type(copied) is kind
    assert copied.name == "mine"
    assert copied.records == ()
    assert run(copied) == expected != []
    assert [(row.overload, row.action, row.count) for row in mode.records] == expected
    assert copied.report().page().rows == mode.report().page().rows


@HOWS
def test_an_entered_mode_is_not_copied(mode, how):
    """In whatever thread it is entered; afterwards it is copied, and has lost nothing."""
    made, refused = mode(), []

    def attempt():
        with pytest.raises(TypeError, match="inside its block; do it before or after") as caught:
            how(made)
        refused.append(str(caught.value))

    with made:
        attempt()
        in_another_thread(attempt)
        torch.ones(3).cumsum(0)
        with made:  # entered again
            torch.ones(3).cumsum(0)
    assert len(refused) == 2
    assert "\n" not in refused[0]
    assert len(made.records) == 2
    if how is not again:  # the table of these tests is made of local functions
        assert how(made).records == ()


@HOWS
def test_a_copy_of_a_report_is_equal(mode, how):
    """Rows, costs and pages are the same; a row of the copy is another object."""
    with mode() as made:
        torch.ones(3).cumsum(0)
    audited = detmode.audit(lambda: torch.ones(3).cumsum(0))
    for report in (made.report(), audited):
        copied = how(report)
        assert copied.records == report.records != ()
        assert str(copied) == str(report)
        assert copied.to_html() == report.to_html()
    (row,) = made.report().records
    assert how(row) == row
    assert how(row) is not row


@HOWS
def test_a_copy_of_a_table_is_equal(how):
    """All rows of the default table can be pickled, with their conditions and functions."""
    table = default_rules() + [
        Rule(op="aten::neg", when=on("cuda") & argument("n", 1), action=Refuse(), because="why not")
    ]
    copied = how(table)
    assert [(row.family, row.rule) for row in copied] == [(row.family, row.rule) for row in table]
    put = torch.ops.aten.put.default
    assert [row.rule for row in copied.get(put)] == [row.rule for row in table.get(put)] != []


def test_a_pickled_condition_keeps_what_it_requires():
    """A condition of the user's own comes back with its arguments, dtypes and devices."""
    own = Condition("mine", bool, ("self",), (torch.float32,), ("cuda",))
    assert vars(again(own)) == vars(own)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"when": Condition("mine", lambda call: True)}, "the condition mine"),
        ({"action": Substitute(lambda self: self), "guarantee": GPU_TO_GPU}, "Substitute"),
    ],
)
def test_a_function_without_a_name_is_not_pickled(changes, words):
    """A lambda is refused in a line that says what to do; a copy needs no name."""
    fields = {"op": "aten::neg", "action": Refuse(), "because": "why not", **changes}
    mode = DeterministicMode(rules=RuleTable([Rule(**fields)]))
    with pytest.raises(pickle.PicklingError, match="define the function at the top") as caught:
        pickle.dumps(mode)
    assert str(caught.value).startswith(f"{words} cannot be pickled: {__name__}.<lambda>")
    assert copy.deepcopy(mode).table is mode.table
