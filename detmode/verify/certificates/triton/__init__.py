"""Certificates of Triton's kernels, and of operators that launch some.

They run in Triton's interpreter. It may import what certificates of CUDA C++ import, and Triton,
whose private names :mod:`.interpreter` alone uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from detmode.verify.certificates.certificate import Certificate
from detmode.verify.certificates.triton.examination import Examination

__all__ = ["certify", "certify_operator"]


def certify(
    kernel: Any,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    repeats: int,
    grid: Any,
    seed: int,
    timeout: float,
) -> Certificate:
    """Certify a kernel of ``triton.jit``; see :func:`detmode.certify` for the arguments."""
    function = kernel
    while not inspect.isfunction(function):
        function = function.fn
    if not isinstance(arguments, Mapping):
        names = list(inspect.signature(function).parameters)
        if len(arguments) > len(names):
            raise TypeError(
                f"certify(): {function.__name__} takes {len(names)} arguments, but got "
                f"{len(arguments)}"
            )
        arguments = dict(zip(names, arguments))
    return Examination(
        function.__name__,
        dict(arguments),
        lambda copies: kernel[grid](**copies),
        repeats=repeats,
        seed=seed,
        timeout=timeout,
    ).certificate()


def certify_operator(
    operator: Any,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    repeats: int,
    seed: int,
    timeout: float,
) -> Certificate:
    """Certify an operator whose implementation launches kernels.

    Args:
        operator: an ``OpOverload``, what ``torch.library.custom_op`` or ``triton_op`` made, or a
            name such as ``"mylib::add"``.
        arguments: of the operator, by name or in order.
        repeats: the number of schedules.
        seed: of the shuffles.
        timeout: the seconds that one launch may take.

    Raises:
        ValueError: there is no such operator, or it launches no kernel of Triton's.
    """
    overload = _overload(operator)
    names = [argument.name for argument in overload._schema.arguments]
    if not isinstance(arguments, Mapping):
        arguments = dict(zip(names, arguments))
    return Examination(
        overload.name(),
        dict(arguments),
        lambda copies: overload(**copies),
        repeats=repeats,
        seed=seed,
        timeout=timeout,
    ).certificate()


def _overload(operator: Any) -> torch._ops.OpOverload:
    if isinstance(operator, torch._ops.OpOverload):
        return operator
    name = operator if isinstance(operator, str) else getattr(operator, "_qualname", None)
    if isinstance(operator, torch._ops.OpOverloadPacket):
        name = operator._qualified_op_name
    namespace, _, rest = str(name).partition("::")
    packet, _, overload = rest.partition(".")
    try:
        overloads = getattr(getattr(torch.ops, namespace), packet)
        chosen: torch._ops.OpOverload = getattr(overloads, overload or overloads.overloads()[0])
        return chosen
    except (AttributeError, RuntimeError) as error:
        raise ValueError(
            f"certify(): there is no operator {name!r}; import the module that registers it first"
        ) from error
