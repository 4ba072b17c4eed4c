"""The mode and PyTorch's compiler, which is loaded when a program first needs it."""

import pytest

from tests.mode.compiled.test_compiled import COMPILED
from tests.shared import needs
from tests.shared.processes import run_forked

pytestmark = [needs.compiler, COMPILED]

CODE = """
import torch
from torch import utils
import detmode

graphs = 0

def backend(*graph):
    global graphs
    graphs += 1
    from torch._inductor.compile_fx import compile_fx
    return compile_fx(*graph)

# Of calls that Inductor leaves to ATen: it starts no C++ compiler.
def total(x):
    return x.cumsum(0)

def total_under_the_flag(x):
    return x.cumsum(0).cumsum(0)

calls = {{total: 1, total_under_the_flag: 2}}
x = torch.randn(4)
before, inside = {before}, {inside}
compiled = {{each: torch.compile(each, backend=backend) for each in before}}
for each in before:
    torch.use_deterministic_algorithms(each is total_under_the_flag)
    compiled[each](x)
torch.use_deterministic_algorithms(False)
for _ in range(2):
    with detmode.DeterministicMode(simulate="cuda") as mode:
        for each in inside:
            if each not in compiled:
                compiled[each] = torch.compile(each, backend=backend)
            compiled[each](x)
    assert sum(row.count for row in mode.records) == sum(calls[each] for each in inside)
    for each in inside:
        compiled[each](x)
print(graphs)
"""


@pytest.mark.parametrize("before", ["[]", pytest.param("[total]", marks=pytest.mark.thorough)])
def test_a_function_has_two_graphs(before, run_python):
    """Compiled first before any block, or inside of the first, where the compiler is loaded."""
    ended = run_python("-c", CODE.format(before=before, inside="[total]"))
    assert ended.stdout == "2\n", ended.stderr


def test_code_compiled_under_the_flag(tmp_path):
    """It is not used inside, where its operators could not be seen; all other code stays."""
    both = "[total, total_under_the_flag]"
    code = CODE.format(before=both, inside=both)
    ended = run_forked("-c", [[code]], tmp_path, timeout=300)
    assert ended.stdout == "5\n", ended.stderr


RECORDED = """
import sys
import torch

assert "torch._inductor" not in sys.modules
torch.compile(lambda x: x.cumsum(0))(torch.randn(4))
"""


def test_a_recording_has_graphs_of_a_compiler_that_its_program_loads(run_python, tmp_path):
    """Its block begins before there is a graph to look at."""
    ended = run_python("-m", "detmode", "record", "-o", "run", "-c", RECORDED)
    assert ended.returncode == 0, ended.stderr
    assert "compiled::<lambda>[forward]" in (tmp_path / "run" / "calls.jsonl").read_text()
