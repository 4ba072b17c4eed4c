"""Facts about one overload: from its schema, and from the rule table of a mode."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from detmode.process.arguments import signature_of, tensors_in
from detmode.process.dispatch import caller_of, is_foreign
from detmode.table.names import names_of, overload_name
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

_SCALING = frozenset(
    f"aten::{name}"
    for name in ("_addmm_activation", "addbmm", "addmm", "addmv", "addr", "baddbmm", "sspaddmm")
)
"""Operators that add ``beta`` times their first argument, which they do not read where it is 0."""

_FORMS_ALONE = ("_like", "new_zeros", "new_ones", "new_full")
"""The ends of the names of operators that read a tensor's form, and not its data."""

_COPIES = ("aten::clone", "aten::_to_copy", "aten::copy_")

_VALUES = ("aten::_local_scalar_dense", "aten::equal")

_COLLECTIVES = ("c10d", "_c10d_functional")
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
        twin: the operator that compiled code calls instead of it, if these are the facts of that.
        names: all names that mean it in a report, an allow region or an override.
        dense_passes: true if calls without a sparse tensor do not vary.
        hides_calls: true if it is another library's and no row lists it: a mode does not see what
            its kernel calls.
        passes: true if the mode that looks it up neither decides nor remembers anything of a call.
        undefined: the positions of outputs that are partly unwritten.
        buffer: the argument that it does not read, and returns written in part; ``None`` without.
        asynchronous: true for a collective, whose results are complete only after a wait.
        waits: true for the operator that waits.
        aliases: true if its results may be views of its arguments, which it does not write.
        pointwise: true if each element of the result depends on one place of the arguments alone.
        elementwise: true if it is pointwise, or copies.
        reads_no_data: true if it reads no more than the forms of its arguments.
        rebinds: true if it gives its first argument other memory, or another view of the same, and
            writes none.
        takes_storages: true if an argument is a storage.
        has_lists: true if an argument is a list of tensors.
        allocates: true if its results are uninitialized memory, or have some at the end.
        copies: true if it overwrites its first argument with the second.
        scales: true if it adds ``beta`` times its first argument.
        gives_value: true if it returns a value of Python's that depends on its arguments' data.
    """

    def __init__(
        self,
        func: torch._ops.OpOverload,
        rows: tuple[Row, ...] = (),
        override: str | None = None,
    ) -> None:
        schema = func._schema
        self.func = func
        self.run = caller_of(func) if type(func) is torch._ops.OpOverload else func
        self.rows = rows
        self.chain = [(row, row.rule.when.holds) for row in rows]
        self.override = override
        self.twin: torch._ops.OpOverload | None = None
        self.dense_passes = bool(rows) and not any(row.rule.may_vary(None, False) for row in rows)
        self.hides_calls = not rows and is_foreign(func)
        self.passes = False
        self.composite = not rows and _is_composite(func)
        self.name = overload_name(func)
        self.names = names_of(func, (row.rule.op for row in rows))
        self.variant = variant_of(func)
        self.signature = signature_of(func)
        self.allocates = schema.name in NEW_MEMORY or schema.name in _GROWN_MEMORY
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.undefined = UNDEFINED_OUTPUTS.get(schema.name, ())
        self.buffer = _BUFFERS.get(schema.name)
        self.waits = schema.name == "_c10d_functional::wait_tensor"
        self.asynchronous = func.namespace in _COLLECTIVES and not self.waits
        self.aliases = not schema.is_mutable and any(each.alias_info for each in schema.arguments)
        self.rebinds = schema.name in _REBINDING or torch.Tag.inplace_view in func.tags
        self.takes_storages = any(str(each.type) == "Storage" for each in schema.arguments)
        self.scales = schema.name.removesuffix("_") in _SCALING
        self.pointwise = torch.Tag.pointwise in func.tags
        self.elementwise = self.pointwise or schema.name in _COPIES
        self.reads_no_data = self.allocates or schema.name.endswith(_FORMS_ALONE)
        self.has_lists = any(str(each.type) == "List[Tensor]" for each in schema.arguments)
        self.copies = schema.name == "aten::copy_"
        self.gives_value = schema.name in _VALUES
        unsaid = _UNSAID.get(schema.name, ())
        self._written = {
            argument.name: position
            for position, argument in enumerate(schema.arguments)
            if argument.name in unsaid
            or (argument.alias_info is not None and argument.alias_info.is_write)
        }

    @cached_property
    def kernels(self) -> set[tuple[str, bool]]:
        """Device types, and whether nested, for which a composite has kernels, which ATen runs."""
        has_kernel = self.func.has_kernel_for_dispatch_key
        return {backend for key, backend in _BACKENDS.items() if has_kernel(key)}

    @cached_property
    def forbids_overlap(self) -> bool:
        """True if ATen requires that inputs other than ``self`` do not overlap the output.

        Operators with an in-place variant require it, because they write while they read. The
        ``out`` variants that PyTorch generates copy a finished result, and pointwise operators read
        an element before they write it.
        """
        if self.pointwise:
            return False
        if self.variant == "inplace":
            return True
        namespace, _, name = self.func._schema.name.partition("::")
        has_kernel = self.func.has_kernel_for_dispatch_key
        generated = has_kernel(torch._C.DispatchKey.CompositeExplicitAutograd)
        return not generated and hasattr(getattr(torch.ops, namespace), f"{name}_")

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that the call may read, also those in lists: all but ``out=``."""
        found = tensors_in(args)
        if kwargs:
            found += tensors_in(
                v for name, v in kwargs.items() if name not in self.signature.out_names
            )
        return found

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
