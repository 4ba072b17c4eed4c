"""Training with a float atomicAdd scatter differs between schedules: the simulation shows it."""

import runpy
import sys
from pathlib import Path

import needs
import pytest
import torch

from detmode import RUN_TO_RUN, DeterministicMode, Rule, RuleTable, Substitute, default_rules
from detmode.cuda import Source, launch
from detmode.table.conditions import argument, on

pytest.importorskip("sklearn")

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "digits.py"
NAIVE = Source(str(HERE / "cuda" / "kernels.py"), "kernels.cu", ["naive_scatter<float>"])


def racing_index_put(
    self: torch.Tensor,
    indices: list[torch.Tensor],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """``index_put`` of rows, each element added by a float atomicAdd: what detmode replaces."""
    result, width = self.clone(), self.shape[-1]
    assert len(indices) == 1
    assert self.dim() == 2
    flat = (indices[0].reshape(-1, 1) * width + torch.arange(width)).reshape(-1)
    launch(
        NAIVE, "naive_scatter<float>", flat.numel(),
        source=values.reshape(-1), index=flat, output=result, n=len(flat),
    )  # fmt: skip
    return result


def digest(
    rules: RuleTable, seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The line with the digest of the weights that the example's training ends with."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--steps", "4"])
    with DeterministicMode(simulate="cuda", schedule_seed=seed, rules=rules):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return next(line for line in capsys.readouterr().out.splitlines() if "sha256" in line)


@needs.compiler
def test_an_atomic_sum_gives_other_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one racing kernel in the table, schedules train to different weights; without, to one.

    Without this control, equal digests could mean that the shuffle shows nothing.
    """
    racing = default_rules() + [
        Rule(
            op="aten::index_put",
            when=on("cuda") & argument("accumulate", True),
            action=Substitute(racing_index_put),
            guarantee=RUN_TO_RUN,
            because="the negative control: its claim is false",
        )
    ]
    right = {digest(default_rules(), seed, monkeypatch, capsys) for seed in (1, 2)}
    wrong = {digest(racing, seed, monkeypatch, capsys) for seed in range(1, 6)}
    assert len(right) == 1
    assert len(wrong) > 1
