"""The rule table, which finds the chain of rows for an overload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from detmode.process.versions import parse_version
from detmode.table.call import Call
from detmode.table.names import matches, misnamed, overloads_of
from detmode.table.rule import Rule
from detmode.table.values import Value
from detmode.table.variants import functional_signature, variant_of

TORCH_VERSION = parse_version(torch.__version__)
_USER = "user"


@dataclass(frozen=True, eq=False)
class Row:
    """A rule and its family; compared by identity, which is quick to hash."""

    rule: Rule
    family: str

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):
            raise TypeError(f"a rule table holds Rule objects, got {type(self.rule).__name__}")


class RuleTable(Value):
    """An immutable table of rules.

    ``table + rules`` is a new table in which the added rules are tried first; there is no global
    registry.

    >>> why = "its threads race"
    >>> rule = detmode.Rule(op="my_extension::scatter", action=detmode.Refuse(), because=why)
    >>> table = detmode.default_rules() + [rule]
    >>> with detmode.DeterministicMode(rules=table):
    ...     sums = torch.ones(3).cumsum(0)

    Args:
        rules: the rules, in order; those of one operator form its chain.
        family: the name of the rows in reports. Named families cover several versions of PyTorch
            and of extensions. Without a name the rules are for the running versions, and each must
            name an existing operator, or one of a namespace that is not loaded yet.
        forwards: operators whose autograd node later calls a listed operator with an unrelated name
            (``aten::gather``, whose backward is ``aten::scatter_add``). The mode remembers their
            sites for the backward's rows.

    Raises:
        TypeError: an element is not a :class:`~detmode.table.rule.Rule`.
        ValueError: two rows of one operator have the same condition and versions, so that the
            second can never match (the message names both), or no loaded library has an operator
            that a rule without a family names.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, family: str = _USER, forwards: Iterable[str] = ()
    ) -> None:
        self._rows = tuple(Row(rule, family) for rule in rules)
        # With the family, whose rows the backward may meet.
        self._forwards = frozenset((family, forward.partition(".")[0]) for forward in forwards)
        if family == _USER:
            self._refuse_unknown()
        self._refuse_duplicates()

    @classmethod
    def _of(cls, rows: Iterable[Row], forwards: frozenset[tuple[str, str]]) -> RuleTable:
        table = cls()
        table._rows, table._forwards = tuple(rows), forwards
        table._refuse_duplicates()
        return table

    @classmethod
    def union(cls, tables: Iterable[RuleTable]) -> RuleTable:
        """Join the tables of several families.

        Raises:
            ValueError: two tables list the same operator; both families are named.
        """
        rows: list[Row] = []
        owner: dict[str, str] = {}
        forwards: frozenset[tuple[str, str]] = frozenset()
        for table in tables:
            for row in table._rows:
                family = owner.setdefault(_overload_name(row.rule.op), row.family)
                if family != row.family:
                    raise ValueError(
                        f"{row.rule.op} has rows in two families, {family} and {row.family}; "
                        "a chain lives in one family"
                    )
            rows += table._rows
            forwards |= table._forwards
        return cls._of(rows, forwards)

    def __add__(self, other: RuleTable | Iterable[Rule]) -> RuleTable:
        added = other if isinstance(other, RuleTable) else RuleTable(other)
        shadowed = {_key(row) for row in added._rows}
        remaining = [row for row in self._rows if _key(row) not in shadowed]
        return RuleTable._of([*added._rows, *remaining], self._forwards | added._forwards)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<RuleTable: {len(self._rows)} rows of {len(self._by_base)} operators>"

    def for_version(self, version: str) -> RuleTable:
        """Return the rows that hold for a PyTorch version such as ``"2.13"``."""
        parsed = parse_version(version)
        return RuleTable._of(
            (row for row in self._rows if row.rule.holds_for(parsed)), self._forwards
        )

    def only(self, keep: Callable[[Row], bool]) -> RuleTable:
        """Return the rows for which ``keep`` returns true, and the forwards of their families."""
        rows = tuple(filter(keep, self._rows))
        families = {row.family for row in rows}
        return RuleTable._of(
            rows, frozenset(forward for forward in self._forwards if forward[0] in families)
        )

    def get(self, func: torch._ops.OpOverload) -> tuple[Row, ...]:
        """Return the chain for an overload or a variant of a listed one; empty if none is listed.

        The chain has only the rows that hold for the running PyTorch.
        """
        base = func._schema.name
        rows = self._by_base.get(base) or self._by_base.get(base.removesuffix("_"), [])
        return tuple(
            row for row in rows if row.rule.holds_for(TORCH_VERSION) and _means(row.rule.op, func)
        )

    def row_of(self, call: Call) -> Row | None:
        """Return the first row whose condition holds for a call; ``None`` if none does."""
        return next((row for row in self.get(call.func) if row.rule.when.holds(call)), None)

    def names(self, op: str) -> bool:
        """Return whether rows name the operator of this name, or the one that it makes in place."""
        return op in self._by_base or op.removesuffix("_") in self._by_base

    def is_forward(self, op: str) -> bool:
        """Return whether the backward of the operator of this name may call a listed one."""
        namespace, _, name = op.partition("::")
        name = name.rstrip("_")
        backwards = (f"{namespace}::{name}_backward", f"{namespace}::_{name}_backward")
        return (
            f"{namespace}::{name}" in self._forward_names
            or any(backward in self._by_base for backward in backwards)
            or (name.startswith("_") and f"{namespace}::{name[1:]}_backward" in self._by_base)
        )

    def forwards_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` that match forwards whose backwards have unrelated names."""
        return tuple(
            name for name in names if matches(self._forward_names, (name.partition(".")[0],))
        )

    @cached_property
    def digest(self) -> str:
        """A digest of the listed operators, and of the calls of each that may vary."""
        rules = [row.rule for row in self._rows]
        lines = sorted({f"{rule.op} {rule.when} {rule.may_vary(None, True)}" for rule in rules})
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that the rows say, in their order."""
        rows = [(row.family, row.rule.as_text()) for row in self._rows]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    @cached_property
    def _forward_names(self) -> set[str]:
        return {name for _, name in self._forwards}

    @cached_property
    def _by_base(self) -> dict[str, list[Row]]:
        by_base: dict[str, list[Row]] = {}
        for row in self._rows:
            by_base.setdefault(row.rule.op.partition(".")[0], []).append(row)
        return by_base

    def _refuse_unknown(self) -> None:
        for row in self._rows:
            wrong = misnamed(row.rule.op) if row.rule.holds_for(TORCH_VERSION) else None
            if wrong is not None:
                raise ValueError(
                    f"Rule({row.rule.op!r}): {wrong} (for other versions, set since or until)"
                )

    def _refuse_duplicates(self) -> None:
        seen: dict[tuple[object, ...], Row] = {}
        for row in self._rows:
            rule = row.rule
            first = seen.setdefault(_key(row), row)
            if first is not row:
                raise ValueError(
                    f"{rule.op} has two rows when {rule.when}: in {first.family} "
                    f"({first.rule.because!r}) and in {row.family} ({rule.because!r}); "
                    "the second would never match"
                )


def _key(row: Row) -> tuple[object, ...]:
    """Return the key that two rows of one table must not share: the second would never match."""
    rule = row.rule
    return (_overload_name(rule.op), rule.when, rule.since, rule.until)


def _overload_name(op: str) -> str:
    return op if "." in op else f"{op}.default"


def forwards_of(op: str) -> tuple[str, ...]:
    """Return the names that the forward of a backward operator may have; empty for another one."""
    namespace, _, name = op.partition(".")[0].partition("::")
    stem = name.removesuffix("_backward")
    if stem == name:
        return ()
    return tuple(f"{namespace}::{name}" for name in (stem.lstrip("_"), f"_{stem.lstrip('_')}"))


def _means(op: str, func: torch._ops.OpOverload) -> bool:
    """Return whether ``op`` names ``func`` or the functional overload of the variant ``func``."""
    name = _overload_name(op)
    if name == f"{func._schema.name}.{func._overloadname}":
        return True
    if variant_of(func) == "functional":
        return False
    functional = resolve(name)
    return functional is not None and functional_signature(functional) == functional_signature(func)


def resolve(op: str) -> torch._ops.OpOverload | None:
    """Return the overload by name, or ``None`` if no loaded library has it."""
    if not op.isascii():
        return None  # PyTorch does not accept every text
    base, _, overload = _overload_name(op).partition(".")
    if overload not in overloads_of(base):
        return None
    namespace, _, name = base.partition("::")
    func: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return func
