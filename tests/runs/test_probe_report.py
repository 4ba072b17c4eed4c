"""Reports of a probe: on the command line, and the next step."""

import json
import re

import pytest

from detmode.runs.probe_report import ProbeReport, ProbeRow
from tests.shared import needs

RACING = """
import sys, torch
from tests.shared.cuda_sources import add_racing

@torch.library.custom_op("mine::operator", mutates_args=())
def operator(source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return add_racing(source.new_zeros(4), source, index)

torch.manual_seed(0)
operator(torch.randn(1024), torch.randint(4, (1024,)))
"""


@needs.compiler
@pytest.mark.parametrize(
    ("more", "code"), [("", 1), ("sys.exit(7)", 7), ("raise KeyError('weights')", 1)]
)
def test_command_names_what_varies(run_command, tmp_path, more, code):
    """The report is on stderr and in a file, also where the script fails with a code of its own."""
    operator = f"probed{code}{len(more)}"
    (tmp_path / "script.py").write_text(RACING.replace("operator", operator) + more)
    ours = run_command("probe", "--report", "report.json", "--repeats", "5", "script.py")
    assert (ours.returncode, ours.stdout) == (code, ""), ours.stderr
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (row["overload"], row["conditions"]) == (f"mine::{operator}.default", ["schedule"])
    assert row["overload"] in ours.stderr
    assert row["site"] == f"{tmp_path / 'script.py'}:10"


@needs.compiler
@pytest.mark.parametrize("simulate", [(), ("--simulate", "cuda", "--schedule-seed", "4")])
def test_command_where_nothing_varies(run_command, simulate):
    """Substitutes are probed under the seeds of several schedules, with the same bits."""
    code = "import torch; print(torch.zeros(1).index_add_(0, torch.tensor([0]), torch.ones(1)))"
    ours = run_command("probe", *simulate, "-c", code)
    assert (ours.returncode, ours.stdout) == (0, "tensor([1.])\n"), ours.stderr
    # PyTorch 2.8 makes calls of its own when it is first used inside a mode.
    assert re.search(r"Probed \d+ calls", ours.stderr)
    assert "No probed call differed from its repeats." in ours.stderr


@pytest.mark.parametrize(
    ("conditions", "action", "step"),
    [
        (
            ("threads",),
            "allow",
            "keep the number of CPU threads, which the bits of aten::sum follow",
        ),
        (("again", "threads"), "allow", "report it: its rule says that it does not vary"),
        (("again",), "native", "`detmode explain aten::sum` says why"),
        (("again",), None, "no rule lists aten::sum: replace it"),
    ],
    ids=["threads", "contradicts its rule", "known", "unknown"],
)
def test_the_next_step_agrees_with_the_table(conditions, action, step):
    """It sends nobody to a rule that says that the call does not vary."""
    family = None if action is None else "reductions"
    row = ProbeRow(
        "aten::sum", 2, 1, conditions, ("output 0",), 1, 0.5, "a.py:3", None, family, action
    )
    assert step in ProbeReport((row,), 2, (), 3).next_step
