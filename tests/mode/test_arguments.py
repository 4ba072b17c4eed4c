"""The mode's own arguments: what is wrong is refused before anything changes."""

import logging
import re

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from detmode import DeterministicMode, Rule, RuleTable, allow
from detmode.mode import listed
from detmode.table.rule import GPU_TO_GPU, Allow, Native
from tests.shared.interrupted import state
from tests.shared.programs import actions, index_add

EMPTY = RuleTable()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"warn_only": 1}, TypeError, "argument 'warn_only' must be bool, not int"),
        ({"strict": 1}, TypeError, "strict must be bool, not int"),
        ({"strict": True, "warn_only": True}, ValueError, "leave one of them out"),
        ({"summary": "yes"}, TypeError, "summary must be bool, not str"),
        ({"substitute": 1}, TypeError, "substitute must be bool, not int"),
        ({"substitute": None}, TypeError, "substitute must be bool, not NoneType"),
        ({"rules": []}, TypeError, r"rules=default_rules\(\) \+ \[Rule\(...\)\]"),
        ({"intercept": "some"}, ValueError, "intercept must be 'all' or 'listed', got 'some'"),
        ({"overrides": [("a", "b")]}, TypeError, "overrides must be a mapping"),
        ({"overrides": {"aten::histc": "skip"}}, ValueError, "allow, warn, error, native, subst"),
        ({"overrides": {"aten::histc": ["allow"]}}, ValueError, "must be one of"),
        (
            {"overrides": {"hystc": "allow"}},
            ValueError,
            "no operator is named 'hystc'; did you mean 'histc'?",
        ),
        ({"overrides": {3: "allow"}}, TypeError, "overrides takes operators, got int; give"),
        (
            {"overrides": {"aten::hitsc": "allow"}},
            ValueError,
            "no loaded library has 'aten::hitsc'; did you mean 'aten::histc'",
        ),
        ({"overrides": {"aten::put.defualt": "allow"}}, ValueError, "no overload 'defualt'"),
        ({"overrides": {"aten::pu": "allow"}}, ValueError, "did you mean 'aten::put'"),
        ({"overrides": {"prims::sinn": "allow"}}, ValueError, "did you mean 'prims::sin'"),
        (
            {"overrides": {"aten::putt*": "allow"}},
            ValueError,
            r"no operator of aten matches 'aten::putt\*'",
        ),
        (
            {"overrides": {"aten::put": "allow", torch.ops.aten.put: "warn"}},
            ValueError,
            "'aten::put' is given two actions",
        ),
        ({"overrides": {"aten::conv2d": "error"}}, ValueError, "takes 'aten::conv2d' apart"),
        ({"overrides": {"aten::histc": "substitute"}}, ValueError, "no rule has a substitute"),
        ({"fill_uninitialized_memory": 1}, TypeError, "must be bool or None, not int"),
        ({"fill_uninitialized_memory": 0}, TypeError, "must be bool or None, not int"),
        ({"fill_uninitialized_memory": "no"}, TypeError, "must be bool or None, not str"),
        ({"simulate": "mps"}, ValueError, "simulate must be 'cuda' or None, got 'mps'"),
        ({"simulate": True}, ValueError, "simulate must be 'cuda' or None"),
        ({"simulate": "cuda", "schedule_seed": 1.5}, TypeError, "must be int or None, not float"),
        ({"simulate": "cuda", "schedule_seed": True}, TypeError, "must be int or None, not bool"),
        ({"schedule_seed": 1}, ValueError, "give simulate='cuda' as well"),
        ({"recheck": True}, TypeError, "recheck must be float, not bool"),
        ({"recheck": "0.1"}, TypeError, "recheck must be float, not str"),
        ({"recheck": -0.1}, ValueError, "from 0 to 1, got -0.1"),
        ({"recheck": 1.5}, ValueError, "from 0 to 1, got 1.5"),
        ({"recheck": float("nan")}, ValueError, "from 0 to 1, got nan"),
        ({"log": 1.5}, TypeError, "log must be a logger or a level, not float"),
        ({"log": True}, TypeError, "log must be a logger or a level, not bool"),
        ({"log": "loud"}, ValueError, "LOUD"),
        ({"warn": True}, TypeError, "unexpected keyword argument"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    """A wrong argument raises, says what it should be, and changes nothing."""
    before, level = state(), logging.getLogger("detmode").level
    with pytest.raises(error, match=text):
        DeterministicMode(**{"rules": EMPTY, **arguments})
    assert state() == before
    assert logging.getLogger("detmode").level == level


def test_warn_only_in_pytorchs_words():
    """``warn_only`` of a wrong type raises exactly what PyTorch raises."""
    with pytest.raises(TypeError) as theirs:
        torch._C._set_deterministic_algorithms(True, warn_only="yes")
    with pytest.raises(TypeError) as ours:
        DeterministicMode("yes", rules=EMPTY)
    assert str(ours.value) == str(theirs.value)


def test_only_warn_only_is_positional():
    """As in PyTorch's signature, everything after the first argument goes by keyword."""
    with pytest.raises(TypeError, match="positional"):
        DeterministicMode(False, False)


@pytest.mark.parametrize(
    ("operators", "error", "text"),
    [
        ((), TypeError, "at least one operator"),
        ((3,), TypeError, "takes operators, got int"),
        (("aten::histc", None), TypeError, "takes operators, got NoneType"),
        (("hystc",), ValueError, "no operator is named 'hystc'; did you mean 'histc'?"),
        (("aten::histcc",), ValueError, "did you mean 'aten::histc'?"),
        (("aten::put.defualt",), ValueError, "'aten::put' has no overload 'defualt'"),
        (("aten::putt*",), ValueError, "no operator of aten matches"),
        (("aten::linear",), ValueError, "PyTorch takes 'aten::linear' apart before a mode sees it"),
        (("aten::max_pool3d",), ValueError, "made of, as 'aten::max_pool3d_with_indices_backward'"),
    ],
)
def test_wrong_arguments_of_allow(operators, error, text):
    """``allow`` refuses where it stands what cannot name an operator that a mode meets."""
    with pytest.raises(error, match=re.escape(text)):
        allow(*operators)


def test_older_pytorch_intercepts_all(mode, monkeypatch, caplog):
    """All calls are intercepted where a kernel cannot call the one it stands for; it is said."""
    monkeypatch.setattr(listed, "AVAILABLE", False)
    with mode(intercept="listed") as made:
        (level,) = _get_current_dispatch_mode_stack()
        assert level.mode is made
        index_add()
    with made:
        pass
    assert actions(made) == [("aten::index_add.default", "substitute", 1)]
    assert [each.message for each in caplog.records] == [listed.UNAVAILABLE]
    assert "intercept" not in made.report().head


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"op": "histc"}, "namespace::name"),
        ({"op": "aten::put_"}, "in-place variants are derived"),
        ({"when": lambda call: True}, "when must be a Condition"),
        ({"action": "allow"}, "action must be Substitute"),
        ({"alert": "put_"}, "has no alert"),
        ({"since": "2.13.0"}, "'major.minor'"),
        ({"until": "new"}, "'major.minor'"),
        ({"because": ""}, "one line"),
        ({"because": "a\nb"}, "one line"),
        ({"guarantee": "run_to_run"}, "guarantee must be given .* for them only"),
        ({"action": Native(), "guarantee": "always"}, "must be 'run_to_run' or 'gpu_to_gpu', got"),
    ],
)
def test_a_rule_checks_itself(fields, text):
    """A row that cannot be right is refused, naming the row and the field."""
    whole = {"op": "aten::put", "action": Allow(), "because": "no", **fields}
    with pytest.raises(ValueError, match=text):
        Rule(**whole)


def test_a_guarantee_as_text():
    """It becomes the guarantee that it names."""
    rule = Rule(op="aten::put", action=Native(), guarantee="gpu_to_gpu", because="no")
    assert rule.guarantee is GPU_TO_GPU
