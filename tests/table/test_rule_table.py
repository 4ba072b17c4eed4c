"""The table: which rows an overload gets, chains, versions, and ``+``."""

import operator

import pytest
import torch

from detmode import (
    RUN_TO_RUN,
    Allow,
    DeterministicMode,
    Native,
    Refuse,
    Rule,
    RuleTable,
    Substitute,
)
from detmode.table.chain import RowFields, chain
from detmode.table.conditions import ALWAYS, INTEGRAL, argument, dtype_in, on
from tests.shared.programs import rule

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

aten = torch.ops.aten


def refuse(op, when=ALWAYS, **fields):
    return rule(op, **{"when": when, "action": Refuse(), "because": "it races", **fields})


def test_chain_is_its_rows():
    """A chain is its rows, with the fields that they share, and a last one without condition."""
    ops = ("aten::put", "aten::median.dim")
    rows = chain(
        ops,
        RowFields(when=on("cuda")),
        RowFields(when=on("mps"), since="2.15", alert=None),
        action=Refuse(),
        alert="its name",
        because="it races",
        otherwise="the CPU goes in order",
    )
    assert rows == tuple(
        rule
        for op in ops
        for rule in (
            refuse(op, on("cuda"), alert="its name"),
            refuse(op, on("mps"), since="2.15"),
            Rule(op=op, action=Allow(), because="the CPU goes in order"),
        )
    )
    native = RowFields(action=Native(), guarantee=RUN_TO_RUN, because="one thread")
    one = chain("aten::put", when=on("cuda"), action=Refuse(), because="it races", otherwise=native)
    assert one == (refuse("aten::put", on("cuda")), Rule(op="aten::put", **native))


def alerts(table, func):
    return [row.rule.alert for row in table.get(func)]


@pytest.mark.parametrize(
    ("op", "met", "unmet"),
    [
        ("put", "put.default put_.default put.out", "take.default"),
        ("put.default", "put.default put_.default put.out", ""),
        (
            "scatter_reduce.two",
            "scatter_reduce.two scatter_reduce_.two scatter_reduce.two_out",
            "scatter.reduce",
        ),
        (
            "scatter.reduce",
            "scatter.reduce scatter_.reduce scatter.reduce_out",
            "scatter.src scatter_.src scatter.value_reduce scatter.value_out",
        ),
        ("median.dim", "median.dim median.dim_values", "median.default"),
        (
            "upsample_bilinear2d_backward",
            "upsample_bilinear2d_backward.default upsample_bilinear2d_backward.grad_input",
            "upsample_bilinear2d.default",
        ),
        ("nll_loss2d_forward", "nll_loss2d_forward.default nll_loss2d_forward.output", ""),
        ("cumsum", "cumsum.default cumsum_.default cumsum.out", "cumprod.default"),
    ],
)
def test_variants_are_derived(op, met, unmet):
    """A row names the functional overload; its in-place and out variants follow, no others do."""
    table = RuleTable([refuse(f"aten::{op}")])
    for expected, names in ((1, met), (0, unmet)):
        for name in names.split():
            assert len(table.get(operator.attrgetter(name)(aten))) == expected, name


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("aten::indx_add", "'aten::indx_add'; did you mean 'aten::index_add'"),
        ("prims::sinn", "'prims::sinn'; did you mean 'prims::sin'"),
        ("aten::put.defualt", "'aten::put' has no overload 'defualt'; it has default, out"),
        ("aten::scatter", "'aten::scatter' has no overload 'default'; it has value, src"),
    ],
)
def test_a_name_that_no_library_has(op, text):
    """A row of the user's that no call could ever meet is refused, with what is near."""
    with pytest.raises(ValueError, match=text):
        RuleTable([refuse(op)])
    with pytest.raises(ValueError, match=text):
        RuleTable() + [refuse(op)]


def test_rows_of_other_versions_are_not_met():
    """The mode meets only rows that hold for the running PyTorch.

    They are resolved late: a table may name operators of other versions and extensions.
    """
    others = [refuse("aten::put", until="1.0"), refuse("aten::take", since="99.0")]
    unknown = [refuse("aten::of_the_future", since="99.0"), refuse("nowhere::op.overload")]
    table = RuleTable(others + unknown)
    assert len(table) == 4
    assert table.get(aten.put.default) == ()
    with DeterministicMode(rules=table) as mode:
        torch.zeros(3).take(torch.tensor([0]))
    assert mode.records == ()


def test_the_first_row_whose_condition_holds():
    """The rows of an operator are a chain in order; a call meets one of them."""
    table = RuleTable(
        [
            refuse("aten::cumsum", dtype_in("self", INTEGRAL), action=Allow()),
            refuse("aten::cumsum", argument("dim", 1), alert="one"),
            refuse("aten::cumsum", alert="rest"),
        ]
    )
    with DeterministicMode(rules=table) as mode:
        torch.ones(2, 2, dtype=torch.int64).cumsum(1)
        with pytest.raises(RuntimeError, match=r"^one does not"):
            torch.ones(2, 2).cumsum(1)
        with pytest.raises(RuntimeError, match=r"^rest does not"):
            torch.ones(2, 2).cumsum(0)
    assert [record.alert for record in mode.records] == ["one", "rest"]


def test_arguments_are_bound_by_name():
    """Conditions see defaults and keyword arguments under the schema's names."""
    seen = {}
    when = on("cpu")
    spy = type(when)("spy", lambda call: seen.update(call.arguments) or False)
    with DeterministicMode(rules=RuleTable([refuse("aten::put", spy)])):
        torch.use_deterministic_algorithms(False)
        torch.zeros(3).put(torch.tensor([0]), source=torch.ones(1))
    assert list(seen) == ["self", "index", "source", "accumulate"]
    assert seen["accumulate"] is False


def test_duplicates_are_refused_with_both_places():
    """Two rows of one table that are met by the same calls: the error names both."""
    first = refuse("aten::put", on("cuda"), because="the first reason")
    second = refuse("aten::put.default", on("cuda"), because="the second reason")
    with pytest.raises(ValueError, match=r"the first reason.*the second reason"):
        RuleTable([first, second])
    assert len(RuleTable([first, refuse("aten::put", on("cpu"))])) == 2
    assert (
        len(RuleTable([refuse("aten::put", until="2.9"), refuse("aten::put", since="2.10")])) == 2
    )


def test_two_families_may_not_share_an_operator():
    """The union of tables refuses an operator with rows in two families, and names both."""
    one = RuleTable([refuse("aten::put")], family="left")
    two = RuleTable([refuse("aten::put.default", on("cuda"))], family="right")
    with pytest.raises(ValueError, match="rows in two families, left and right"):
        RuleTable.union([one, two])
    union = RuleTable.union([one, RuleTable([refuse("aten::take")], family="right")])
    assert [row.family for row in union] == ["left", "right"]


def test_plus_is_a_new_table_tried_first():
    """``table + rules`` leaves the table as it is; the added rows come first in the chain."""
    table = RuleTable([refuse("aten::put", alert="ours")], family="ours")
    more = table + [refuse("aten::put", on("cpu"), alert="theirs")]
    assert alerts(table, aten.put_.default) == ["ours"]
    assert alerts(more, aten.put_.default) == ["theirs", "ours"]
    assert [row.family for row in more] == ["user", "ours"]


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("aten::put", {}, ["theirs"]),
        ("aten::put.default", {}, ["theirs"]),
        ("aten::put", {"since": "99.0"}, ["ours"]),
    ],
)
def test_plus_replaces_a_row_with_the_same_condition(op, fields, expected):
    """A row with the same operator and condition stands for the old one in its versions alone."""
    table = RuleTable([refuse("aten::put", alert="ours")])
    assert alerts(table + [refuse(op, alert="theirs", **fields)], aten.put.default) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.8", ["old"]), ("2.9", ["old"]), ("2.10", ["new"]), ("2.13", ["new", "late"])],
)
def test_for_version(version, expected):
    """``since`` and ``until`` are inclusive and compared as numbers: 2.9 comes before 2.10."""
    table = RuleTable(
        [
            refuse("aten::put", alert="old", until="2.9"),
            refuse("aten::put", alert="new", since="2.10"),
            refuse("aten::take", alert="late", since="2.13"),
        ]
    )
    assert [row.rule.alert for row in table.for_version(version)] == expected


def test_for_version_refuses_what_is_no_version():
    """A version that is none is a ValueError that shows one."""
    with pytest.raises(ValueError, match=r"give it as '2\.13'"):
        RuleTable().for_version("newest")


def test_rules_print_their_fields():
    """As text a row has every field by name, for tables and JSON."""
    action = Substitute(len)
    row = rule("aten::put", action, when=on("cuda"), alert=("a", "b"), since="2.8")
    assert row.as_text() == {
        "op": "aten::put",
        "when": "on('cuda')",
        "action": "Substitute",
        "guarantee": "gpu_to_gpu",
        "alert": "a, b",
        "since": "2.8",
        "until": None,
        "because": "a test",
        "certificate": None,
    }
    assert [row.alert_for(variant) for variant in ("functional", "inplace", "out")] == [*"aab"]


@pytest.mark.parametrize(
    ("action", "alert", "without_substitute"),
    [
        (Substitute(len), "a", Refuse()),
        (Substitute(len), None, Native()),
        (Substitute(len, otherwise=Native()), "a", Native()),
        (Native(), None, Native()),
        (Allow(), None, Allow()),
    ],
)
def test_what_pytorch_itself_does(action, alert, without_substitute):
    """A substitute's row says what happens without the substitute."""
    row = rule("aten::put", action, alert=alert)
    assert row.without_substitute == without_substitute


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"function": "kernel"}, TypeError, "must be callable, got str"),
        ({"function": len, "traffic": 0.5}, ValueError, "traffic must be at least 1, .* got 0.5"),
    ],
)
def test_a_substitute_checks_itself(arguments, error, text):
    """``Substitute`` takes a function, and a traffic that is no less than the floor."""
    with pytest.raises(error, match=text):
        Substitute(**arguments)
