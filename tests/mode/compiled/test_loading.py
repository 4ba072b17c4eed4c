"""The mode and PyTorch's compiler, which is loaded when a program first needs it."""

import pytest

from tests.mode.compiled.test_compiled import COMPILED
from tests.shared import needs
from tests.shared.processes import run_forked

pytestmark = [needs.compiler, COMPILED]

RECORDED = """
import sys
import torch
import detmode

graphs = 0

def backend(*graph):
    global graphs
    graphs += 1
    from torch._inductor.compile_fx import compile_fx
    return compile_fx(*graph)

# Inductor leaves the call to ATen: it starts no C++ compiler.
def total(x):
    return x.cumsum(0)

assert "torch._inductor" not in sys.modules
is_first_outside, x = {is_first_outside}, torch.randn(4)
if is_first_outside:
    compiled = torch.compile(total, backend=backend)
    compiled(x)
for number in range(2):
    with detmode.DeterministicMode(simulate="cuda") as mode:
        if not (number or is_first_outside):
            compiled = torch.compile(total, backend=backend)
        compiled(x)
    assert sum(row.count for row in mode.records) == 1
    compiled(x)
print(graphs)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("is_first_outside", [False, True])
def test_a_function_has_two_graphs(is_first_outside, run_python, tmp_path):
    """Compiled first before any block, or inside of the first, where the compiler is loaded.

    A recording, whose block begins before there is a graph to look at, has both.
    """
    code = RECORDED.format(is_first_outside=is_first_outside)
    ended = run_python("-m", "detmode", "record", "-o", "run", "-c", code)
    assert ended.stdout == "2\n", ended.stderr
    assert "compiled::total[forward]" in (tmp_path / "run" / "calls.jsonl").read_text()


UNDER_THE_FLAG = """
import torch
from detmode import DeterministicMode

def total(x):
    return x.cumsum(0)

def total_under_the_flag(x):
    return x.cumsum(0).cumsum(0)

def backend(gm, inputs):
    graphs.append(gm)
    return gm.forward

graphs, functions, x = [], (total, total_under_the_flag), torch.randn(4)
compiled = [torch.compile(function, backend=backend) for function in functions]
for function, is_on in zip(compiled, (False, True)):
    torch.use_deterministic_algorithms(is_on)
    function(x)
torch.use_deterministic_algorithms(False)
for _ in range(2):
    with DeterministicMode(simulate="cuda") as mode:
        for function in compiled:
            function(x)
    assert sum(row.count for row in mode.records) == 3
    for function in compiled:
        function(x)
print(len(graphs))
"""


@pytest.mark.thorough
def test_code_compiled_under_the_flag(tmp_path):
    """It is not used inside, where its operators could not be seen; all other code stays."""
    ended = run_forked("-c", [[UNDER_THE_FLAG]], tmp_path, timeout=300)
    assert ended.stdout == "5\n", ended.stderr
