"""Every substitute is as accurate as the ATen kernel, and treats special values as it does."""

import pytest

from detmode import cuda
from detmode.verify.cases import Case, cases
from detmode.verify.claims import NotCheckedError, check_truth
from detmode.verify.special_values import check_special_values, values_for

CASES = cases()
DEVICES = (
    pytest.param(
        "host",
        marks=pytest.mark.skipif(
            cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
        ),
    ),
    pytest.param("cuda", marks=pytest.mark.cuda),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_is_no_larger_than_atens(case: Case, device: str) -> None:
    """The error against float64 is at most twice ATen's plus a rounding; the form is ATen's."""
    check_truth(case, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("case", "value"),
    [
        pytest.param(case, value, id=f"{case}-{value}")
        for case in CASES
        for value in values_for(case.dtype)
    ],
)
def test_special_values_are_atens(case: Case, value: str, device: str) -> None:
    """NaN, infinities, -0.0 and denormals come out as ATen gives them."""
    try:
        check_special_values(case, value, device)
    except NotCheckedError as reason:
        pytest.skip(str(reason))
