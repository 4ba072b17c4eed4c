"""Which operators ``intercept="listed"`` needs kernels for, and at which dispatch keys.

A kernel in Python takes microseconds at each call, so it stands where it receives no more calls
than it must. ATen calls operators inside others, below autograd: a view is made by
``aten::as_strided``, and a convolution is an ``aten::_convolution``. What matters of the program's
own calls alone is therefore looked at above, at autograd's key.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from detmode.mode.base_mode import facts_of
from detmode.mode.options import means_unlisted
from detmode.mode.overload_info import COMPOSITE
from detmode.table.names import matches
from detmode.table.outcome import ActionName
from detmode.table.rule import Native, Refuse, Substitute
from detmode.table.rule_table import TORCH_VERSION, Row, RuleTable, resolve
from detmode.table.variants import variant_of

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_is_computed = torch._C._dispatch_has_computed_kernel_for_dispatch_key

_KEYS = [
    (layout + device.upper(), device, layout)
    for device in ("cpu", "cuda", "mps")
    for layout in ("", "Sparse", "SparseCsr", "Quantized")
    if torch._C._parse_dispatch_key(layout + device.upper()) is not None
    and (device != "cuda" or torch.backends.cuda.is_built())
]
"""Dispatch keys of backends, with the device type and the layout of their tensors."""

_FILLING = "uninitialized_memory"
"""The family of operators that return new memory."""

_SETTINGS = {"deterministic", "benchmark"}
"""Arguments that ATen passes as PyTorch's settings have them, where it makes the call itself."""


DECIDE = "hands it to the mode"
DECIDE_ABOVE = "hands it to the mode, at autograd's key"
NOTE = "notes its place for the backward, at autograd's key"


@dataclass(frozen=True, eq=False)
class Place:
    """A kernel to register; compared by identity, which is quick to hash."""

    func: torch._ops.OpOverload
    key: str
    task: str

    def __post_init__(self) -> None:
        namespace, _, name = self.func.name().partition("::")
        label = f"{namespace}/{name}/{self.key}: {self.task}"
        vars(self).update(namespace=namespace, name=name, label=label)

    namespace: str = field(init=False)
    name: str = field(init=False)
    label: str = field(init=False)
    """No two places share it."""

    @property
    def decides(self) -> bool:
        """True if the mode decides on the calls."""
        return self.task is not NOTE

    @property
    def is_above(self) -> bool:
        """True if the kernel is at autograd's key."""
        return self.task is not DECIDE


Places = tuple[Place, ...]
Libraries = tuple[int, int, int]


def libraries() -> Libraries:
    """Return what changes when operators, or kernels in C++, are loaded: they come by imports."""
    return len(sys.modules), len(torch.ops.loaded_libraries), len(torch.library._defs)


def places(
    table: RuleTable, overrides: dict[str, ActionName], with_native: bool, simulate: str | None
) -> Places:
    """Return the kernels that a mode needs, as far as the operators can have them.

    ``with_native``: native calls are intercepted too, and run strictly, as under ``warn_only``
    PyTorch's flag leaves some of its deterministic paths off.
    """
    names = _names(libraries())
    impossible = frozenset(row for row, may_hold in _by_environment(table) if not may_hold())
    needed = _listed(names, table, impossible, with_native, simulate)
    if not overrides:
        return needed
    overridden = _overridden(names, table, tuple(overrides.items()))
    return tuple({place.label: place for place in (*needed, *overridden)}.values())


@functools.lru_cache(1)
def _names(loaded: Libraries) -> tuple[str, ...]:
    """Return the names of all operators, which takes milliseconds, for what is loaded."""
    return tuple(torch._C._dispatch_get_all_op_names())


@functools.lru_cache(8)
def _by_environment(table: RuleTable) -> list[tuple[Row, Callable[[], bool]]]:
    """Return the rows that the environment may exclude, which is asked for at each block."""
    return [(row, may_hold) for row in table if (may_hold := row.rule.when.environment)]


@functools.lru_cache(8)
def _listed(
    names: tuple[str, ...],
    table: RuleTable,
    impossible: frozenset[Row],
    with_native: bool,
    simulate: str | None,
) -> Places:
    """Return the kernels for the rows of a table, except impossible ones."""
    table = table.only(lambda row: row not in impossible)
    needed: dict[str, Place] = {}
    for key, device, layout in _KEYS:
        pretended = simulate if simulate is not None and device == "cpu" else device
        rows = table.only(functools.partial(_acts, pretended, layout, with_native))
        for name in names:
            op = name.partition(".")[0]
            # The site of a backward call, and what is allowed there, are those of its forward.
            is_forward = rows.is_forward(op)
            func = resolve(name) if is_forward or rows.names(op) else None
            # An out variant that PyTorch has generated calls the functional overload.
            if func is None or not _can_have_kernel(name, key) or _is_generated_out(func):
                continue
            if acting := rows.get(func):
                place: Place | None = _deciding(func, key, device, acting)
            else:
                place = _noting(func, key, device, layout) if is_forward else None
            if place is not None:
                needed[place.label] = place
    return tuple(needed.values())


def _deciding(func: torch._ops.OpOverload, key: str, device: str, acting: tuple[Row, ...]) -> Place:
    """Return the kernel of an overload for which rows act."""
    follow_settings = func.namespace == "aten" and all(
        row.rule.when.arguments and _SETTINGS.issuperset(row.rule.when.arguments) for row in acting
    )
    if follow_settings and (above := _autograd_key(func, device)) is not None:
        return Place(func, above, DECIDE_ABOVE)
    return Place(func, key, DECIDE)


def _noting(func: torch._ops.OpOverload, key: str, device: str, layout: str) -> Place | None:
    """Return the kernel of an overload that matters for its backward alone, if that has one."""
    # Neither a quantized result nor one that is written to an out argument has a backward.
    if layout == "Quantized" or variant_of(func) == "out":
        return None
    if layout:
        # At autograd's key a call of dense tensors would meet the kernel as well.
        return Place(func, key, DECIDE)
    above = _autograd_key(func, device)
    return None if above is None else Place(func, above, NOTE)


@functools.lru_cache(8)
def _overridden(
    names: tuple[str, ...], table: RuleTable, overrides: tuple[tuple[str, ActionName], ...]
) -> Places:
    needed: list[Place] = []
    patterns = [pattern for pattern, _ in overrides if means_unlisted(pattern)]
    for name in names:
        op, _, overload = name.partition(".")
        spelt = (op, name if overload else f"{name}.default")
        func = resolve(name) if table.names(op) or matches(spelt, patterns) else None
        if func is None or facts_of(func, table, dict(overrides)).override is None:
            continue
        needed += [Place(func, key, DECIDE) for key, *_ in _KEYS if _can_have_kernel(name, key)]
    return tuple(needed)


def _acts(device: str, layout: str, with_native: bool, row: Row) -> bool:
    """Return whether a row needs kernels for tensors of a device and a layout."""
    rule, sparse = row.rule, layout.startswith("Sparse")
    actions: list[type] = [Refuse]
    if rule.when.needs_sparse or not sparse:  # other substitutes take dense tensors
        actions.append(Substitute)
    if with_native:
        actions.append(Native)
    if row.family == _FILLING:  # PyTorch fills the memory of other tensors in any case
        actions = [Substitute] if layout == "Quantized" else []
    return (
        isinstance(rule.action, tuple(actions))
        and rule.holds_for(TORCH_VERSION)
        and rule.may_vary({device}, sparse)
    )


def _can_have_kernel(name: str, key: str) -> bool:
    """Return whether calls of an overload, by its name, reach a kernel at the key.

    Autograd takes composite operators apart above it, which a kernel would keep it from doing.
    For quantized tensors ATen takes apart what has no kernel of its own.
    """
    return _has_kernel(name, key) or (
        not key.startswith("Quantized")
        and not _has_kernel(name, COMPOSITE)
        and _is_computed(name, key)
    )


def _is_generated_out(func: torch._ops.OpOverload) -> bool:
    return torch.Tag.generated in func.tags and variant_of(func) == "out"


def _autograd_key(func: torch._ops.OpOverload, device: str) -> str | None:
    """Return autograd's key for a device if it has a kernel there, which makes a call's node."""
    key = f"Autograd{device.upper()}"
    return key if _has_kernel(func.name(), "Autograd") or _has_kernel(func.name(), key) else None
