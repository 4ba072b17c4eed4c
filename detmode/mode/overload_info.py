"""Facts about one overload: from its schema, and from the rule table of a mode."""

from __future__ import annotations

import functools
from typing import Any

import torch

from detmode.process.arguments import signature_of
from detmode.process.dispatch import caller_of, is_foreign
from detmode.table.names import names_of, overload_name
from detmode.table.outcome import ActionName
from detmode.table.rule_table import Row
from detmode.table.variants import variant_of

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""The key of operators that are made of other ones."""

# Device types and nestedness of tensors, by the key under which backends register kernels for them.
_BACKENDS = {
    getattr(torch._C.DispatchKey, f"{'NestedTensor' * nested}{device_type.upper()}"): (
        device_type,
        nested,
    )
    for device_type in ("cpu", "cuda", "mps", "xpu")
    for nested in (False, True)
}


def is_elementwise(func: Any) -> bool:
    """Return whether ``func`` is an operator of ATen whose kernels work element by element."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.namespace == "aten"
        and torch.Tag.pointwise in func.tags
        and not _is_composite(func)
    )


def _is_composite(func: torch._ops.OpOverload) -> bool:
    # TorchScript's own operators have no dispatcher entry to ask.
    return func.namespace != "prim" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), COMPOSITE
    )


def _kernels_of(func: torch._ops.OpOverload) -> frozenset[tuple[str, bool]]:
    has_kernel = func.has_kernel_for_dispatch_key
    return frozenset(backend for key, backend in _BACKENDS.items() if has_kernel(key))


def _forbids_overlap(func: torch._ops.OpOverload) -> bool:
    """Return whether ATen requires that inputs other than ``self`` do not overlap the output.

    Operators with an in-place variant require it, because they write while they read. The ``out``
    variants that PyTorch generates copy a finished result, and pointwise operators read an element
    before they write it.
    """
    if torch.Tag.pointwise in func.tags:
        return False
    if variant_of(func) != "out":
        return variant_of(func) == "inplace"
    namespace, _, name = func._schema.name.partition("::")
    generated = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd)
    return not generated and hasattr(getattr(torch.ops, namespace), f"{name}_")


@functools.cache
def _readers_of_warn_only() -> frozenset[str]:
    from detmode.rules import families  # all are imported with the first mode

    ops = (getattr(family, "READS_WARN_ONLY", ()) for family in families().values())
    return frozenset(op for of_family in ops for op in of_family)


class OverloadInfo:
    """Facts about one overload: from its schema, and from the table of the mode that looks it up.

    Args:
        func: the overload.
        rows: its chain in the table; empty if none of its calls may vary.
        override: the action that the mode's ``overrides`` give it.

    Attributes:
        chain: the rows with their conditions.
        run: makes a call, sooner than ``func``, which is called in Python.
        composite: true if it is composed of other operators and no row lists it.
        kernels: the device types, and whether nested, for which a composite has kernels that ATen
            runs.
        forbids_overlap: true if ATen requires that no input but ``self`` overlaps what is written.
        twin: the operator that compiled code calls instead of it, if these are the facts of that.
        names: all names that mean it in a report, an allow region or an override.
        dense_passes: true if calls without a sparse tensor do not vary.
        hides_calls: true if it is another library's and no row lists it: a mode does not see what
            its kernel calls.
        reads_warn_only: true if its kernels may look at PyTorch's ``warn_only`` where none alerts;
            of other libraries' operators that is not known.
        plans: of its calls, for the mode that looks it up.
        passes: true if the mode that looks it up neither decides nor remembers anything of a call.
    """

    def __init__(
        self,
        func: torch._ops.OpOverload,
        rows: tuple[Row, ...] = (),
        override: ActionName | None = None,
    ) -> None:
        self.func = func
        self.run = caller_of(func) if type(func) is torch._ops.OpOverload else func
        self.rows = rows
        self.chain = [(row, row.rule.when.holds) for row in rows]
        self.override = override
        self.twin: torch._ops.OpOverload | None = None
        self.dense_passes = bool(rows) and not any(row.rule.may_vary(None, False) for row in rows)
        self.hides_calls = not rows and is_foreign(func)
        self.passes = False
        self.plans: Any = None
        name = func._schema.name
        self.reads_warn_only = func.namespace != "aten" or name in _readers_of_warn_only()
        self.composite = not rows and _is_composite(func)
        # Not when they are first asked for: a cached property has Python make a dict of all
        # attributes, which calls then read more slowly.
        self.kernels = _kernels_of(func) if self.composite else frozenset()
        self.forbids_overlap = _forbids_overlap(func)
        self.name = overload_name(func)
        self.names = names_of(func, (row.rule.op for row in rows))
        self.variant = variant_of(func)
        self.signature = signature_of(func)
