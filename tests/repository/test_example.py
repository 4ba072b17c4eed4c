"""The examples train to the same bits: for every schedule, and on any number of processes."""

import re
import runpy
import sys
from collections.abc import Callable
from typing import Any

import pytest

from detmode import DeterministicMode, RuleTable, default_rules
from tests.shared import ROOT, needs
from tests.shared.cuda_sources import with_racing_sums
from tests.shared.selection import PROFILE

pytestmark = needs.package("sklearn")  # the example's images come with it

EXAMPLE = ROOT / "examples" / "digits.py"


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
    assert len(right) == 1
    # One of them is another one, mostly the first.
    assert any(train(racing, seed) not in right for seed in range(1, 6))


@pytest.mark.thorough
def test_any_number_of_processes(run_python: Callable[..., Any]) -> None:
    """The two lines of the documentation end with the weights of one process without a stop."""
    page = (EXAMPLE.parents[1] / "docs" / "one-gradient.md").read_text(encoding="utf-8")
    lines = re.findall(r"^torchrun (.* )(examples/any_world_size.py)( .*)$", page, re.MULTILINE)
    assert len(lines) == 2

    def torchrun(options: str, arguments: str) -> list[str]:
        script = str(EXAMPLE.with_name("any_world_size.py"))
        program = ["-m", "torch.distributed.run", "--standalone"]
        run = run_python(
            *program, *options.split(), script, *arguments.split(),
            GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return [line for line in run.stdout.splitlines() if not line.startswith("[Gloo]")]

    printed = [line for options, _, arguments in lines for line in torchrun(options, arguments)]
    _, _, after = page.partition(lines[-1][1] + lines[-1][2])
    shown = after.partition("```text\n")[2].partition("```")[0].splitlines()
    # Digits and digests belong to the CPU.
    digits = re.compile(r"\b(?=\w*\d)[\da-f.]{4,}\b")
    assert [digits.sub("", line) for line in printed] == [digits.sub("", line) for line in shown]
    alone = torchrun("--nproc-per-node 1", "--epochs 4")
    assert alone[-1] == printed[-1] != printed[3]
    assert alone[1:5] == [line for line in printed if line.startswith("epoch")]
