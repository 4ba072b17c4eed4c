"""Uninitialised memory: ``empty`` and similar operators, and ``resize_``.

## What varies

The content of uninitialised memory. A quantized tensor's ``resize_`` alerts on the CPU, where it
leaves the new bytes uninitialised.

## What happens instead

Under the flag PyTorch fills new memory with NaN, or the largest integer, while
``torch.utils.deterministic.fill_uninitialized_memory`` is on, as it is by default. A quantized
``resize_`` does the same here: ATen's own operator runs without its alert, and memory that the
tensor did not have gets the largest integer of its dtype (bytes with all bits set, where 2- and
4-bit elements are packed).

## Cost

One more write of every new tensor. Programs that write everything they allocate can turn it off:
``DeterministicMode(fill_uninitialized_memory=False)``. What detmode's own kernels write is never
filled first.

``resize_`` of a quantized tensor writes what is new once and reads nothing, which is the floor: 1.0
times the floor.

## Limits

With the filling off detmode is silent about uninitialised memory, as PyTorch is. The ``out=``
forms of the factories are not listed; PyTorch fills there too.
"""

from detmode.rules.uninitialized_memory import launch
from detmode.table.chain import Row, chain
from detmode.table.conditions import deterministic_flag, fill_uninitialized_memory, on, quantized
from detmode.table.rule import RUN_TO_RUN, Native, Substitute

_OPS = (
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
)

_FILLED = Row(
    when=on("cpu", "cuda", "mps") & deterministic_flag(True) & fill_uninitialized_memory(True),
    action=Native(),
    guarantee=RUN_TO_RUN,
    because="new memory is filled with NaN or the largest integer",
)
_UNFILLED = "the user turned the filling off, or there is no data"

RULES = (
    *chain(
        "aten::resize",
        Row(
            when=quantized("self") & deterministic_flag(True) & fill_uninitialized_memory(True),
            action=Substitute(launch.resize_filled, launches=False, traffic=1.0),
            guarantee=RUN_TO_RUN,
            alert="quantized_resize_cpu_",
            because="PyTorch does not fill the new memory of a quantized tensor",
        ),
        Row(
            when=quantized("self"),
            action=Substitute(launch.resize_unfilled, launches=False, traffic=1.0),
            guarantee=RUN_TO_RUN,
            alert="quantized_resize_cpu_",
            because="the user turned the filling off; elements that were there stay",
        ),
        _FILLED,
        otherwise=_UNFILLED,
    ),
    *chain(_OPS, _FILLED, otherwise=_UNFILLED),
)
