"""The checks of `detmode verify` find what they are there to find."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from detmode import GPU_TO_GPU, cuda
from detmode.process.arguments import Signature
from detmode.table.rule_table import resolve
from detmode.table.samples import Sample
from detmode.verify import claims, special_values
from detmode.verify.cases import (
    Case,
    cases,
    last_stays,
    run_assigned,
    run_aten,
    run_substituted,
    samples_of,
)
from detmode.verify.claims import (
    ClaimError,
    NotCheckedError,
    check_bits,
    check_races,
    check_refused,
    check_truth,
    same_bits,
    special_difference,
)
from detmode.verify.special_values import check_special_values
from tests.shared import needs

# A case of the family `scatter` in name only: what "the substitute" gives is set by each test.
SAMPLE = Sample(
    name="sums", op="aten::cumsum", make=lambda make: {"self": make.normal(3, 40), "dim": 1}
)
CASE = Case("scatter", SAMPLE, torch.float32, GPU_TO_GPU)


Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def substitute(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Let the substitute give ATen's result, changed."""

    def install(change: Change) -> None:
        def run(sample: Sample, dtype: torch.dtype, device: str = "host", **options: Any) -> Any:
            (result,) = run_aten(sample, dtype) or ()
            if options.get("schedule_seed") != 3:
                result = change(result)
            return (result,)

        monkeypatch.setattr(claims, "run_substituted", run)
        monkeypatch.setattr(special_values, "run_substituted", run)

    return install


def test_atens_own_result_passes(substitute: Callable[[Change], None]) -> None:
    """The checks do not cry wolf."""
    substitute(lambda result: result)
    check_bits(CASE)
    check_truth(CASE)
    for value in special_values.SPECIAL_VALUES:
        check_special_values(CASE, value)


def test_one_schedule_with_other_bits_is_found(substitute: Callable[[Change], None]) -> None:
    """One element, one unit in the last place, for one seed of twenty."""

    def change(result: torch.Tensor) -> torch.Tensor:
        result[1, 7] = torch.nextafter(result[1, 7], torch.tensor(torch.inf))
        return result

    substitute(change)
    with pytest.raises(ClaimError, match="scatter-float32-cumsum-sums: schedule seed 3 gave"):
        check_bits(CASE)


@needs.compiler
def test_a_race_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two threads write the same value: no schedule changes the bits, and still it is a race."""
    (tmp_path / "race.cu").write_text(
        '#include "types.cuh"\n__global__ void race(float* output) { output[0] = 1.0f; }\n'
    )
    source = cuda.Source(str(tmp_path / "launch.py"), "race.cu", entries=("race",))

    def run(sample: Sample, dtype: torch.dtype, *rest: Any, **options: Any) -> Any:
        output = torch.zeros(1)
        cuda.launch_blocks(source, "race", 1, 2, output=output)
        return (output,)

    monkeypatch.setattr(claims, "run_substituted", run)
    check_bits(CASE)
    with pytest.raises(ClaimError, match="scatter-float32-cumsum-sums: race.cu: race: data race"):
        check_races(CASE)


@pytest.mark.parametrize(
    ("value", "change", "words"),
    [
        (None, lambda result: result * (1 + 1e-5), "the error against float64"),
        (None, lambda result: result.double(), r"the result is float64\[3, 40\]"),
        (None, lambda result: result[:, :-1], r"the result is float32\[3, 39\]"),
        (None, lambda result: result.t().contiguous().t(), "strides"),
        (None, lambda result: result.index_fill(0, torch.tensor(1), torch.nan), "NaN differs"),
        ("nan", torch.nan_to_num, "NaN differs"),
        ("infinities", lambda result: result.clamp(-1e9, 1e9), "an infinity is lost"),
        ("infinities", lambda result: -result, "an infinity differs"),
        ("negative_zeros", lambda result: -result, "the sign of a zero differs"),
        ("denormals", torch.zeros_like, "results are lost"),
    ],
)
def test_wrong_results_are_found(
    substitute: Callable[[Change], None], value: str | None, change: Change, words: str
) -> None:
    """Errors, dtypes, shapes, strides and NaNs from nowhere.

    Of special values, a NaN swallowed, infinities lost or turned, a sign turned, denormals flushed.
    """
    substitute(change)
    with pytest.raises(ClaimError, match=words):
        check_truth(CASE) if value is None else check_special_values(CASE, value)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_small_element_is_not_lost_beside_a_large_one(
    substitute: Callable[[Change], None], lost: int
) -> None:
    """An element's error is compared with its own addends, not with another's."""
    scales = torch.tensor([[1e6], [1.0], [1e-3]])
    sample = replace(SAMPLE, make=lambda make: {"self": make.normal(3, 40) * scales, "dim": 1})
    substitute(lambda result: result)
    check_truth(replace(CASE, sample=sample))
    substitute(lambda result: result.index_fill(0, torch.tensor(lost), 0.0))
    with pytest.raises(ClaimError, match="the error against float64"):
        check_truth(replace(CASE, sample=sample))


@pytest.mark.parametrize("first", [True, False], ids=["the family's", "ATen's"])
def test_the_families_reference_says_which_integers(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Of equal values a family's rule may be another index than that of ATen's CPU kernel."""
    sample = Sample(
        name="ties",
        op="aten::median.dim",
        make=lambda make: {"self": torch.ones(2, 9, dtype=make.dtype), "dim": 1},
    )
    case = Case("order_statistics", sample, torch.float32, GPU_TO_GPU)
    indices = torch.zeros(2, dtype=torch.int64) if first else torch.ones(2, 9).median(1).indices
    results = (torch.ones(2), indices)
    monkeypatch.setattr(claims, "run_substituted", lambda *arguments: results)
    if first:
        check_truth(case)
    else:
        with pytest.raises(ClaimError, match="the error against float64 is inf"):
            check_truth(case)


ASSIGNED = {
    case.sample.op: case
    for case in reversed(cases())
    if "collisions" in case.sample.covers
    and run_assigned(case.family, case.sample, case.dtype) is not None
}


def first_stays(family: str, sample: Sample, dtype: torch.dtype) -> tuple[torch.Tensor]:
    """The result where of several sources the first one stays."""
    places = samples_of(family).assignments[sample.op]
    given = Signature(resolve(sample.op)).bind((), sample.arguments(dtype))
    before, to, source = places(**given)
    return (last_stays(before, to.flatten().flip(0), source.flatten().flip(0)),)


@pytest.mark.parametrize("op", ASSIGNED)
@needs.compiler
def test_another_winner_than_the_last_source_is_found(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ATen lets the first source stay, as its CUDA kernels may, and ours is right."""
    case = ASSIGNED[op]
    wrong = first_stays(case.family, case.sample, case.dtype)
    for module in (claims, special_values):
        monkeypatch.setattr(module, "run_each_aten", lambda *_, **__: (wrong,))
    check_truth(case)

    def run(sample: Sample, dtype: torch.dtype, *rest: Any, **options: Any) -> Any:
        return first_stays(case.family, sample, dtype)

    for module in (claims, special_values):
        monkeypatch.setattr(module, "run_substituted", run)
    with pytest.raises(ClaimError, match="does not keep the bits of its last source"):
        check_truth(case)
    if case.dtype.is_floating_point:
        with pytest.raises(ClaimError, match="with nan, a destination does not keep"):
            check_special_values(case, "nan")


@pytest.mark.parametrize("part", ["real", "imaginary"])
def test_a_nan_in_one_part_of_a_complex_number_is_looked_for(
    substitute: Callable[[Change], None], part: str
) -> None:
    """A check that looks at the other part alone does not see it."""
    other = {"real": "imag", "imaginary": "real"}[part]

    def change(result: torch.Tensor) -> torch.Tensor:
        return torch.where(getattr(result, other).isnan(), result, torch.nan_to_num(result))

    substitute(change)
    with pytest.raises(ClaimError, match="NaN differs at element"):
        check_special_values(
            Case("scatter", SAMPLE, torch.complex64, GPU_TO_GPU), f"nan_in_{part}_part"
        )


@pytest.mark.parametrize(
    ("family", "name", "dtype", "reason"),
    [
        ("ctc_loss", "large", torch.float32, "ATen's CUDA kernels leave classes"),
        ("put", "empty_last", torch.float32, "no argument of the dtype has elements"),
    ],
)
def test_what_cannot_be_checked_is_no_pass(
    family: str, name: str, dtype: torch.dtype, reason: str
) -> None:
    """A claim that is neither kept nor broken here says why; a plain return would say it holds."""
    (sample,) = (each for each in samples_of(family).cases if each.name == name)
    with pytest.raises(NotCheckedError, match=reason):
        check_special_values(Case(family, sample, dtype, GPU_TO_GPU), "nan")


def test_a_dtype_that_aten_lacks_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against ATen's results in float32: a NaN that is swallowed is found."""
    (sample,) = (each for each in samples_of("avg_pool3d").cases if each.name == "overlap")
    case = Case("avg_pool3d", sample, torch.float16, GPU_TO_GPU)
    assert run_aten(sample, torch.float16) is None
    check_special_values(case, "nan")

    def run(*given: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        return tuple(each.nan_to_num() for each in run_substituted(*given, **options))

    monkeypatch.setattr(special_values, "run_substituted", run)
    with pytest.raises(ClaimError, match="NaN differs"):
        check_special_values(case, "nan")


def test_special_values_that_aten_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that is not finite must be refused by the substitute too, and with the same type."""
    histogram = Sample(
        name="no_range", op="aten::histc", make=lambda make: {"self": make.normal(9), "bins": 4}
    )
    case = Case("histograms", histogram, torch.float32, GPU_TO_GPU)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("range of [nan, nan] is not finite")

    monkeypatch.setattr(special_values, "run_substituted", refuse)
    check_special_values(case, "nan")
    monkeypatch.setattr(special_values, "run_substituted", lambda *_, **__: (torch.zeros(4),))
    with pytest.raises(
        ClaimError, match=r"ATen raises RuntimeError .*, the substitute accepts them"
    ):
        check_special_values(case, "nan")


def test_one_of_atens_kernels_decides_each_special_value() -> None:
    """On a GPU ATen's two kernels may differ; what neither of them gives is found."""
    nan, inf = float("nan"), float("inf")
    cuda, cpu = torch.tensor([nan, -0.0, 1.0, inf]), torch.tensor([0.0, 0.0, 1.0, -inf])
    mixed = torch.stack([cuda[0], cpu[1], cpu[2], cpu[3]])
    assert special_difference(mixed, cuda, cpu, zeros=True) is None
    what = special_difference(mixed, cuda, zeros=True)
    assert what == "an infinity differs at element 3: -inf where ATen gives inf"
    what = special_difference(torch.tensor([0.0, 0.0, nan, inf]), cuda, cpu)
    assert what == "NaN differs at element 2: nan where ATen gives 1.0"


def test_bits_are_compared_as_bytes() -> None:
    """Equal NaNs are equal; zeros of two signs, and dtypes, are not."""
    nan, zero = torch.tensor([torch.nan]), torch.tensor([0.0])
    assert same_bits((nan,), (nan.clone(),))
    assert not same_bits((zero,), (-zero,))
    assert not same_bits((zero,), (zero.int(),))


def test_accepted_error_inputs_are_found() -> None:
    """A sample in ERRORS that ATen takes says nothing."""
    with pytest.raises(ClaimError, match="ATen accepts these inputs"):
        check_refused("scatter", SAMPLE, torch.float32)


@needs.compiler
def test_negative_factors_cancel_no_magnitude() -> None:
    """An element's error counts beside what its addends amount to, whatever sign a factor has."""
    (case,) = (
        case
        for case in cases("matmul")
        if (case.sample.op, case.sample.name) == ("aten::addmm", "factors_csr")
        and case.dtype is torch.float64
    )
    check_truth(case)
