"""Calls of collectives that reduce: their operation, and how many ranks take part."""

from __future__ import annotations

from typing import Any

import torch

from detmode.table.call import Call

_OPERATIONS = ("reduce_op", "reduceOp", "red_op")
_EXACT = ("max", "min")


def has_an_order(call: Call) -> bool:
    """Return whether the result may depend on the order in which the ranks' values are reduced.

    It does not for MAX and MIN, nor for two ranks: both sides of one addition may be swapped. What
    cannot be read, as the operation on PyTorch 2.8, counts as having an order.
    """
    return _operation(call) not in _EXACT and (_size(call) or 3) > 2


def _operation(call: Call) -> str | None:
    for name in _OPERATIONS:
        value: Any = call.arguments.get(name)
        if isinstance(value, str):
            return value.lower()
        if hasattr(value, "op"):
            return str(torch.distributed.ReduceOp.RedOpType(value.op()).name).lower()
    return None


def _size(call: Call) -> int | None:
    size, ranks = call.arguments.get("group_size"), call.arguments.get("ranks")
    if isinstance(size, int):
        return size
    if isinstance(ranks, list):
        return len(ranks)
    group: Any = call.arguments.get("process_group", call.arguments.get("group_name"))
    try:
        if isinstance(group, str):
            resolve: Any = torch._C._distributed_c10d._resolve_process_group
            group = resolve(group)
        elif isinstance(group, torch.ScriptObject):
            group = torch.distributed.ProcessGroup.unbox(group)
        return int(group.size())
    except (AttributeError, RuntimeError):  # there is no group of this name, or none is given
        return None
