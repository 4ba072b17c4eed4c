"""PyTorch's own sample inputs for every operator it tests, forward and backward, as if on CUDA."""

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from timing import tensors_of
from torch.utils._python_dispatch import BaseTorchDispatchMode

from detmode import DeterministicMode
from detmode.table.rule import Substitute
from detmode.table.rule_table import TORCH_VERSION
from detmode.verify.cases import widened
from detmode.verify.claims import same_bits
from tests.shared import needs, substituted
from tests.shared import table_facts as facts
from tests.shared.opinfo import SHARES, name_of, operators, run, samples_of, seed, share_of
from tests.shared.selection import PROFILE, SHARE
from tests.shared.substituted import LARGE, overloads

pytestmark = [needs.compiler, pytest.mark.usefixtures("cublas_workspace")]

DTYPES = (
    *(torch.float32, torch.complex64, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float64, torch.complex128, torch.bool, torch.uint8),
)[: PROFILE.operator_dtypes]

TIES = {("median", 1), ("nanmedian", 1), ("mode", 1), ("kthvalue", 1)}
"""Results that are indices: of equal elements the CPU may name another than the first."""

CANCELLED = {
    *(("index_reduce.prod", 3), ("index_reduce.prod", 4)),
    ("nn.functional.grid_sample", 4),
}
"""Second derivatives whose formulas in PyTorch subtract what is nearly equal: one rounding of the
product, or in 16 bits of a coordinate, is many of the result."""

NOT_WIDENED = {
    "nn.functional.linear_cross_entropy.chunked",
    "nn.functional.linear_cross_entropy.chunked_none",
}
"""Their options name the dtype of their sums, and they refuse another."""


PINNED = substituted.pinned()


def check(op: Any, sample: Any, dtype: torch.dtype, met: set[str]) -> str | None:
    """Run a sample under the mode: what is wrong with it. Adds what is substituted to ``met``."""
    mode = DeterministicMode(simulate="cuda")
    try:
        with mode:
            run(op, sample)
    except Exception as error:
        try:
            run(op, sample)
        except Exception:
            return None  # not for the CPU
        return f"raises {error}"
    met |= overloads(mode)
    if not overloads(mode):
        return None
    twice = True
    # Of some derivatives PyTorch has another formula for where a dispatch mode is active, which
    # overflows elsewhere.
    with BaseTorchDispatchMode():
        try:
            aten = run(op, sample, twice=True)
        except RuntimeError:
            # Some say that they have a second derivative, and have none.
            aten, twice = run(op, sample), False
    runs = []
    for schedule in (None, 1):
        with DeterministicMode(simulate="cuda", schedule_seed=schedule) as mode:
            runs.append(run(op, sample, twice=twice))
    same = all(same_bits(*pair) for pair in zip(*runs))
    if not same:
        return "gives other bits in another schedule"
    if name_of(op) in NOT_WIDENED:
        return None
    # Of the widest dtypes the truth is ATen's own result, and what roundings do to it is seen in
    # float32: a sum of logarithms or of nearly equal numbers loses more than a few of them.
    is_widest = dtype in (torch.float64, torch.complex128)
    with BaseTorchDispatchMode():
        other = run(op, sample.transform(narrow if is_widest else wide), twice=twice)
    tensors = [flat(each) for each in (runs[0], aten, other)]
    if len({len(each) for each in tensors}) > 1:
        return f"gives {len(tensors[0])} tensors, ATen {len(tensors[1])}"
    for number, (mine, theirs, others) in enumerate(zip(*tensors)):
        if (op.name, number) in TIES or (name_of(op), number) in CANCELLED:
            continue
        true, rounded = (theirs, others) if is_widest else (others, theirs)
        lost = largest_error(rounded, true)
        if is_widest:
            lost = 2.0**-29 * lost if math.isfinite(lost) else 0.0
        allowed, error = 2 * lost + 4 * rounding(mine, true), largest_error(mine, true)
        if mine.shape != theirs.shape or not error <= allowed:
            return f"gives tensor {number} with an error of {error:.3g}, not {allowed:.3g}"
        if are_lost(mine, true, rounded):
            return f"gives tensor {number} with elements that are not near ATen's"
    return None


def flat(results: tuple[list[torch.Tensor], list[torch.Tensor]]) -> list[torch.Tensor]:
    """Return results and gradients in one list, sparse ones as dense ones."""
    both = (*results[0], *results[1])
    return [each if each.layout is torch.strided else each.to_dense() for each in both]


def wide(value: Any) -> Any:
    """A dtype, or a tensor with a gradient where it had one, in float64 or complex128."""
    if not isinstance(value, torch.Tensor):
        is_dtype = isinstance(value, torch.dtype)
        return widened(torch.empty(0, dtype=value)).dtype if is_dtype else value
    return widened(value.detach()).requires_grad_(value.requires_grad)


def narrow(value: Any) -> Any:
    """A dtype, or a tensor with a gradient where it had one, in float32 or complex64."""
    narrower = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    if not isinstance(value, torch.Tensor):
        return narrower.get(value, value) if isinstance(value, torch.dtype) else value
    dtype = narrower.get(value.dtype, value.dtype)
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def largest_error(values: torch.Tensor, truth: torch.Tensor) -> float:
    """Of finite elements; infinite where others are not what they are in truth."""
    if not (values.is_floating_point() or values.is_complex()):
        return 0.0 if torch.equal(values, truth.to(values.dtype)) else math.inf
    mine = values.detach().to(truth.dtype)
    special = ~(torch.isfinite(mine) & torch.isfinite(truth))
    if not torch.equal(torch.isnan(mine) & special, torch.isnan(truth) & special):
        return math.inf
    errors = torch.where(special, 0, (mine - truth.detach()).abs())
    return errors.max().item() if errors.numel() else 0.0


def are_lost(values: torch.Tensor, truth: torch.Tensor, aten: torch.Tensor) -> bool:
    """Tell whether elements, however small, are far from the truth where ATen's are near it."""
    if not (values.is_floating_point() or values.is_complex()):
        return False
    mine, theirs, true = (each.detach().to(truth.dtype) for each in (values, aten, truth))
    limit = torch.finfo(values.dtype)
    near = (theirs - true).abs() <= true.abs() / 16
    near &= (true.abs() > limit.smallest_normal / limit.eps) & (true.abs() < limit.max)
    return bool((near & ~((mine - true).abs() <= true.abs() / 2)).any())


def rounding(values: torch.Tensor, truth: torch.Tensor) -> float:
    """Of the largest finite element."""
    if not (values.is_floating_point() or values.is_complex()) or not truth.numel():
        return 0.0
    largest = torch.where(torch.isfinite(truth), truth.detach().abs(), 0).max().item()
    return torch.finfo(values.dtype).eps * largest


def elements_of(sample: Any) -> int:
    inputs = tensors_of((sample.input, sample.args, sample.kwargs))
    return sum(each.numel() for each in inputs)


def chosen_samples(op: Any, dtype: torch.dtype) -> Iterator[tuple[int, Any]]:
    """The samples by number; large ones in one dtype, of which ``quick`` has an eighth each day."""
    large = SHARE
    for number, sample in enumerate(samples_of(op, dtype)):
        if elements_of(sample) > LARGE:
            if dtype != DTYPES[0]:
                continue
            large += 1
            if large % 8 and not PROFILE.thorough:
                seed(1)  # as a run does: the samples after it are the same with it and without
                continue
        yield number, sample


def failures_of(op: Any, dtype: torch.dtype) -> list[str]:
    """Run all samples of an operator, under the mode and by ATen's CPU kernels."""
    met: set[str] = set()
    with warnings.catch_warnings():
        # PyTorch's samples call what is deprecated.
        warnings.simplefilter("ignore")
        found = [
            (number, check(op, sample, dtype, met)) for number, sample in chosen_samples(op, dtype)
        ]
    texts = [f"sample {number} {text}" for number, text in found if text is not None]
    if dtype is torch.float32:
        texts += not_met(op, met)
    return texts


def not_met(op: Any, met: set[str]) -> list[str]:
    """Name what was substituted when the samples were last looked at, and is no more."""
    expected = {each for each in PINNED.get(name_of(op), "").split(",") if each}
    return [
        f"meets no {each}, which was substituted: a row is lost; if it is meant, "
        "`python tools/write_expected.py substituted` says so"
        for each in sorted(expected - met)
    ]


@pytest.mark.parametrize("share", range(SHARES))
def test_samples(share: int) -> None:
    """In strict mode no sample raises; substituted, it agrees with ATen, in any schedule."""
    failing = {
        named: failures
        for named, op, dtype in share_of(share, DTYPES)
        if (failures := failures_of(op, dtype))
    }
    texts = [f"{len(each)} samples of {name} fail: {each[0]}" for name, each in failing.items()]
    assert not failing, "\n".join([*texts, *map("to run it alone, add --case {}".format, failing)])


WITHOUT_SAMPLES = {
    "aten::_embedding_bag_dense_backward": "autograd calls the other one",
    "aten::resize": "it is substituted for quantized tensors only",
    "aten::_index_put_impl": "index_put comes as itself",
    "aten::_unsafe_index_put": "only compiled graphs call it",
    "aten::_upsample_bicubic2d_aa_backward": "PyTorch has none for its forward",
    "aten::adaptive_avg_pool3d_backward.grad_input": "autograd calls the functional one",
    "aten::cudnn_grid_sampler_backward": "it has no CPU kernel",
    **dict.fromkeys(
        ("aten::mm", "aten::addmm", "aten::mv", "aten::addmv", "aten::_sparse_addmm"),
        "it is substituted for a sparse matrix, and no sample has one",
    ),
    "aten::logcumsumexp": "it is substituted for one row, and no sample is one",
    **dict.fromkeys(
        (
            *("aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized"),
            *("aten::empty.memory_format", "aten::empty_like", "aten::empty_permuted"),
            *("aten::empty_quantized", "aten::empty_strided", "aten::new_empty"),
            *("aten::new_empty_strided", "aten::index_select", "aten::reflection_pad2d"),
            "aten::topk",
        ),
        "it is substituted for quantized tensors and dtypes of bits, and no sample has one",
    ),
}
"""Substituted operators that no sample of PyTorch's reaches, and why."""


@pytest.mark.thorough
# PyTorch's samples call what is deprecated.
@pytest.mark.filterwarnings("ignore")
def test_every_substitute_is_met() -> None:
    """PyTorch's samples reach every substitute."""
    missing = {
        row.rule.op
        for row in facts.rows()
        if isinstance(row.rule.action, Substitute)
        and row.rule.op.startswith("aten::")
        and row.rule.holds_for(TORCH_VERSION)
    } - set(WITHOUT_SAMPLES)
    for share in range(SHARES):
        for _, op, dtype in share_of(share, DTYPES[:3]) if missing else ():
            mode = DeterministicMode(simulate="cuda")
            for sample in samples_of(op, dtype):
                # Whether its result is right is another test's claim.
                with contextlib.suppress(Exception), mode:
                    run(op, sample)
            # In-place variants count for their operator.
            met = {name.partition(".")[0].removesuffix("_") for name in overloads(mode)}
            missing = {op for op in missing if op.partition(".")[0] not in met}
    assert sorted(missing) == []


def test_a_lost_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that the table no longer substitutes fails, though nothing raises."""
    (op,) = (each for each in operators() if name_of(each) == "index_add")
    assert failures_of(op, torch.float32) == []
    left_out = partial(DeterministicMode, overrides={"aten::index_add": "allow"})
    monkeypatch.setattr(sys.modules[__name__], "DeterministicMode", left_out)
    if PINNED:
        assert "meets no aten::index_add" in failures_of(op, torch.float32)[0]


def test_a_lost_element_is_found() -> None:
    """However small it is beside another, and an infinity where there is none."""
    true = torch.tensor([1e6, 1e-3, 0.0], dtype=torch.float64)
    aten = true.float()
    assert not are_lost(aten.clone(), true, aten)
    for place, value in ((1, 0.0), (1, -1e-3), (0, torch.inf), (1, torch.nan)):
        mine = aten.clone()
        mine[place] = value
        assert are_lost(mine, true, aten)
