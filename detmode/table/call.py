"""One aten call with its arguments by schema name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from detmode.table.call_site import CallSite, Note

if TYPE_CHECKING:
    from detmode.table.overload_info import OverloadInfo
    from detmode.table.rule_table import FamilyRule


class Signature:
    """The names and defaults of an ``OpOverload``'s arguments, read from its schema once."""

    __slots__ = ("defaults", "names")

    def __init__(self, func: torch._ops.OpOverload) -> None:
        arguments = func._schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        # An argument without a default is None until the call gives it.
        self.defaults = {argument.name: argument.default_value for argument in arguments}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """``args`` and ``kwargs`` as one dict by schema name, defaults filled, in schema order."""
        bound = self.defaults.copy()
        bound.update(zip(self.names, args))
        if kwargs:
            bound.update(kwargs)
        return bound


class Call:
    """One call: what was called with what, and what a mode finds out about it.

    Conditions read the first four attributes; the others are a mode's.

    Args:
        func: the overload that was called.
        arguments: by schema name, defaults filled.
        pretend: a device type; CPU and meta tensors then count as tensors on that device.
        overload: what the mode knows of ``func``.
        given: the arguments as they were given, by position and by name.
        traced: the call is traced, so that nothing is launched.

    Attributes:
        tensors: all tensor arguments, those in lists too.
        device_types: those of the tensor arguments; without any, of the tensor to be made.
        launches_on: ``"cuda"`` or ``"cpu"``; ``None`` where the tensors have no data to run on.
        row: the first one whose condition holds, once that has been looked for.
        site: where the call is made, once that has been looked up.
        notes: of the forward calls whose backward makes the call, once they have been looked up.
    """

    __slots__ = (
        *("arguments", "device_types", "func", "tensors"),
        *("given", "launches_on", "notes", "overload", "row", "site"),
    )
    overload: OverloadInfo
    row: FamilyRule | None
    site: CallSite | None
    notes: list[Note] | None

    def __init__(
        self,
        func: torch._ops.OpOverload,
        arguments: dict[str, Any],
        pretend: str | None = None,
        *,
        overload: OverloadInfo | None = None,
        given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
        traced: bool = False,
    ) -> None:
        self.func = func
        self.arguments = arguments
        self.tensors = tensors_in(arguments.values())
        self.device_types: set[str] = set()
        self.given = given
        if overload is not None:
            self.overload = overload
        self.row = self.site = self.notes = None
        launches_on = None
        for tensor in self.tensors:
            # The properties are several times quicker than tensor.device.type.
            if tensor.is_cuda:
                self.device_types.add("cuda")
                launches_on = "cuda"
                continue
            if tensor.is_cpu:
                self.device_types.add(pretend or "cpu")
            elif tensor.is_meta:
                self.device_types.add(pretend or "meta")
                traced = True
            else:
                self.device_types.add(tensor.device.type)
            launches_on = launches_on or "cpu"
        self.launches_on = None if traced else launches_on
        if not self.tensors:
            device = arguments.get("device")
            made_on = torch.device(device).type if device else "cpu"
            if pretend is not None and made_on in ("cpu", "meta"):
                made_on = pretend
            self.device_types.add(made_on)

    def run(self) -> Any:
        """Make the call by ATen."""
        args, kwargs = self.given
        return self.func(*args, **kwargs)


_SCALARS = frozenset({int, float, bool, str, type(None)})


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``values``, and in lists and tuples among them, nested ones too."""
    found = []
    for value in values:
        # isinstance is slow for what is no tensor.
        if type(value) in _SCALARS:
            continue
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found
