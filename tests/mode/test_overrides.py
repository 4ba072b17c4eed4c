"""``overrides``: which calls they mean and what each action does."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterminismWarning, DeterministicMode
from tests.shared.programs import NAMESPACE, cumsum, index_add, put


@pytest.fixture(params=["all", "listed"])
def mode(mode, request):
    """Modes that intercept all calls, or listed ones alone."""
    return lambda *args, **options: mode(*args, **{"intercept": request.param, **options})


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
    assert mode(overrides={name: "substitute"}).overrides == {name: "substitute"}


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


@pytest.mark.parametrize("mode", ["all"], indirect=True)  # listed: where the player is there
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


def _upsampled(x):
    return F.interpolate(x[None, None], scale_factor=2, mode="linear")


def _gathered(x):
    return x.gather(0, torch.tensor([1, 1]))


@pytest.mark.parametrize("intercept", ["all", "listed"])
@pytest.mark.parametrize("action", ["allow", "warn"])
@pytest.mark.parametrize(
    ("forward", "backward", "call"),
    [
        ("aten::upsample_linear1d", "aten::upsample_linear1d_backward.default", _upsampled),
        ("aten::gather", "aten::scatter_add.default", _gathered),
    ],
)
# The action may be to warn; the report is what is looked at.
@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")
def test_an_override_of_a_forward_reaches_its_backward(forward, backward, call, action, intercept):
    """Named by its forward, the backward gets the action; the forward, in no row, is not a row."""
    with DeterministicMode(
        simulate="cuda", overrides={forward: action}, intercept=intercept
    ) as made:
        call(torch.ones(4, requires_grad=True)).sum().backward()
    # Without a dispatch mode in between, autograd's formulas add in place.
    actions = {record.overload.replace("_.", "."): record.action for record in made.records}
    assert actions.pop(backward) == action
    assert not any("substitute=False" in (record.remedy or "") for record in made.records)
    assert list(actions.values()) == ([] if action == "allow" else ["warn"])
    with DeterministicMode(simulate="cuda", intercept=intercept) as made:
        call(torch.ones(4, requires_grad=True)).sum().backward()
    assert [record.action for record in made.records] == ["substitute"]


def test_the_backwards_own_override_wins():
    """An override that names the backward itself wins over one that names its forward."""
    overrides = {"aten::upsample_linear1d": "allow", "aten::upsample_linear1d_backward": "native"}
    with DeterministicMode(simulate="cuda", overrides=overrides) as made:
        _upsampled(torch.ones(4, requires_grad=True)).sum().backward()
    assert [record.action for record in made.records] == ["native"]
    overrides = {"aten::gather": "allow", "aten::scatter_add": "error"}
    with DeterministicMode(simulate="cuda", overrides=overrides), pytest.raises(RuntimeError):
        _gathered(torch.ones(4, requires_grad=True)).sum().backward()


def test_a_forward_may_be_named_for_the_substitute_of_its_backward():
    """``"substitute"`` for a forward means its backward's; where neither has one it is an error."""
    overrides = {"aten::upsample_linear1d": "substitute"}
    with DeterministicMode(simulate="cuda", substitute=False, overrides=overrides) as made:
        _upsampled(torch.ones(4, requires_grad=True)).sum().backward()
    assert [record.action for record in made.records] == ["substitute"]
    with pytest.raises(ValueError, match="no rule has a substitute for 'aten::neg'"):
        DeterministicMode(overrides={"aten::neg": "substitute"})


def test_what_is_said_of_an_operator_in_no_row():
    """The report does not say that detmode would do anything about it without the override."""
    with DeterministicMode(overrides={"aten::neg": "allow"}) as made:
        torch.ones(3).neg()
    (record,) = made.records
    assert (
        record.remedy == "allowed by name; no rule lists it, so that the override may be left out"
    )
