"""``overrides``: which calls they mean and what each action does."""

from itertools import product

import pytest
import torch
from programs import NAMESPACE, cumsum, index_add, put

from detmode import DeterminismWarning


@pytest.mark.parametrize(
    "name",
    [
        *("aten::put", "aten::put_", "aten::put_.default"),
        *("aten::pu*", "*::put_", "aten::put[_]", "*::*"),
        *(torch.ops.aten.put, torch.ops.aten.put_.default),
    ],
    ids=str,
)
def test_names(mode, name):
    """An override is the operator, its functional form, the overload, or a glob of the names."""
    with mode(overrides={name: "allow"}) as made:
        assert put().tolist() == [1, 0, 0]
    assert [record.action for record in made.records] == ["allow"]


@pytest.mark.parametrize("name", ["aten::put.default", "aten::m?", "aten::histc", "torchvision::*"])
def test_other_names_do_not_touch_it(mode, name):
    """Another overload's name, another operator's name or a glob without it mean other calls."""
    with mode(overrides={name: "allow"}) as made, pytest.raises(RuntimeError):
        put()
    assert [record.action for record in made.records] == ["error"]


@pytest.mark.parametrize(
    ("action", "call"),
    [
        *product(("allow", "warn", "error"), (put, cumsum, index_add)),
        *(("native", cumsum), ("native", index_add), ("substitute", index_add)),
    ],
)
def test_actions(mode, substituted, action, call):
    """Each action does what it says to a call of each kind of row, and is what is recorded."""
    with mode(overrides={"aten::*": action}) as made:
        if action == "error":
            with pytest.raises(RuntimeError):
                call()
        elif action == "warn":
            with pytest.warns(DeterminismWarning):
                call()
        else:
            call()
    assert [record.action for record in made.records] == [action]
    assert bool(substituted) == (action == "substitute")


def test_native_of_a_refused_operator_meets_pytorchs_alert(mode):
    """``"native"`` lets PyTorch decide: where it has no path it raises its own error."""
    with mode(overrides={"aten::put": "native"}), pytest.raises(RuntimeError) as caught:
        put()
    assert "detmode" not in str(caught.value)


def test_substitute_where_substitutes_are_off(mode, substituted):
    """``substitute=False`` with an override for one operator runs that one substitute."""
    with mode(substitute=False, overrides={"aten::index_add": "substitute"}):
        index_add()
    assert substituted == ["aten::index_add"]


@pytest.mark.parametrize("name", ["aten::index_add", "aten::index_add_", "aten::index_add.default"])
def test_substitute_by_any_name(mode, name):
    """A substitute may be asked for by the name of each variant."""
    assert mode(overrides={name: "substitute"})._overrides == {name: "substitute"}


def test_an_operator_that_is_in_no_rule(mode):
    """An override may name any operator; warnings are then in our own words."""
    made = mode(overrides={"aten::neg": "warn"})
    with made, pytest.warns(DeterminismWarning, match="an override asks for a warning"):
        torch.ones(3).neg()
    (record,) = made.records
    assert (record.overload, record.family, record.alert) == ("aten::neg.default", None, None)


def test_each_override_is_for_its_own_operators(mode):
    """Operators that no rule lists have nothing in common but that."""
    with mode(overrides={"aten::abs": "allow", "aten::neg": "error"}) as made:
        torch.ones(3).abs()
        with pytest.raises(RuntimeError, match="an override asks for a warning or an error"):
            torch.ones(3).neg()
    assert [record.action for record in made.records] == ["allow", "error"]


def test_a_call_that_a_rule_knows_not_to_vary(mode, table):
    """An override stays silent about a call that does not vary by its row."""
    from detmode import Allow, Rule

    fixed = Rule(op="aten::put", action=Allow(), because="one element")
    with mode(rules=table + [fixed], overrides={"aten::put": "error"}) as made:
        cumsum()
        torch.use_deterministic_algorithms(False)
        put()
    assert [record.overload for record in made.records] == ["aten::cumsum.default"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"aten::*": "error", "aten::put": "allow"},
        {"aten::put": "allow", "aten::*": "error"},
        {"aten::pu*": "allow", "aten::*": "error"},
    ],
)
def test_a_name_wins_over_a_glob(mode, overrides):
    """An exact name wins over a glob wherever it stands; of several globs the first wins."""
    with mode(overrides=overrides):
        put()
        with pytest.raises(RuntimeError):
            cumsum()


@pytest.mark.parametrize("glob", ["aten::*", "*::*", "a*::ne?"])
def test_a_glob_over_aten_means_the_table(mode, glob):
    """A glob does not reach aten operators that no row lists: they do not vary."""
    with mode(overrides={glob: "error"}) as made:
        torch.ones(3).neg()
    assert made.records == ()


def test_the_callers_dict_is_not_kept(mode):
    """Changing the dict afterwards changes nothing."""
    overrides = {"aten::put": "allow"}
    made = mode(overrides=overrides)
    overrides["aten::put"] = "error"
    with made:
        put()
    assert made.records[0].action == "allow"


def test_a_custom_operator(mode, library):
    """An override may name an operator of an extension, loaded now or later."""
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    for name in (f"{NAMESPACE}::twice", f"{NAMESPACE}::*"):
        made = mode(overrides={name: "error"})
        with made, pytest.raises(RuntimeError, match=r"test::twice\.default may"):
            getattr(torch.ops, NAMESPACE).twice(torch.ones(2))
