"""What a mode knows of one overload after it has seen it once."""

from __future__ import annotations

import torch

from detmode.table.call import Signature
from detmode.table.names import names_of, overload_name
from detmode.table.rule_table import FamilyRule
from detmode.table.variants import variant_of

# Device types and nestedness of tensors, by the key under which backends register kernels for them.
_BACKENDS = {
    getattr(torch._C.DispatchKey, f"{'NestedTensor' * nested}{device_type.upper()}"): (
        device_type,
        nested,
    )
    for device_type in ("cpu", "cuda", "mps", "xpu")
    for nested in (False, True)
}


class Plan:
    """What the mode knows of one overload after it has seen it once."""

    __slots__ = (
        "composite",
        "func",
        "kernels",
        "name",
        "names",
        "override",
        "rows",
        "signature",
        "variant",
    )

    def __init__(
        self,
        func: torch._ops.OpOverload,
        rows: tuple[FamilyRule, ...],
        override: str | None,
        composite: bool,
    ) -> None:
        self.func = func
        self.name = overload_name(func)
        self.variant = variant_of(func)
        # In a report, an allow region or an override people may name any of these.
        self.names = names_of(func, (row.rule.op for row in rows))
        self.signature = Signature(func)
        self.rows = rows
        self.override = override
        self.composite = composite
        # Of a composite operator: where it has kernels as well, and ATen runs those.
        self.kernels = {
            backend
            for key, backend in _BACKENDS.items()
            if composite and func.has_kernel_for_dispatch_key(key)
        }
