"""Third parties' rules: the entry-point group ``detmode.rules``."""

import importlib.metadata
import sys

import pytest
import torch

import detmode
from detmode import Refuse, Rule, RuleTable
from detmode import rules as rules_package
from detmode.cli import parser as cli
from tests.shared.programs import put

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

RULE = Rule(op="aten::put", action=Refuse(), alert="theirs", because="their reason")


@pytest.fixture
def install(monkeypatch):
    """Installs a distribution that has entry points, for one test."""

    def entry_points(*, group):
        return [entry for entry in installed if entry.group == group]

    installed = []
    monkeypatch.setattr(rules_package, "entry_points", entry_points)
    monkeypatch.setattr(rules_package, "families", dict)
    rules_package.default_rules.cache_clear()

    def add(name, value, target=None, group="detmode.rules"):
        entry = importlib.metadata.EntryPoint(name, value, group)
        if target is not None:
            module, _, attribute = value.partition(":")
            fake = type(torch)(module)
            setattr(fake, attribute, target)
            monkeypatch.setitem(sys.modules, module, fake)
        installed.append(entry)

    yield add
    rules_package.default_rules.cache_clear()


@pytest.mark.parametrize(
    "target", [[RULE], (RULE,), RuleTable([RULE], family="theirs")], ids=["list", "tuple", "table"]
)
def test_an_installed_package_adds_rules(install, target):
    """Rules of the group are in the default table, which is made once, and the mode uses them."""
    install("theirs", "their_package:RULES", target)
    table = detmode.default_rules()
    assert detmode.default_rules() is table
    assert [(row.rule, row.family) for row in table] == [(RULE, "theirs")]
    with detmode.DeterministicMode(), pytest.raises(RuntimeError, match=r"^theirs does not have"):
        put()


def test_other_groups_are_left_alone(install):
    """Entry points of another group are not loaded."""
    install("other", "no_such_module:RULES", group="other.group")
    assert len(detmode.default_rules()) == 0


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (None, "No module named 'broken_package'"),
        (["no rule"], "holds Rule objects, got str"),
        (3, "not iterable"),
        ([RULE, RULE], "the second would never match"),
    ],
)
def test_a_broken_entry_point_is_named(install, target, reason, capsys):
    """The error names the entry point, what it points to, what is wrong, and the remedy.

    The command line wraps it.
    """
    install("broken", "broken_package:RULES", target)
    with pytest.raises(RuntimeError, match=reason) as caught:
        detmode.default_rules()
    text = str(caught.value)
    assert "entry point 'broken' (broken_package:RULES)" in text
    assert "update or uninstall" in text
    assert cli.main(["rules"]) == 2
    assert capsys.readouterr().err.split() == f"detmode: error: {text}".split()


def test_a_third_partys_row_comes_first(install, monkeypatch):
    """Their row for a condition of ours is tried before ours."""
    family = type(torch)("ours")
    family.RULES = [Rule(op="aten::put", action=Refuse(), alert="ours", because="our reason")]
    monkeypatch.setattr(rules_package, "families", lambda: {"ours": family})
    install("theirs", "their_package:RULES", [RULE])
    (row,) = detmode.default_rules().get(torch.ops.aten.put.default)
    assert row.rule.alert == "theirs"
