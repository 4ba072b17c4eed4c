"""Effects of operators on memory: from their schemas, and from tables of what those leave out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from detmode.process.arguments import signature_of, tensors_in

_OVERLOADS = 1 << 12

COLLECTIVES = frozenset(
    (
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"),
        *("_dtensor", "symm_mem"),
    )
)
"""Namespaces whose operators wait for other processes."""

_ASYNCHRONOUS = COLLECTIVES & {"c10d", "_c10d_functional"}
"""Those whose results are complete only after a wait.

The operators of the others wait themselves, or call operators of these.
"""

NEW_MEMORY = frozenset(
    (
        *("aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized"),
        *("aten::empty", "aten::empty_like", "aten::empty_permuted", "aten::empty_quantized"),
        *("aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"),
        *("prims::empty", "prims::empty_permuted", "prims::empty_strided"),
    )
)
"""Operators whose results are uninitialized memory."""

_GROWN_MEMORY = frozenset(
    (
        *("aten::_resize_output", "aten::_resize_output_", "aten::resize", "aten::resize_"),
        *("aten::resize_as", "aten::resize_as_", "inductor::resize_storage_bytes_"),
        "prims::resize",
    )
)
"""Operators whose results are uninitialized memory as far as they are larger than before."""

_REBINDING = frozenset(("aten::set_data", "aten::set_", "aten::resize_output_"))
"""Operators that give a tensor different memory."""

AROUND = ("aten::as_strided", "aten::set_", "aten::resize_", "aten::_resize_output_")
"""The beginnings of the names of operators that show more memory than their inputs cover."""

_SCALING = frozenset(
    f"aten::{name}"
    for name in ("_addmm_activation", "addbmm", "addmm", "addmv", "addr", "baddbmm", "sspaddmm")
)
"""Operators that add ``beta`` times their first argument, which they do not read where it is 0."""

_OVERWRITING = frozenset(
    f"aten::{name}" for name in ("copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_")
)
"""Operators that do not read what they write, besides those that draw random numbers."""

_FORMS_ONLY = ("_like", "new_zeros", "new_ones", "new_full")
"""The ends of the names of operators that read a tensor's form, and not its data."""

_ABOUT_MEMORY = frozenset(("aten::_has_same_storage_numel", "aten::is_pinned"))
"""Operators that say where memory is, or how large; that of a copy is elsewhere."""

_COPIES = ("aten::clone", "aten::_to_copy", "aten::copy_")

_VALUES = ("aten::_local_scalar_dense", "aten::equal")

_STATISTICS = ("running_mean", "running_var")
_UNSAID = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::cudnn_batch_norm": _STATISTICS,
    "aten::miopen_batch_norm": _STATISTICS,
    "aten::batch_norm_gather_stats": _STATISTICS,
    "aten::batch_norm_gather_stats_with_counts": _STATISTICS,
    "aten::batch_norm_update_stats": _STATISTICS,
    "aten::_cudnn_rnn": ("dropout_state",),
    "aten::miopen_rnn": ("dropout_state",),
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
    "fsdp::all_gather_copy_in": (1,),
}
"""Outputs that are partly unwritten, and that only the backward or a collective uses."""

_BUFFERS = {"fsdp::all_gather_copy_in": "all_gather_output"}
"""Arguments that an operator does not read, and returns written in part."""


class Effects:
    """The effects of one overload: what its calls read, write, leave undefined and wait for.

    Args:
        func: the overload.

    Attributes:
        signature: its arguments.
        is_atens: true if it is one of ATen's own, whose schemas and tags say what it writes and
            draws; another library's may write and draw more.
        seeded: true if it is tagged to draw random numbers.
        undefined: the positions of outputs that are partly unwritten.
        buffer: the argument that it does not read, and returns written in part; ``None`` without.
        is_collective: true if it waits for other processes.
        asynchronous: true for a collective, whose results are complete only after a wait.
        waits: true for the operator that waits.
        aliases: true if its results may be views of its arguments, which it does not write.
        pointwise: true if each element of the result depends on one place of the arguments alone.
        elementwise: true if it is pointwise, or copies.
        reads_no_data: true if it reads no more than the forms of its arguments.
        reads_around: true if it may show more memory than its arguments cover.
        rebinds: true if it gives its first argument other memory, or another view of the same, and
            writes none.
        takes_storages: true if an argument is a storage.
        has_lists: true if an argument is a list of tensors.
        allocates: true if its results are uninitialized memory, or have some at the end.
        gives_new_memory: true if its results are uninitialized memory, and no argument's.
        tells_of_memory: true if its result depends on where its arguments lie.
        copies: true if it overwrites its first argument with the second.
        overwrites: true if it does not read what it writes.
        scales: true if it adds ``beta`` times its first argument.
        gives_value: true if it returns a value of Python's that depends on its arguments' data.
    """

    def __init__(self, func: torch._ops.OpOverload) -> None:
        schema = func._schema
        name = schema.name
        self.func = func
        self.signature = signature_of(func)
        self.is_atens = func.namespace == "aten"
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.undefined = UNDEFINED_OUTPUTS.get(name, ())
        self.buffer = _BUFFERS.get(name)
        self.is_collective = func.namespace in COLLECTIVES
        self.waits = name == "_c10d_functional::wait_tensor"
        self.asynchronous = func.namespace in _ASYNCHRONOUS and not self.waits
        self.aliases = not schema.is_mutable and any(
            argument.alias_info for argument in schema.arguments
        )
        self.pointwise = torch.Tag.pointwise in func.tags
        self.elementwise = self.pointwise or name in _COPIES
        self.allocates = name in NEW_MEMORY or name in _GROWN_MEMORY
        self.gives_new_memory = name in NEW_MEMORY and not schema.is_mutable
        self.tells_of_memory = name in _ABOUT_MEMORY
        self.reads_no_data = self.allocates or name.endswith(_FORMS_ONLY)
        self.reads_around = name.startswith(AROUND)
        self.rebinds = name in _REBINDING or torch.Tag.inplace_view in func.tags
        types = {str(argument.type) for argument in schema.arguments}
        self.takes_storages = "Storage" in types
        self.has_lists = "List[Tensor]" in types
        self.copies = name == "aten::copy_"
        self.overwrites = name in _OVERWRITING or (self.seeded and schema.is_mutable)
        self.scales = name.removesuffix("_") in _SCALING
        self.gives_value = name in _VALUES
        unsaid = _UNSAID.get(name, ())
        self._written = {
            argument.name: position
            for position, argument in enumerate(schema.arguments)
            if argument.name in unsaid
            or (argument.alias_info is not None and argument.alias_info.is_write)
        }

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that the call may read, also those in lists: all but ``out=``."""
        tensors = tensors_in(args)
        if kwargs:
            outs = self.signature.out_names
            tensors += tensors_in(value for name, value in kwargs.items() if name not in outs)
        return tensors

    def without_unread(
        self, inputs: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Tensor]:
        """Return the tensors of :meth:`read` without what the call leaves out.

        It is the first one where ``beta`` is 0, and a buffer that the call writes in part.
        """
        if self.buffer is not None:
            unread = self.signature.bind(args, kwargs)[self.buffer]
            return [tensor for tensor in inputs if tensor is not unread]
        if self.scales and self.signature.bind(args, kwargs).get("beta", 1) == 0:
            return inputs[1:]
        return inputs

    def is_waited_for(self, args: tuple[Any, ...]) -> bool:
        """Return whether the caller of a collective waits for it at once."""
        return self.signature.bind(args, {}).get("async_op") is False

    def writes(self, name: str) -> bool:
        """Return whether a call writes the argument of this name."""
        return name in self._written

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that the call writes, also those in lists."""
        if not self._written:
            return []
        return tensors_in(
            args[position] if position < len(args) else kwargs.get(name)
            for name, position in self._written.items()
        )


@lru_cache(_OVERLOADS)
def effects_of(func: torch._ops.OpOverload) -> Effects:
    """Return the effects of an overload, found out once."""
    return Effects(func)
