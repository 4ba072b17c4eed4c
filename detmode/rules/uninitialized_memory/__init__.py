"""Uninitialised memory: ``empty`` and similar operators, and ``resize_``.

## What varies

The content of uninitialised memory. PyTorch fills none of quantized tensors, and raises for dtypes
that it cannot fill: ``bits8`` and the like, ``float4_e2m1fn_x2``, integers of less than a byte. A
quantized tensor's ``resize_`` alerts on the CPU, where it
leaves the new bytes uninitialised.

## What happens instead

Under the flag PyTorch fills new memory with NaN, or the largest integer, while
``torch.utils.deterministic.fill_uninitialized_memory`` is on, as it is by default. Where PyTorch
does not, detmode does the same: ATen's own operator runs without the filling, and all bytes of the
new memory get the largest integer (of bit dtypes and of elements smaller than a byte, all bits are
set). A quantized ``resize_`` does it too, without its alert, for memory that the tensor did not
have.

Operators that resize a quantized result inside, and then write all of it, run without the alert:
``torch.ops.quantized.linear``, ``torch.ops._quantized.linear`` and ``linear_relu``,
``index_select``, ``F.pad(mode="reflect")`` (and ``topk``, in the family of order statistics).

## Cost

One more write of every new tensor. Programs that write everything they allocate can turn it off:
``DeterministicMode(fill_uninitialized_memory=False)``. What detmode's own kernels write is never
filled first.

``resize_`` of a quantized tensor writes what is new once and reads nothing, which is the floor: 1.0
times the floor.

## Limits

With the filling off detmode is silent about uninitialised memory, as PyTorch is. The ``out=``
forms of the factories warn where PyTorch copies memory to ``out`` that it does not fill; that of
``empty`` calls ``resize_``, which has rows. Memory that no operator returns is not filled, by
PyTorch neither: that of ``torch.UntypedStorage(n)``, of ``resize_`` of a storage, of ``set_``
beyond the end of one, and of oneDNN's tensors (``to_mkldnn()``).
"""

from detmode.rules.uninitialized_memory import launch
from detmode.table.chain import RowFields, chain
from detmode.table.conditions import (
    deterministic_flag,
    fill_uninitialized_memory,
    filled_by_pytorch,
    on,
    quantized,
)
from detmode.table.rule import RUN_TO_RUN, Native, Refuse, Substitute
from detmode.table.unalerted import WithoutFlag

_OPS = (
    *("aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized"),
    *("aten::empty.memory_format", "aten::empty_like", "aten::empty_permuted"),
    *("aten::empty_quantized", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"),
)

_WRITTEN = (
    ("_quantized::linear", "quantized_resize_cpu_", quantized("X")),
    ("quantized::linear", "quantized_resize_cpu_", quantized("X")),
    ("quantized::linear_relu", "quantized_resize_cpu_", quantized("X")),
    ("aten::reflection_pad2d", "quantized_resize_cpu_", quantized("self")),
    ("aten::index_select", None, quantized("self")),
)
"""Operators that resize a quantized result inside, their alerts, and their quantized calls."""

_FILLS = on("cpu", "cuda", "mps") & deterministic_flag(True) & fill_uninitialized_memory(True)
_FILLED = RowFields(
    when=_FILLS,
    action=Native(),
    guarantee=RUN_TO_RUN,
    because="new memory is filled with NaN or the largest integer",
)
_UNFILLED = "the user turned the filling off, or there is no data"

RULES = (
    *chain(
        "aten::resize",
        RowFields(
            when=quantized("self") & deterministic_flag(True) & fill_uninitialized_memory(True),
            action=Substitute(launch.resize_filled, launches=False, traffic=1.0),
            alert="quantized_resize_cpu_",
            because="PyTorch does not fill the new memory of a quantized tensor",
        ),
        RowFields(
            when=quantized("self"),
            action=Substitute(launch.resize_unfilled, launches=False, traffic=1.0),
            alert="quantized_resize_cpu_",
            because="the user turned the filling off; elements that were there stay",
        ),
        _FILLED,
        guarantee=RUN_TO_RUN,
        otherwise=_UNFILLED,
    ),
    *(
        rule
        for op in _OPS
        for rule in chain(
            op,
            RowFields(
                when=filled_by_pytorch(False) & _FILLS,
                action=Substitute(WithoutFlag(op, launch.fill), Native(), False, traffic=1.0),
                guarantee=RUN_TO_RUN,
                because="PyTorch does not fill new memory of such a dtype",
            ),
            *(() if op.endswith("quantized") else (_FILLED,)),
            otherwise=_UNFILLED,
        )
    ),
    *chain(
        tuple(f"{op}.out" for op in _OPS if "." not in op),
        when=_FILLS & filled_by_pytorch(False),
        action=Refuse(),
        because="PyTorch copies new memory there, and fills none of such a dtype",
        otherwise="the user turned the filling off, or PyTorch fills the memory that it copies",
    ),
    *(
        rule
        for op, alert, condition in _WRITTEN
        for rule in chain(
            op,
            when=deterministic_flag(True) & condition,
            action=Substitute(WithoutFlag(op), Native(), launches=False, traffic=1.0),
            guarantee=RUN_TO_RUN,
            alert=alert,
            because="it resizes its quantized result, and then writes all of it",
            otherwise="without the flag, or of other tensors, it resizes nothing",
        )
    ),
)
