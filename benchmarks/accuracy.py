"""Accuracy of a substitute on the inputs that are timed, checked where they are.

The bound is that of ``detmode verify``. The truth is ATen's own in float64 on the same device: the
references of the families are exact, and take minutes for inputs of this size. They are asked where
ATen has no kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
from compositions import COMPOSITIONS
from torch import Tensor
from torch.utils._pytree import tree_map_only

from detmode.process.arguments import signature_of
from detmode.process.torch_settings import deterministic_flag
from detmode.table.rule_table import resolve
from detmode.verify.cases import (
    Case,
    ClaimError,
    run_aten,
    run_substituted,
    samples_of,
    tensors_of,
    widened,
)
from detmode.verify.claims import check_truth, compare_errors


def check_accuracy(case: Case, device: str) -> None:
    """The floating results are as close to float64 as ATen's, by the bound of ``detmode verify``.

    Of what is assigned, the composition says which source wins.

    Args:
        case: the inputs, in its dtype.
        device: ``"cuda"`` or ``"host"``.

    Raises:
        ClaimError: they are not.
    """
    op = case.sample.op
    operator = resolve(op)
    arguments = case.sample.arguments(case.dtype, "cuda" if device == "cuda" else "cpu")
    wide = tree_map_only(Tensor, widened, arguments)
    magnitudes = tree_map_only(Tensor, _magnitude, wide)
    # The last source wins, unless they accumulate; ATen's kernel takes any on a GPU.
    assigns = op in samples_of(case.family).assignments and not arguments.get("accumulate")
    truly: Callable[..., Any] = COMPOSITIONS[op] if assigns else operator
    bind = signature_of(operator).bind
    try:
        with deterministic_flag(assigns):
            truth, scales = (tensors_of(truly(**bind((), each))) for each in (wide, magnitudes))
    except torch.OutOfMemoryError:
        raise  # inputs of that size are none for the exact references
    except (RuntimeError, NotImplementedError):
        check_truth(case, device)
        return
    ours = run_substituted(case.sample, case.dtype, device)
    aten = None if assigns else run_aten(case.sample, case.dtype, device)
    found = _difference(ours, aten, truth, scales)
    if found is not None:
        raise ClaimError(f"{case}: {found}")


def _difference(
    ours: tuple[Tensor, ...],
    aten: tuple[Tensor, ...] | None,
    truth: tuple[Tensor, ...],
    scales: tuple[Tensor, ...],
) -> str | None:
    """The first result that is not accurate; ``None`` if all are."""
    for place, (mine, true, scale) in enumerate(zip(ours, truth, scales)):
        if mine.shape != true.shape:
            return f"the result is {list(mine.shape)}, but the operator gives {list(true.shape)}"
        if mine.numel() and (mine.is_floating_point() or mine.is_complex()):
            theirs = None if aten is None else aten[place]
            _, error, allowed = compare_errors(mine, theirs, true, scale, of_each=False)
            if not error <= allowed:
                return f"the error against float64 is {error:.3g}, allowed is {allowed:.3g}"
    return None


def _magnitude(tensor: Tensor) -> Tensor:
    counts = tensor.is_floating_point() or tensor.is_complex()
    return tensor.abs().to(tensor.dtype) if counts else tensor
