"""Special values: NaN, infinities, signs of zeros and denormals, put into samples and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from detmode.cuda.elements import once
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.verify.cases import (
    Case,
    ClaimError,
    in_float32,
    prepared,
    run_assigned,
    run_aten,
    run_each_aten,
    run_substituted,
    run_truth,
    samples_of,
    stored,
    tensors_of,
)
from detmode.verify.claims import NotCheckedError, check_last_stays, special_difference

Plant = Callable[[torch.Tensor, torch.Generator], None]
"""Puts special values into a tensor."""


def _plant(*values: float) -> Plant:
    def plant(tensor: torch.Tensor, generator: torch.Generator) -> None:
        places = torch.randperm(tensor.numel(), generator=generator, device="cpu")[
            : len(values)
        ].tolist()
        for place, value in zip(places, values):
            _element(tensor, place).fill_(value)

    return plant


def _element(tensor: torch.Tensor, place: int) -> torch.Tensor:
    for size in reversed(tensor.shape):
        # From the last dimension on, so that the rest of `place` counts the dimensions before it.
        place, index = divmod(place, size)
        tensor = tensor.select(tensor.dim() - 1, index)
    return tensor


def _negative_zeros(tensor: torch.Tensor, generator: torch.Generator) -> None:
    once(tensor).fill_(-0.0)  # PyTorch does not write to elements that share memory


def _denormals(tensor: torch.Tensor, generator: torch.Generator) -> None:
    # In the upper half of their range, so that their own rounding is relatively small.
    normal = torch.finfo(tensor.dtype).smallest_normal
    elements = once(tensor)
    parts = 0.5 + 0.5 * torch.rand(
        elements.shape, generator=generator, dtype=torch.float64, device="cpu"
    )
    elements.copy_(parts * normal)


def _nan_in(part: str) -> Plant:
    plant = _plant(math.nan)
    return lambda tensor, generator: plant(getattr(tensor, part), generator)


SPECIAL_VALUES: Mapping[str, Plant] = {
    "nan": _plant(math.nan),
    "infinities": _plant(math.inf, -math.inf),
    "negative_zeros": _negative_zeros,
    "denormals": _denormals,
}
"""The values put into every floating-point tensor of a sample, by name."""
COMPLEX_VALUES: Mapping[str, Plant] = {
    "nan_in_real_part": _nan_in("real"),
    "nan_in_imaginary_part": _nan_in("imag"),
}
"""The same for complex tensors. Signs of zeros, and whether products of infinities are NaN, depend
on intermediate terms and so on the order of the factors."""
_NOT_FINITE = ("nan", "infinities")


def values_for(dtype: torch.dtype) -> Mapping[str, Plant]:
    """Return the values that :func:`check_special_values` puts into tensors of ``dtype``."""
    if dtype.is_complex:
        return COMPLEX_VALUES
    return SPECIAL_VALUES if dtype.is_floating_point else {}


def check_special_values(case: Case, value: str, device: str = "host") -> None:
    """Check that NaN, infinities, signs of zeros and denormals match ATen, or are refused alike.

    An assignment must move them bit for bit.

    Args:
        case: the case to run.
        value: one of :func:`values_for` of the case's dtype.
        device: ``"cuda"`` or ``"host"``.

    Raises:
        ClaimError: they do not.
        NotCheckedError: on the host, the family names the sample in ``unlike_cpu``, because ATen's
            CUDA kernel treats NaN and infinities differently from its CPU kernel; or no tensor of
            the sample can hold them.
    """
    reasons = samples_of(case.family).unlike_cpu
    unlike_cpu = value in _NOT_FINITE and case.sample.name in reasons
    if device == "host" and unlike_cpu:
        raise NotCheckedError(reasons[case.sample.name])
    planted = 0

    def prepare(arguments: dict[str, Any]) -> None:
        nonlocal planted
        generator = torch.Generator().manual_seed(0)
        for argument in tensors_of(tuple(arguments.values())):
            elements = stored(argument)
            plant = values_for(argument.dtype).get(value)
            if plant is not None and elements.numel():
                plant(elements, generator)
                planted += 1

    case = replace(case, sample=prepared(case.sample, prepare))
    case.sample.arguments(case.dtype)
    if not planted:
        raise NotCheckedError("no argument of the dtype has elements")
    assigned = run_assigned(case.family, case.sample, case.dtype)
    if assigned is not None:
        ours = run_substituted(case.sample, case.dtype, device)
        check_last_stays(case, ours, assigned, f" with {value},")
        return
    try:
        # Some CPU kernels read beyond their input then, and end the process.
        references = run_each_aten(case.sample, case.dtype, device, on_cpu=not unlike_cpu)
    except (RuntimeError, ValueError) as error:
        _check_refused(case, value, device, error)
        return
    ours = run_substituted(case.sample, case.dtype, device)
    truth = run_truth(case.family, case.sample, case.dtype)
    if not references:
        references = (_of_another_dtype(case, ours, truth),)
    elif device == "cuda":
        # cuDNN has its own ideas of NaN.
        references = (*references, truth)
    for mine, true, *theirs in zip(ours, truth, *references):
        if mine.dtype not in (*FLOATING, *COMPLEX):
            continue
        mine = mine.detach().cpu()
        what = special_difference(mine, *theirs, zeros=value == "negative_zeros")
        # ATen may overflow where a substitute does not, but a truly infinite result stays infinite.
        infinite = torch.isinf(true) & torch.stack([torch.isinf(aten) for aten in theirs]).all(0)
        if what is None and not mine.is_complex() and bool((infinite & (mine != true)).any()):
            what = "an infinity is lost"
        if what is None and value == "denormals" and _are_lost(mine, true):
            what = None if any(_are_lost(aten, true) for aten in theirs) else "results are lost"
        if what is not None:
            raise ClaimError(
                f"{case}: with {value}, {what}; see how detmode/rules/{case.family}/kernels.cu "
                "begins its sums and which terms it leaves out"
            )


def _of_another_dtype(
    case: Case, ours: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return what stands for ATen's results where it has no kernel for the dtype.

    In 16 bits its own are computed in float32 too.
    """
    results = run_aten(in_float32(case.sample), case.dtype) if case.dtype.itemsize == 2 else None
    return tuple(result.to(mine.dtype) for mine, result in zip(ours, results or truth))


def _check_refused(case: Case, value: str, device: str, expected: Exception) -> None:
    """Check that inputs that ATen rejects, such as an infinite range, raise the same type."""
    try:
        run_substituted(case.sample, case.dtype, device)
    except type(expected):
        return
    raise ClaimError(
        f"{case}: with {value}, ATen raises {type(expected).__name__} ({str(expected)[:120]}), the "
        f"substitute accepts them; check it in detmode/rules/{case.family}/launch.py"
    )


def _are_lost(ours: torch.Tensor, truth: torch.Tensor) -> bool:
    """Return whether small results were flushed to zero; mere rounding errs by far less."""
    if truth.numel() == 0:
        return False
    limit = torch.finfo(ours.dtype)
    error, largest = float((ours.double() - truth).abs().max()), float(truth.abs().max())
    return error > 0.1 * largest + 2 * limit.smallest_normal * limit.eps
