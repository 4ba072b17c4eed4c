"""Every substitute is as accurate as the ATen kernel, and treats special values as it does."""

import needs
import pytest
from selection import Group, cases, check_each, every_case, grouped

from detmode.verify.cases import Case
from detmode.verify.claims import NotCheckedError, check_truth
from detmode.verify.special_values import check_special_values, values_for

GROUPS = grouped(cases())
SPECIAL = [
    pytest.param(group, value, id=f"{group}-{value}")
    for group in GROUPS
    for value in values_for(group.dtype)
]


@needs.compiler
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_error_is_no_larger_than_atens(group: Group) -> None:
    """The error against float64 is at most twice ATen's plus a rounding; the form is ATen's."""
    check_each(group, check_truth)


@needs.compiler
@pytest.mark.parametrize(("group", "value"), SPECIAL)
def test_special_values_are_atens(group: Group, value: str) -> None:
    """NaN, infinities, -0.0 and denormals come out as ATen gives them."""
    check_each(group, lambda case: check_special_values(case, value))


@pytest.mark.cuda
@pytest.mark.parametrize("case", every_case(), ids=str)
def test_as_atens_on_a_gpu(case: Case) -> None:
    """On a GPU too errors are no larger than ATen's there, and special values are ATen's."""
    check_truth(case, "cuda")
    for value in values_for(case.dtype):
        try:
            check_special_values(case, value, "cuda")
        except NotCheckedError:
            continue
