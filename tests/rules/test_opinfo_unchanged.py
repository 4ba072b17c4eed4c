"""PyTorch's own sample inputs for every operator it tests: on the CPU a mode changes no bit."""

from contextlib import AbstractContextManager, nullcontext
from itertools import islice, product
from typing import Any

import pytest
import torch

from detmode import DeterministicMode
from detmode.mode.overload_info import is_elementwise
from detmode.verify.claims import same_bits
from tests.shared.opinfo import SHARES, name_of, operators, run, samples_of, share_of
from tests.shared.selection import PROFILE

UNWRITTEN = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
"""Memory that nobody has written: the flag has it filled.

So are the pivots that ``linalg.lstsq`` by "gelsy" reads.
"""

_VECTORS = "under any mode PyTorch computes the vectors too, for a backward (isTensorSubclassLike)"
_OUT_OF_PLACE = "under any mode PyTorch's backward is the one for subclasses (isTensorSubclassLike)"
_FOLDED = "under any mode PyTorch makes one product of matrices of a batch with one matrix"
ROUNDED = {
    "linalg.cond": _VECTORS,
    "linalg.eigvalsh": _VECTORS,
    "linalg.matrix_norm": _VECTORS,
    "linalg.norm": _VECTORS,
    "linalg.svdvals": _VECTORS,
    "norm.nuc": _VECTORS,
    "__rmatmul__": _FOLDED,
    "matmul": _FOLDED,
    "cumprod": _OUT_OF_PLACE,
    "linalg.vander": _OUT_OF_PLACE,
    "masked.cumprod": _OUT_OF_PLACE,
    "masked.prod": _OUT_OF_PLACE,
    "max.reduction_no_dim": _OUT_OF_PLACE,
    "median": _OUT_OF_PLACE,
    "min.reduction_no_dim": _OUT_OF_PLACE,
    "nanmedian": _OUT_OF_PLACE,
    "ormqr": _OUT_OF_PLACE,
    "prod": _OUT_OF_PLACE,
}
"""Operators that PyTorch computes otherwise once any mode is there, and why: it may round, sign
a zero, or lay out a gradient otherwise."""


def outcome(op: Any, sample: Any, mode: AbstractContextManager[object]) -> Any:
    """Results and gradients, or the error, as text."""
    try:
        with mode:
            results, gradients = run(op, sample)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [*results, *gradients]


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.layout, tensor.shape, strides, tensor.is_conj(), tensor.is_neg()


def equal(given: Any, expected: Any, *, rounded: bool) -> bool:
    if isinstance(given, str) or isinstance(expected, str):
        return bool(given == expected)
    if rounded:
        try:
            torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        except AssertionError:
            return False
        return True
    return same_bits(given, expected) and list(map(form, given)) == list(map(form, expected))


def detached(tree: Any) -> Any:
    return tree.detach().clone() if isinstance(tree, torch.Tensor) else tree


# PyTorch's samples call what is deprecated.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", range(SHARES))
def test_a_mode_changes_no_bit(share: int) -> None:
    """Results, gradients and errors of calls that a mode lets pass are those without it."""
    changed = []
    for name, op, dtype in share_of(share, (torch.float32, torch.complex64)):
        for position, sample in enumerate(islice(samples_of(op, dtype), PROFILE.operator_samples)):
            for inference in (False, True):
                with torch.inference_mode(inference):
                    each = sample.transform(detached) if inference else sample
                    given = outcome(op, each, DeterministicMode())
                    unwritten = op.name in UNWRITTEN or sample.kwargs.get("driver") == "gelsy"
                    # What varies without a mode, as LAPACK may by where its buffers lie, varies.
                    agrees = unwritten or any(
                        equal(
                            given, outcome(op, each, nullcontext()), rounded=name_of(op) in ROUNDED
                        )
                        for _ in range(10)
                    )
                if not agrees:
                    where = "in inference mode" if inference else ""
                    changed.append(f"--case {name}: sample {position} {where}")
    assert not changed, "\n".join(changed)


def test_elementwise_kernels_make_no_views() -> None:
    """A mode resolves none for them: of complex numbers, and of views, they give the same."""
    checked, mode = set(), DeterministicMode()
    for op in operators():
        packet = getattr(torch.ops.aten, op.aten_name, None)
        if torch.complex64 not in op.dtypes or packet is None:
            continue
        if not any(is_elementwise(getattr(packet, name)) for name in packet.overloads()):
            continue
        calls = product((op, op.inplace_variant), (torch.clone, torch.conj))
        for (call, view), sample in product(calls, samples_of(op, torch.complex64)):
            if call is None or (call is not op and sample.broadcasts_input):
                continue

            def run(call: Any = call, view: Any = view, sample: Any = sample) -> Any:
                arguments = [
                    view(value.clone()) if isinstance(value, torch.Tensor) else value
                    for value in (sample.input, *sample.args)
                ]
                with torch.no_grad():
                    return call(*arguments, **sample.kwargs)

            try:
                expected = run()
            except RuntimeError:
                continue  # a result that is real, in place
            with mode:
                run()  # whose operators are known from now on
                given = run()
            torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)
            checked.add((op.aten_name, call is op))
    assert len(checked) > 80
