"""The profiles' choices, and the messages about cases that are checked together."""

import runpy
from datetime import date
from pathlib import Path

import pytest
import torch

from detmode.verify.cases import Case
from tests.shared import selection
from tests.shared.processes import run_forked
from tests.shared.selection import PROFILES, Group, check_each, every_case, todays_share


def test_every_operator_runs_in_every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a few days; each day every sample runs, in float32 where it has it."""
    every, met = every_case(), set()
    for day in range(PROFILES["quick"].other_dtypes):
        monkeypatch.setattr(selection, "SHARE", day)
        todays = selection.chosen(every)
        met |= {(case.sample.op, case.dtype) for case in todays}
        assert {id(case.sample) for case in todays} == {id(case.sample) for case in every}
        floats = {id(case.sample) for case in every if case.dtype is torch.float32}
        assert {id(case.sample) for case in todays if case.dtype is torch.float32} == floats
    assert met == {(case.sample.op, case.dtype) for case in every}


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


def test_a_week_has_all_that_quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven days in a row look at every value; the larger profiles look at all each day."""
    values = list(range(100))
    quick = PROFILES["quick"]
    for count in (1, quick.forms, quick.other_dtypes, quick.operators, quick.interrupted_lines):
        shares = []
        for day in range(date.today().toordinal(), date.today().toordinal() + 7):
            monkeypatch.setattr(selection, "SHARE", day)
            shares.append(list(todays_share(values, count)))
        assert sorted({value for share in shares for value in share}) == values
        assert all(len(share) <= len(values) // count + 1 for share in shares)
    for larger in (PROFILES["thorough"], PROFILES["full"]):
        assert larger.operators == larger.forms == larger.interrupted_lines == 1


def test_a_share_can_be_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``DETMODE_SHARE`` names it, the run's last lines too, and what is no number is refused."""
    (tmp_path / "test_share.py").write_text(
        "from tests.shared.selection import todays_share\n\n"
        "def test_share():\n    assert list(todays_share(range(9), 3)) == [1, 4, 7]\n"
    )
    pytest_run = ["pytest", "-q", "-ptests.conftest", "-pno:cacheprovider", "test_share.py"]
    variables = {"DETMODE_SHARE": "7", "DETMODE_PROFILE": "quick"}
    found = run_forked("-m", [pytest_run], tmp_path, timeout=100, **variables)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "DETMODE_SHARE=7 has this one" in found.stdout
    monkeypatch.setenv("DETMODE_SHARE", "monday")
    with pytest.raises(pytest.UsageError, match="'monday'; it is the number of a day, such as 7"):
        runpy.run_path(selection.__file__)
