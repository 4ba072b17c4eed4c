"""One aten call with its arguments by schema name, and with all that a mode finds out about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from detmode.table.call_site import CallSite, Note
    from detmode.table.overload_info import OverloadInfo
    from detmode.table.rule_table import FamilyRule


_TENSOR = torch.Tensor
_new = object.__new__
_TYPE = re.compile(r"\w+")
_WITHOUT_TENSORS = frozenset(
    {"bool", "complex", "float", "int", "number", "str", "Device", "Generator", "List", "Optional"}
)
"""The words in a schema's types that say nothing of a tensor."""


class Signature:
    """The names and defaults of an ``OpOverload``'s arguments, read from its schema once.

    Attributes:
        names: in order.
        defaults: by name; ``None`` for an argument without one.
        tensors: the names of those that may be or hold tensors.
        positional: binds the positional ones of a call, as :meth:`bind` does.
    """

    __slots__ = ("defaults", "names", "positional", "tensors")

    def __init__(self, func: torch._ops.OpOverload) -> None:
        arguments = func._schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        # An argument without a default is None until the call gives it.
        self.defaults = {argument.name: argument.default_value for argument in arguments}
        self.tensors = tuple(
            argument.name
            for argument in arguments
            if not _WITHOUT_TENSORS.issuperset(_TYPE.findall(str(argument.type)))
        )
        # Python binds them, sooner than a copy of the defaults could be filled. The names of the
        # schema are no parameters: some are Python's keywords.
        taken = ", ".join(f"a{i}=defaults[{name!r}]" for i, name in enumerate(self.names))
        items = ", ".join(f"{name!r}: a{i}" for i, name in enumerate(self.names))
        self.positional: Callable[..., dict[str, Any]] = eval(
            f"lambda {taken}: {{{items}}}", {"defaults": self.defaults}
        )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """``args`` and ``kwargs`` as one dict by schema name, defaults filled, in schema order."""
        bound = self.positional(*args)
        if kwargs:
            bound.update(kwargs)
        return bound


class Call:
    """An ``OpOverload`` and its bound arguments, as the conditions see them.

    Args:
        func: the overload that was called.
        arguments: by schema name, defaults filled.
        pretend: a device type; CPU and meta tensors then count as tensors on that device.
        holders: the names of the arguments that may be or hold tensors; all if not given.

    Attributes:
        tensors: all tensor arguments, those in lists too.
        device_types: those of the tensor arguments; without any, of the tensor to be made.
        launches_on: ``"cuda"`` or ``"cpu"``; ``None`` if the tensors have no data to run on.
    """

    __slots__ = ("arguments", "device_types", "func", "launches_on", "tensors")

    def __init__(
        self,
        func: torch._ops.OpOverload,
        arguments: dict[str, Any],
        pretend: str | None = None,
        holders: Iterable[str] | None = None,
    ) -> None:
        self.func = func
        self.arguments = arguments
        tensors: list[torch.Tensor] = []
        self.tensors = tensors
        for name in arguments if holders is None else holders:
            value = arguments[name]
            kind = type(value)
            if kind is _TENSOR:
                tensors.append(value)
            elif value is not None:
                tensors += tensors_in(value if kind is list else (value,))
        device_types: set[str] = set()
        self.device_types = device_types
        launches_on: str | None = "cpu" if tensors else None
        has_data = True
        for tensor in tensors:
            # The properties are several times quicker than tensor.device.type.
            if tensor.is_cuda:
                device_types.add("cuda")
                launches_on = "cuda"
            elif tensor.is_cpu:
                device_types.add(pretend or "cpu")
            elif tensor.is_meta:
                device_types.add(pretend or "meta")
                has_data = False
            else:
                device_types.add(tensor.device.type)
        self.launches_on = launches_on if has_data else None
        if not tensors:
            device = arguments.get("device")
            made_on = torch.device(device).type if device else "cpu"
            if pretend is not None and made_on in ("cpu", "meta"):
                made_on = pretend
            device_types.add(made_on)


class InterceptedCall(Call):
    """A call that a mode intercepts.

    Attributes:
        overload: the facts about the called overload.
        name: the overload as reports show it; compiled code may call another variant.
        args: the positional arguments, as they were given.
        kwargs: the others, as they were given.
        row: the first row whose condition holds; ``None`` without one.
        site: the place where the call is made, once it has been looked up.
        notes: those of the forward calls whose backward makes the call, once looked up.
    """

    __slots__ = ("args", "kwargs", "name", "notes", "overload", "row", "site")

    overload: OverloadInfo
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    site: CallSite | None
    notes: Sequence[Note] | None
    row: FamilyRule | None

    @classmethod
    def of(
        cls,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pretend: str | None = None,
        traced: bool = False,
    ) -> InterceptedCall:
        """Return a call of an overload.

        Args:
            overload: the facts about it.
            args: the positional arguments, as they were given.
            kwargs: the others, as they were given.
            pretend: a device type; CPU and meta tensors then count as tensors on that device.
            traced: true if nothing is to be launched for the call.
        """
        signature = overload.signature
        # As ``bind`` does, without a call more.
        arguments = signature.positional(*args)
        if kwargs:
            arguments.update(kwargs)
        # Before Python 3.13, calling a class takes longer than calling these one by one.
        call = _new(cls)
        Call.__init__(call, overload.func, arguments, pretend, signature.tensors)
        call.overload = overload
        call.name = overload.name
        call.args = args
        call.kwargs = kwargs
        call.site = None
        call.notes = None
        call.row = None
        if traced:
            call.launches_on = None
        for row, holds in overload.chain:
            if holds(call):
                call.row = row
                break
        return call

    def run(self) -> Any:
        """Make the call by ATen."""
        return self.overload.run(*self.args, **self.kwargs)


SCALARS = frozenset({int, float, bool, str, type(None)})
"""Types of arguments that are no tensors; ``isinstance`` is slow for those."""


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``values``, and in lists and tuples among them, nested ones too."""
    found = []
    for value in values:
        kind = type(value)
        if kind in SCALARS:
            continue
        # The quickest first.
        if kind is torch.Tensor:
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found
