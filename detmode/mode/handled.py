"""A call in a mode's hands, with all that the mode finds out about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detmode.mode.overload_info import OverloadInfo
from detmode.table.call import Call
from detmode.table.call_site import CallSite, Note
from detmode.table.rule import Rule
from detmode.table.rule_table import Row


class Handled(Call):
    """A call that a mode decides on.

    Args:
        overload: the facts about the overload.
        args, kwargs, pretend, traced: as of any :class:`~detmode.table.call.Call`.

    Attributes:
        name: the overload as reports show it; compiled code may call another variant.
        row: the first row of the overload whose condition holds; ``None`` without one.
        rule: its rule.
        site: the place where the call is made, once it has been looked up.
        plans: that may record what its substitute does; ``None`` if none may.
        notes: those of the forward calls whose backward makes the call, once looked up.
    """

    __slots__ = ("name", "notes", "overload", "plans", "row", "rule", "site")

    plans: Any
    site: CallSite | None
    notes: Sequence[Note] | None
    row: Row | None
    rule: Rule | None

    def __init__(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pretend: str | None = None,
        traced: bool = False,
    ) -> None:
        Call.__init__(self, overload.signature, args, kwargs, pretend, traced)
        self.overload = overload
        self.name = overload.name
        self.site = self.notes = self.plans = None
        for row, holds in overload.chain:
            if holds(self):
                self.row, self.rule = row, row.rule
                break
        else:
            self.row = self.rule = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that mean the overload in a report, an allow region or an override."""
        return self.overload.names

    @property
    def reads_warn_only(self) -> bool:
        """True if ATen may look at PyTorch's ``warn_only``: its kernel does, or alerts."""
        rule = self.rule
        return self.overload.reads_warn_only or rule is None or rule.alert is not None

    def run(self) -> Any:
        """Make the call by ATen."""
        return self.overload.run(*self.args, **self.kwargs)


class Located:
    """A call of which only the place is looked up.

    Attributes:
        func, name, names, notes, site: as of a :class:`Handled` call.
    """

    __slots__ = ("func", "name", "names", "notes", "site")

    def __init__(self, overload: OverloadInfo) -> None:
        self.func = overload.func
        self.name, self.names = overload.name, overload.names
        self.site: CallSite | None = None
        self.notes: Sequence[Note] | None = None
