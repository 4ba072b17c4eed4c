"""The example trains under the mode, its kernels simulated, to the same bits for every schedule."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import needs
import pytest
from cuda_sources import with_racing_sums
from selection import PROFILE

from detmode import DeterministicMode, RuleTable, default_rules

pytest.importorskip("sklearn", reason="the example's images come with scikit-learn")

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.py"


@pytest.fixture
def train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[RuleTable, int | None], str]:
    """Trains under a schedule; the line with the digest of the weights that it ends with."""

    def run(rules: RuleTable, seed: int | None) -> str:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--steps", "4"])
        with DeterministicMode(simulate="cuda", schedule_seed=seed, rules=rules) as mode:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        families = {row.family for row in mode.records if row.action == "substitute"}
        assert families >= {"upsample", "adaptive_avg_pool", "scatter"}
        assert ("index" in families) != ("user" in families)
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "sha256" in line)
        return line

    return run


@needs.compiler
def test_an_atomic_sum_gives_other_weights(train: Callable[[RuleTable, int | None], str]) -> None:
    """With one racing kernel in the table, schedules train to different weights; without, to one.

    Without this control, equal digests could mean that the shuffle shows nothing.
    """
    racing = with_racing_sums()
    right = {train(default_rules(), seed) for seed in (None, 1, *range(2, 5 * PROFILE.thorough))}
    wrong = {train(racing, seed) for seed in range(1, 6)}
    assert len(right) == 1
    assert len(wrong) > 1
