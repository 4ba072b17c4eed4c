"""Every substitute is as accurate as the ATen kernel, and treats special values as it does."""

import pytest

from detmode.verify.cases import Case, samples_of, stored, tensors_of
from detmode.verify.claims import NotCheckedError, check_truth
from detmode.verify.special_values import check_special_values, values_for
from tests.shared import needs
from tests.shared import table_facts as facts
from tests.shared.selection import Group, cases, check_each, every_case, grouped, todays_forms

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


LISTED = facts.TESTS / "expect" / "special_values.txt"


def unchecked(case: Case) -> str:
    """The line of a case whose NaN and infinities are not compared on the host."""
    reason = samples_of(case.family).unlike_cpu.get(case.sample.name)
    return f"{case.family} {case.sample.name}: {reason}"


@needs.compiler
@pytest.mark.parametrize(("group", "value"), todays_forms(SPECIAL))
def test_special_values_are_atens(group: Group, value: str) -> None:
    """NaN, infinities, -0.0 and denormals come out as ATen gives them, or are listed."""
    listed = LISTED.read_text(encoding="utf-8").splitlines()

    def check(case: Case) -> None:
        try:
            check_special_values(case, value)
        except NotCheckedError as reason:
            if not has_values(case) or unchecked(case) in listed:
                raise
            raise AssertionError(
                f"{value} is not checked: {reason}; give the family's samples a reference"
            ) from reason

    check_each(group, check)


def has_values(case: Case) -> bool:
    """Tell whether a tensor has elements that could be special values."""
    tensors = map(stored, tensors_of(tuple(case.sample.arguments(case.dtype).values())))
    return any(each.numel() and values_for(each.dtype) for each in tensors)


def test_what_is_not_compared_is_listed() -> None:
    """tests/expect/special_values.txt lists what ``unlike_cpu`` excuses; it only shrinks."""
    text = [line for line in LISTED.read_text().splitlines() if not line.startswith("#")]
    excused = {unchecked(case) for case in every_case() if has_values(case)}
    assert text == sorted(line for line in excused if not line.endswith(": None"))


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
