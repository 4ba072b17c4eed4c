"""Facts about one overload that recordings and probes need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detmode.table.call import tensors_in
from detmode.table.names import overload_name
from detmode.table.variants import out_names

_ALLOCATIONS = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_quantized",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
    )
)
"""Operators that return uninitialized memory."""

_COLLECTIVES = ("c10d", "_c10d_functional")
_STATISTICS = ("running_mean", "running_var")
_UNSAID = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::cudnn_batch_norm": _STATISTICS,
    "aten::miopen_batch_norm": _STATISTICS,
    "aten::batch_norm_gather_stats": _STATISTICS,
    "aten::batch_norm_gather_stats_with_counts": _STATISTICS,
    "aten::batch_norm_update_stats": _STATISTICS,
    "c10d::_allgather_base_": ("output_tensor",),
    "c10d::_reduce_scatter_base_": ("output_tensor",),
    "c10d::allgather_": ("output_tensors",),
    "c10d::allgather_coalesced_": ("output_lists",),
    "c10d::allgather_into_tensor_coalesced_": ("outputs",),
    "c10d::allreduce_": ("tensors",),
    "c10d::allreduce_coalesced_": ("tensors",),
    "c10d::alltoall_": ("output_tensors",),
    "c10d::alltoall_base_": ("output",),
    "c10d::broadcast_": ("tensors",),
    "c10d::gather_": ("output_tensors",),
    "c10d::recv_": ("tensors",),
    "c10d::recv_any_source_": ("tensors",),
    "c10d::reduce_": ("tensors",),
    "c10d::reduce_scatter_": ("output_tensors",),
    "c10d::reduce_scatter_tensor_coalesced_": ("outputs",),
    "c10d::scatter_": ("output_tensors",),
}
"""The arguments that an operator writes although its schema does not say so."""

UNDEFINED_OUTPUTS = {
    "aten::_batch_norm_with_update": (3,),
    "aten::_ctc_loss": (1,),
    "aten::_cudnn_ctc_loss": (1,),
    "aten::_cudnn_rnn": (3, 4),
    "aten::_efficient_attention_forward": (2, 3),
    "aten::_flash_attention_forward": (2, 3),
    "aten::_scaled_dot_product_cudnn_attention": (6, 7),
    "aten::_scaled_dot_product_efficient_attention": (2, 3),
    "aten::_scaled_dot_product_flash_attention": (6, 7),
    "aten::cudnn_batch_norm": (3,),
    "aten::miopen_rnn": (3, 4),
    "aten::mkldnn_rnn_layer": (3,),
}
"""Outputs that only the backward uses and that are partly unwritten, so that they are ignored."""


class Overload:
    """An overload's name, and the arguments that it reads and writes.

    ``undefined`` holds the positions of outputs that are partly unwritten. ``asynchronous`` is true
    for a collective, whose results are complete only after a wait; ``waits`` is true for the
    operator that waits.
    """

    __slots__ = (
        *("_async_op", "_out", "_positions"),
        *("allocates", "asynchronous", "name", "seeded", "undefined", "waits"),
    )

    def __init__(self, func: torch._ops.OpOverload) -> None:
        schema = func._schema
        self.name = overload_name(func)
        self.allocates = schema.name in _ALLOCATIONS
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.undefined = UNDEFINED_OUTPUTS.get(schema.name, ())
        self.waits = schema.name == "_c10d_functional::wait_tensor"
        self.asynchronous = func.namespace in _COLLECTIVES and not self.waits
        names = [argument.name for argument in schema.arguments]
        self._async_op = names.index("async_op") if "async_op" in names else None
        self._out = out_names(func)
        unsaid = _UNSAID.get(schema.name, ())
        self._positions = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.name in unsaid
            or (argument.alias_info is not None and argument.alias_info.is_write)
        ]

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that the call may read, also those in lists: all but ``out=``."""
        found = tensors_in(args)
        if kwargs:
            found += tensors_in(v for name, v in kwargs.items() if name not in self._out)
        return found

    def is_waited_for(self, args: tuple[Any, ...]) -> bool:
        """Return whether the caller of a collective waits for it at once."""
        place = self._async_op
        return place is not None and place < len(args) and args[place] is False

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that the call writes, also those in lists."""
        if not self._positions:
            return []
        return tensors_in(
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in self._positions
        )
