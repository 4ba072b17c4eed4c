"""Rows of one operator, written as the chain that they form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from detmode.table.conditions import ALWAYS, Condition, on
from detmode.table.rule import (
    GPU_TO_GPU,
    Allow,
    Native,
    Refuse,
    Rule,
    Substitute,
)

RowFields: TypeAlias = dict[str, Any]
"""The fields of a :class:`~detmode.table.rule.Rule` whose operator its chain names."""


def chain(
    ops: str | tuple[str, ...],
    *rows: RowFields,
    otherwise: str | RowFields,
    **shared: Any,
) -> tuple[Rule, ...]:
    """Return the rules of an operator, or of several that have the same chain.

    Args:
        ops: the functional operator, or a tuple of them.
        rows: the fields of each rule but the last, in the order in which they are tried.
        otherwise: the last rule, without a condition: its fields, or why it allows all other calls.
        shared: fields that all ``rows`` have; without ``rows``, those of a single one.

    Raises:
        TypeError: a row without an action or a reason.
        ValueError: a field that cannot be right, as :class:`~detmode.table.rule.Rule` says it.
    """
    last = {"action": Allow(), "because": otherwise} if isinstance(otherwise, str) else otherwise
    chained = [{**shared, **row} for row in rows or (RowFields(),)]
    return tuple(
        Rule(op=op, **row)
        for op in ((ops,) if isinstance(ops, str) else ops)
        for row in (*chained, last)
    )


def on_cuda(
    function: Callable[..., Any],
    *,
    traffic: float | None,
    otherwise: Native | Refuse | None = None,
    launches: bool = True,
    when: Condition = ALWAYS,
) -> RowFields:
    """The fields of calls on CUDA whose substitute gives the same bits on any GPU.

    ``when`` is what must hold besides; the others are as for
    :class:`~detmode.table.rule.Substitute`.
    """
    return {
        "when": on("cuda") if when is ALWAYS else on("cuda") & when,
        "action": Substitute(function, otherwise, launches, traffic),
        "guarantee": GPU_TO_GPU,
    }


def on_mps(alert: str, because: str, *, when: Condition = ALWAYS) -> RowFields:
    """A row of calls on MPS, about which PyTorch alerts since 2.15; the kernels do not run there.

    ``when`` is what must hold besides.
    """
    return {
        "when": on("mps") if when is ALWAYS else on("mps") & when,
        "action": Refuse(),
        "alert": alert,
        "since": "2.15",
        "because": because,
    }
