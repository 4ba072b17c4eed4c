"""Checks of the rule table's claims on one case: bits, accuracy, special values, refusals.

``detmode verify`` and the tests call the same functions. On the host the CUDA kernels run on
the host runner, each time with a different schedule of blocks and threads. On a GPU every second
run uses a separate stream while the current one is under load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from detmode.bits import difference
from detmode.bits.tensors import dtype_and_shape
from detmode.cuda import host
from detmode.mode.deterministic_mode import DeterministicMode
from detmode.process.torch_settings import deterministic_flag
from detmode.table.rule_table import resolve
from detmode.table.samples import Sample
from detmode.verify.cases import (
    Case,
    ClaimError,
    call,
    has_reference,
    name_of,
    prepared,
    run_assigned,
    run_each_aten,
    run_substituted,
    run_truth,
    samples_of,
    stored,
    tensors_of,
)

FACTOR = 2.0
"""An error may be this many times ATen's own ..."""
ROUNDINGS = 1.0
"""... plus this many roundings of the dtype, both relative to the sum of the magnitudes of an
element's addends."""
ROUNDINGS_OF_REFERENCE = 16.0
"""The same for float64 and complex128, where the reference is no more accurate than ATen."""


class NotCheckedError(Exception):
    """A claim that cannot be checked here, which is neither a pass nor a failure; says why."""


@dataclass(frozen=True)
class _Errors:
    """Largest errors against float64 of the substitute and of the ATen kernel in the same dtype.

    ``aten`` is ``None`` if ATen has no kernel for the dtype on the device of the comparison.
    """

    ours: float
    aten: float | None

    @property
    def ratio(self) -> float | None:
        """``ours / aten``; ``None`` if ATen's error is zero or unknown."""
        if self.aten is None or self.aten == 0.0:
            return None
        return self.ours / self.aten


def check_bits(case: Case, device: str = "host", repeats: int = 20) -> None:
    """Check that ``repeats`` runs give the same bytes, dtypes and shapes.

    Raises:
        ClaimError: they do not.
    """
    first = _run_number(0, case, device)
    for number in range(1, repeats):
        if not same_bits(_run_number(number, case, device), first):
            what = f"schedule seed {number}" if device == "host" else f"run {number}"
            raise ClaimError(
                f"{case}: {what} gave different bits from the first; a result in "
                f"detmode/rules/{case.family} depends on the order of threads"
            )


def check_races(case: Case) -> None:
    """Check that the host runner finds no data race, in program order.

    A race could change bits on a GPU even if no schedule on the host changes them.

    Raises:
        ClaimError: there is a race.
    """
    try:
        with host.check_races():
            run_substituted(case.sample, case.dtype)
    except host.LaunchError as error:
        raise ClaimError(f"{case}: {error}") from error


def _run_number(number: int, case: Case, device: str) -> tuple[torch.Tensor, ...]:
    if device != "cuda":
        # Run 0 is program order.
        return run_substituted(case.sample, case.dtype, schedule_seed=number if number else None)
    if number % 2 == 0:
        return run_substituted(case.sample, case.dtype, device)
    load = torch.ones(1024, 1024, device="cuda")
    for _ in range(8):
        load = load @ load
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        results = run_substituted(case.sample, case.dtype, device)
    stream.synchronize()
    return results


def same_bits(ours: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Return whether dtypes, shapes and bytes are the same; 0.0 and -0.0 differ."""
    return len(ours) == len(others) and all(map(difference.same_bits, ours, others))


def check_truth(case: Case, device: str = "host") -> _Errors:
    """Check that no element's error is more than :data:`FACTOR` times ATen's, plus roundings.

    Errors are those against float64, relative to the magnitudes of an element's own addends.

    Integers must equal those of the family's reference or, without one, ATen's. Assignments must
    equal the last source of each destination. Dtypes, shapes and strides must be those of the
    operator.

    Raises:
        ClaimError: they are not.
    """
    ours = run_substituted(case.sample, case.dtype, device)
    assigned = run_assigned(case.family, case.sample, case.dtype)
    if assigned is not None:
        _check_form(case, ours, (assigned,), (assigned,))
        check_last_stays(case, ours, assigned)
        return _Errors(0.0, None)
    references = run_each_aten(case.sample, case.dtype, device)
    aten = references[0] if references else None
    truth = run_truth(case.family, case.sample, case.dtype)
    magnitudes = run_truth(case.family, prepared(case.sample, _take_magnitudes), case.dtype)
    of_each = case.sample.op not in samples_of(case.family).unlike_magnitudes
    _check_form(case, ours, aten, truth)
    worst = _Errors(0.0, None if aten is None else 0.0)
    for position, (mine, true, magnitude) in enumerate(zip(ours, truth, magnitudes)):
        mine = mine.detach().cpu()
        theirs = None if aten is None else aten[position]
        if _counts(mine) and has_reference(case):
            # The family's reference decides: ATen's CPU kernel may choose another index among
            # equal values.
            theirs = None
        what = special_difference(mine, *(reference[position] for reference in references))
        if what is not None:
            raise ClaimError(f"{case}: {what}; see detmode/rules/{case.family}/kernels.cu")
        errors, error, allowed = compare_errors(mine, theirs, true, magnitude, of_each=of_each)
        if not error <= allowed:
            beside = "" if errors.aten is None else f", ATen's largest is {errors.aten:.3g}"
            raise ClaimError(
                f"{case}: the error against float64 is {error:.3g}{beside}; at most "
                f"{allowed:.3g} is allowed; check the order and the dtype of the additions in "
                f"detmode/rules/{case.family}"
            )
        largest_of_aten = difference.largest_of(worst.aten, errors.aten)
        worst = _Errors(max(worst.ours, errors.ours), largest_of_aten)
    return worst


def check_last_stays(
    case: Case, ours: Sequence[torch.Tensor], assigned: torch.Tensor, inputs: str = ""
) -> None:
    """Check that an assignment gives ``assigned``, bit for bit; on a GPU, ATen may keep any source.

    Raises:
        ClaimError: it does not.
    """
    if not same_bits([result.cpu() for result in ours], [assigned]):
        raise ClaimError(
            f"{case}:{inputs} a destination does not keep the bits of its last source; see how "
            f"detmode/rules/{case.family}/launch.py finds the last sources"
        )


def _check_form(
    case: Case,
    ours: Sequence[torch.Tensor],
    aten: Sequence[torch.Tensor] | None,
    truth: Sequence[torch.Tensor],
) -> None:
    if len(ours) != len(truth):
        raise ClaimError(f"{case}: {len(ours)} results, but the operator returns {len(truth)}")
    like = _meta_results(case) or aten or ()
    for mine, expected in zip(ours, like):
        if mine.dtype != expected.dtype or mine.shape != expected.shape:
            wrong, right = dtype_and_shape(mine), dtype_and_shape(expected)
            raise ClaimError(
                f"{case}: the result is {wrong}, but the operator returns {right}; "
                f"see what detmode/rules/{case.family}/launch.py allocates"
            )
        if mine.numel() > 1 and _strides(mine) != _strides(expected):
            raise ClaimError(
                f"{case}: the result's strides are {mine.stride()}, but the operator's are "
                f"{expected.stride()} for shape {tuple(mine.shape)}; allocate with its "
                f"memory_format in detmode/rules/{case.family}/launch.py"
            )


def _meta_results(case: Case) -> tuple[torch.Tensor, ...] | None:
    """Return meta results by PyTorch's shape rules; ``None`` if there are none."""
    arguments = case.sample.arguments(case.dtype)
    if any(tensor.layout is not torch.strided for tensor in tensors_of(tuple(arguments.values()))):
        return None
    arguments = tree_map_only(torch.Tensor, _to_meta, arguments)
    try:
        with deterministic_flag(False):
            return tensors_of(call(case.sample, arguments))
    except (RuntimeError, NotImplementedError):
        return None


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _strides(tensor: torch.Tensor) -> list[int]:
    # The stride of a dimension of size 1 is arbitrary.
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size != 1]


_FACTORS = ("alpha", "beta")
"""Numbers by which operators multiply addends."""


def _take_magnitudes(arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if name in _FACTORS and value is not None:
            arguments[name] = abs(value)
        elif not isinstance(value, torch.Tensor) or _counts(value):
            continue
        elif value.layout is torch.strided:
            arguments[name] = value.abs().to(value.dtype)
        else:
            # Not of the sums of entries that share a place.
            stored(value).copy_(stored(value).abs())


def compare_errors(
    ours: torch.Tensor,
    aten: torch.Tensor | None,
    truth: torch.Tensor,
    magnitude: torch.Tensor,
    *,
    of_each: bool,
) -> tuple[_Errors, float, float]:
    """Compare the errors of finite elements with what is allowed.

    An element may err by as large a part of its own addends' magnitudes as ATen's worst one, so
    that a small element cannot be lost beside a large one.

    Args:
        ours: the result of a substitute.
        aten: ATen's in the same dtype, if it has a kernel.
        truth: in float64 or complex128.
        magnitude: the sum of the magnitudes of an element's addends, in float64 or complex128.
        of_each: whether ``magnitude`` tells that of each element; else the largest counts for all.

    Returns:
        The largest errors, and of the element that errs most in comparison with what it may its
        error and what is allowed. All tensors are on one device.
    """
    if _counts(ours):
        expected = truth if aten is None else aten
        wrong = 0.0 if torch.equal(ours, expected.to(ours.dtype)) else math.inf
        return _Errors(wrong, None), wrong, 0.0
    wide = torch.complex128 if ours.is_complex() else torch.float64
    limit = torch.finfo(ours.dtype)
    finite = torch.isfinite(truth) & (truth.abs() <= limit.max)
    if aten is not None:
        # Where ATen overflows in an intermediate value, a substitute may, but need not.
        finite &= torch.isfinite(aten) | torch.isfinite(ours)

    def errors_of(result: torch.Tensor, compared: torch.Tensor) -> torch.Tensor:
        return torch.where(compared, result.to(wide) - truth.to(wide), 0).abs()

    errors = errors_of(ours, finite)
    of_aten = None if aten is None else errors_of(aten, finite & torch.isfinite(aten))
    scale = torch.where(torch.isfinite(magnitude), magnitude.abs(), 0)
    scale = torch.maximum(scale, torch.where(finite, truth, 0).abs()).double()
    if not of_each:
        scale = torch.full_like(scale, _largest(scale))
    roundings = ROUNDINGS_OF_REFERENCE if limit.bits == 64 else ROUNDINGS
    share = roundings * limit.eps
    if of_aten is not None:
        share += FACTOR * _largest(of_aten / scale.clamp(min=limit.smallest_normal))
    allowed = share * scale + limit.smallest_normal * limit.eps
    largest = _Errors(_largest(errors), None if of_aten is None else _largest(of_aten))
    if not errors.numel():
        return largest, 0.0, 0.0
    worst = (errors / allowed).nan_to_num(math.inf).argmax()
    return largest, float(errors.reshape(-1)[worst]), float(allowed.reshape(-1)[worst])


def _counts(tensor: torch.Tensor) -> bool:
    """Return whether the tensor holds integers or bools, which must be exact."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def _largest(values: torch.Tensor) -> float:
    if values.numel() == 0:
        return 0.0
    largest = float(values.max())
    return math.inf if math.isnan(largest) else largest


def special_difference(
    ours: torch.Tensor, *references: torch.Tensor, zeros: bool = False
) -> str | None:
    """Describe where NaNs, infinities or, if asked, signs of zeros are those of no reference.

    For complex numbers only NaNs are compared, in either part.

    Args:
        ours: the result of a substitute.
        references: ATen's results, of its kernel on the device first.
        zeros: whether signs of zeros are compared.

    Returns:
        The first difference; ``None`` if there is none, or no reference.
    """
    if _counts(ours) or not references:
        return None
    for what, differs in zip(
        _DIFFERENCES, zip(*(_differs(ours, reference, zeros) for reference in references))
    ):
        everywhere = torch.stack(differs).all(0).reshape(-1)
        if everywhere.any():
            place = int(everywhere.nonzero()[0])
            mine, theirs = (tensor.reshape(-1)[place].item() for tensor in (ours, references[0]))
            return f"{what} at element {place}: {mine} where ATen gives {theirs}"
    return None


_DIFFERENCES = ("NaN differs", "an infinity differs", "the sign of a zero differs")


def _differs(ours: torch.Tensor, aten: torch.Tensor, zeros: bool) -> list[torch.Tensor]:
    """Elements that differ, for each of ``_DIFFERENCES``; the first alone for complex numbers."""
    masks = [torch.isnan(ours) != torch.isnan(aten)]
    if not ours.is_complex():
        # Where ATen overflows in an intermediate value, a substitute need not.
        masks.append(torch.isinf(ours) & (ours != aten))
        signs = torch.signbit(ours) != torch.signbit(aten)
        masks.append(zeros & (ours == 0) & (aten == 0) & signs)
    return masks


def check_refused(family: str, sample: Sample, dtype: torch.dtype) -> None:
    """Check that inputs that ATen rejects are rejected with the same type of exception.

    Raises:
        ClaimError: the substitute accepts them, or raises another type; or ATen accepts them.
        NotCheckedError: no loaded library has the operator.
    """
    if resolve(sample.op) is None:
        raise NotCheckedError(f"no loaded library has {sample.op}")
    what = f"{family}-{name_of(dtype)}-{sample.op.partition('::')[2]}-{sample.name}"
    expected = _exception(sample, dtype, nullcontext())
    if expected is None:
        raise ClaimError(
            f"{what}: ATen accepts these inputs; move the sample from errors to cases in "
            f"detmode/rules/{family}/samples.py"
        )
    got = _exception(sample, dtype, DeterministicMode(simulate="cuda"))
    if type(got) is not type(expected):
        seen = "nothing" if got is None else f"{type(got).__name__} ({got})"
        raise ClaimError(
            f"{what}: ATen raises {type(expected).__name__} ({str(expected)[:120]}), the "
            f"substitute raises {seen}; check it in detmode/rules/{family}/launch.py"
        )


def _exception(
    sample: Sample, dtype: torch.dtype, context: AbstractContextManager[object]
) -> Exception | None:
    try:
        with deterministic_flag(False), context:
            call(sample, sample.arguments(dtype))
    except Exception as error:
        return error
    return None
