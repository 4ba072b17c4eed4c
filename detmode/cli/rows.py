"""Rows of the rule table, by the names that users have for an operator."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detmode.table.rule import Rule
    from detmode.table.rule_table import RuleTable


def means(rule: Rule, pattern: str) -> bool:
    """Return whether ``pattern`` names a rule's operator, with or without namespace and overload.

    It may also name a function of PyTorch that calls the operator, such as ``F.interpolate``, in
    backward too. Users who have PyTorch's message have the name in it.
    """
    from detmode.table.called_as import called_as, without_module

    called = called_as(pattern)
    base = rule.op.partition(".")[0]
    if called is not None and not {base, f"{base}_"}.isdisjoint(called.listed):
        return True
    function = without_module(pattern)
    # PyTorch's own functions are no other library's operators of the same name.
    pattern = pattern if function == pattern else f"aten::{function}"
    bare = rule.op.partition("::")[2]
    alerts = rule.alert if isinstance(rule.alert, tuple) else (rule.alert,)
    names = (rule.op, bare, base, bare.partition(".")[0], *alerts)
    return any(fnmatchcase(name, pattern) for name in names if name)


def similar(table: RuleTable, op: str, *, among_all: bool = False) -> str:
    """Return the question whether similar names were meant: of the table, or of all operators.

    Of a name with one of PyTorch's modules in front, such as ``F.interpolat``, it is a function.
    """
    from detmode.mode.options import is_glob
    from detmode.process.spelling import did_you_mean
    from detmode.table.called_as import names_of_users, without_module
    from detmode.table.names import near, registered

    if is_glob(op):
        return ""
    function = without_module(op)
    if "::" not in op and function != op:
        question = did_you_mean(function, names_of_users())
        if question:
            return question
    known = {row.rule.op.partition(".")[0] for row in table}
    if among_all:
        namespace = op.partition("::")[0] if "::" in op else "aten"
        known |= {name.partition(".")[0] for name in registered(namespace)}
    return near(op, known, most=3 if among_all else 1)
