"""``intercept="listed"`` leaves native calls to settings, which a program may change inside."""

import pytest
import torch

from detmode import DeterministicMode
from detmode.mode import listed
from detmode.reports.report import Report
from detmode.reports.union import of_ranks
from tests.process.test_setting import exit_code_of_child
from tests.shared.programs import in_another_thread

pytestmark = [
    pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE),
    pytest.mark.usefixtures("without_player"),
]

SETTERS = ("_set_deterministic_algorithms", "_set_cudnn_benchmark")

CHANGES = {
    "off": lambda: torch.use_deterministic_algorithms(False),
    "debug_mode": lambda: torch.set_deterministic_debug_mode("default"),
    "by_hand": lambda: torch._C._set_deterministic_algorithms(False),
    "warn_only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "flags": lambda: torch.backends.cudnn.flags(deterministic=True, benchmark=True).__enter__(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_setting_that_the_program_changes(change):
    """Native calls may vary from then on: a warning and the verdict name the line.

    Even if the setting is put back afterwards. The next block of another mode says nothing of it.
    """
    attributes = [getattr(torch._C, name) for name in SETTERS]
    with DeterministicMode(intercept="listed") as mode:
        with pytest.warns(UserWarning, match="so that these may vary"):
            change()
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    report = mode.report()
    assert report.verdict.startswith("may vary: calls left to PyTorch's settings")
    assert "test_changed_settings.py:" in report.unsettled[0]
    assert Report.from_json(report.to_json()).verdict == report.verdict
    assert 'use intercept="all"' in report.next_step
    assert [getattr(torch._C, name) for name in SETTERS] == attributes
    with DeterministicMode(intercept="listed") as other:
        torch.use_deterministic_algorithms(True)
    assert not other.report().unsettled


def test_a_setting_that_nobody_was_seen_to_change():
    """A change by C++, or by a function kept from before the block, is found when that ends."""
    kept = torch._C._set_deterministic_algorithms
    with DeterministicMode(intercept="listed") as mode:
        kept(False)
    assert mode.report().unsettled == ["PyTorch's flag is off when a block ended"]
    assert mode.report().verdict.startswith("may vary")


def test_a_forked_child():
    """It watches for the blocks of the thread that forked it, and for no other thread's."""
    functions = [getattr(torch._C, name) for name in SETTERS]

    def is_as_before():
        return [getattr(torch._C, name) for name in SETTERS] == functions

    with DeterministicMode(intercept="listed"):
        assert exit_code_of_child(lambda: not is_as_before()) == 0
        assert in_another_thread(exit_code_of_child, is_as_before) == 0
    assert is_as_before()


def test_settings_that_make_no_call_vary():
    """The flag turned on again, and cuDNN left out for a while, as programs do."""
    with DeterministicMode(intercept="listed") as mode:
        torch.use_deterministic_algorithms(True)
        with torch.backends.cudnn.flags(enabled=False):
            pass
    assert not mode.report().unsettled
    assert torch.backends.cudnn.deterministic is False


def test_the_report_of_several_ranks():
    """It has the changes of all ranks, each once."""
    changed = "PyTorch's flag is off from train.py:3 on"
    reports = [Report([], head={"unsettled": [changed]}) for _ in range(2)]
    whole = of_ranks(Report([]), reports, 3, {})
    assert whole.unsettled == [changed]
    assert whole.verdict.startswith("may vary")


def test_native_calls_that_are_intercepted_need_no_setting():
    """Under ``warn_only`` the mode decides on native calls, whatever the flag: rows say it."""
    with DeterministicMode(True, intercept="listed", simulate="cuda") as mode:
        torch.use_deterministic_algorithms(True)
        torch.ones(4).cumsum(0)
    assert not mode.report().unsettled
