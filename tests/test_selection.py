"""The profiles' choices, and the messages about cases that are checked together."""

import pytest
from selection import PROFILES, Group, cases, check_each, every_case

from detmode.verify.cases import Case


def test_every_operator_runs_in_every_dtype() -> None:
    """Whatever the profile leaves out of a sample's dtypes, other samples of its operator run."""
    missing = {(case.sample.op, case.dtype) for case in every_case()} - {
        (case.sample.op, case.dtype) for case in cases()
    }
    assert not missing
    assert {id(case.sample) for case in cases()} == {id(case.sample) for case in every_case()}


def test_a_failing_case_is_named() -> None:
    """All cases are checked; those that fail are in the message, with how to run one alone."""
    group = Group("put", every_case()[0].dtype, every_case()[:3])
    checked = []

    def check(case: Case) -> None:
        checked.append(case)
        assert case is not group.cases[1], "other bits"

    with pytest.raises(AssertionError) as caught:
        check_each(group, check)
    assert checked == list(group.cases)
    assert str(caught.value).startswith("1 of 3 cases fail")
    assert f"--case {group.cases[1]}\n{group.cases[1]}: other bits" in str(caught.value)


def test_a_larger_profile_looks_at_no_less() -> None:
    """Cases left out of one are in the next."""
    quick, thorough, full = PROFILES.values()
    for smaller, larger in ((quick, thorough), (thorough, full)):
        assert smaller.examples <= larger.examples
        assert smaller.other_schedules <= smaller.schedules <= larger.schedules
        assert smaller.dtypes <= larger.dtypes
        assert smaller.operators >= larger.operators
        assert smaller.interrupted_lines >= larger.interrupted_lines
