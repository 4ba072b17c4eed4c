"""The families: a folder for each family of operators; to list them is to see what is covered.

They may import what a row is made of and what launches kernels (:mod:`detmode.table`,
:mod:`detmode.environment`, :mod:`detmode.cuda`), but no family another. They do not know the mode.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

from detmode.table.rule_table import RuleTable

__all__ = [
    "ENTRY_POINTS",
    "ForeignRulesError",
    "default_rules",
    "families",
    "family_table",
    "page_of",
]


def __dir__() -> list[str]:
    return __all__


ENTRY_POINTS = "detmode.rules"
"""The entry-point group of third parties: each names an iterable of rules or a RuleTable."""


class ForeignRulesError(RuntimeError):
    """Rules that an installed package brings, and that cannot be loaded."""


@cache
def families() -> dict[str, ModuleType]:
    """The families of this package by name, found by walking the folder."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg)
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def family_table(name: str) -> RuleTable:
    """The rows of one family."""
    family = families()[name]
    return RuleTable(family.RULES, family=name, forwards=getattr(family, "FORWARDS", ()))


def page_of(family: str) -> str:
    """Return the name of a family's page in ``docs/rules``, where ``index.md`` lists all rows."""
    return "index-family.md" if family == "index" else f"{family}.md"


@cache
def default_rules() -> RuleTable:
    """The whole table: every family here, and what installed packages add to ``detmode.rules``.

    A third party's rows are tried before ours.

    >>> any(row.rule.op == "aten::histc" for row in detmode.default_rules())
    True

    Raises:
        ValueError: two families list the same operator.
        ForeignRulesError: an entry point fails to load; its package is named.
    """
    table = RuleTable.union(family_table(name) for name in families())
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            rules = entry.load()
            table += rules if isinstance(rules, RuleTable) else RuleTable(rules, family=entry.name)
        except Exception as error:
            raise ForeignRulesError(
                f"the rules of entry point {entry.name!r} ({entry.value}) could not be loaded: "
                f"{error}; update or uninstall the package that brings them"
            ) from error
    return table
