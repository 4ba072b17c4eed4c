"""A call that a mode intercepts, with everything that the mode finds out about it."""

from __future__ import annotations

from typing import Any

from detmode.table.call import Call
from detmode.table.call_site import CallSite, Note
from detmode.table.overload_info import OverloadInfo
from detmode.table.rule_table import FamilyRule


class InterceptedCall(Call):
    """A call that a mode intercepts.

    Args:
        overload: the facts about the called overload.
        args: the positional arguments, as they were given.
        kwargs: the others, as they were given.
        pretend: a device type; CPU and meta tensors then count as tensors on that device.
        traced: true if nothing is to be launched for the call.

    Attributes:
        name: the overload as reports show it; compiled code may call another variant.
        row: the first row whose condition holds; ``None`` without one.
        site: the place where the call is made, once it has been looked up.
        notes: those of the forward calls whose backward makes the call, once looked up.
    """

    __slots__ = ("args", "kwargs", "name", "notes", "overload", "row", "site")

    def __init__(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pretend: str | None = None,
        *,
        traced: bool = False,
    ) -> None:
        Call.__init__(self, overload.func, overload.signature.bind(args, kwargs), pretend)
        self.overload = overload
        self.name = overload.name
        self.args = args
        self.kwargs = kwargs
        self.site: CallSite | None = None
        self.notes: list[Note] | None = None
        self.row: FamilyRule | None = None
        if traced:
            self.launches_on = None
        for row in overload.rows:
            if row.rule.when.holds(self):
                self.row = row
                break

    def run(self) -> Any:
        """Make the call by ATen."""
        return self.func(*self.args, **self.kwargs)
