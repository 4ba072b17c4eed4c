"""Notebooks: cells' names, ``%%deterministic``, and reports shown in cells, in the real IPython."""

import json
from typing import Any

import pytest

from tests.shared import needs
from tests.shared.processes import run_forked

pytestmark = needs.package("ipykernel")

CELLS = {
    "load": "%load_ext detmode",
    "define": """\
import torch, detmode
def step(x):
    return torch.relu(x)""",
    "run": """\
%%deterministic found --override aten::relu=allow

x = torch.ones(2)
step(x)
!true
torch.relu(-x)""",
    "sites": "[row.site for row in found]",
    "fail": """\
%%deterministic failed --override=aten::relu=error --quiet

step(torch.ones(2))""",
    "left": "torch.are_deterministic_algorithms_enabled(), [row.count for row in failed]",
    "option": "%%deterministic --override histc\n1",
    "value": "%%deterministic --warn-only --strict\n1",
    "syntax": "%%deterministic\n1 +",
    "recorded": """\
for name in "12":
    with detmode.record(name):
        step(torch.full((2,), float(name)))
detmode.diff("1", "2")""",
}

# The compiler is that of a kernel, which gives cells the names of temporary files.
PROGRAM = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from ipykernel.compiler import XCachingCompiler
from traitlets import Type
from traitlets.config import Config

class Shell(InteractiveShell):
    compiler_class = Type(XCachingCompiler)

config = Config()
config.HistoryManager.enabled = False
shell = Shell.instance(config=config)
found = {}
for name, cell in json.loads(sys.argv[1]).items():
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    found[name] = {
        "error": error and [type(error).__name__, str(error)],
        "result": repr(result.result),
        "html": getattr(result.result, "_repr_html_", str)(),
        "shown": [output.data for output in captured.outputs],
        "out": captured.stdout,
    }
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of each cell."""
    folder = tmp_path_factory.mktemp("notebook")
    program = [PROGRAM, json.dumps(CELLS)]
    done = run_forked("-c", [program], folder, timeout=240, IPYTHONDIR=str(folder), PATH="/bin")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_calls_are_named_by_their_cells(notebook: dict[str, Any]) -> None:
    """A site is a cell and its line as the user sees them, the magic's line included."""
    assert notebook["define"]["error"] is None
    assert notebook["sites"]["result"] == "['cell 2, line 3', 'cell 3, line 6']"
    assert "cell 2, line 3" in notebook["recorded"]["html"]
    assert "/ipykernel_" not in json.dumps(notebook)


def test_cell_under_the_mode(notebook: dict[str, Any]) -> None:
    """The cell has the value of its last line, and its report is shown as text and as HTML."""
    run = notebook["run"]
    assert run["error"] is None
    assert run["result"] == "tensor([0., 0.])"
    report = run["shown"][0]
    assert "aten::relu.default" in report["text/plain"]
    assert '<span class="mark">allow</span>' in report["text/html"]


def test_cell_that_fails(notebook: dict[str, Any]) -> None:
    """The refusal reaches the notebook, the report is kept, and PyTorch's flag is as before."""
    kind, message = notebook["fail"]["error"]
    assert kind == "RuntimeError"
    assert "cell 2, line 3" in message
    assert "--override gives it this action: 'error'" in message
    failed = "not finished: RuntimeError at cell 2, line 3; until then: may vary: 1 call at 1 line"
    assert failed in notebook["fail"]["out"]
    assert notebook["left"]["result"] == "(False, [1])"


def test_wrong_options(notebook: dict[str, Any]) -> None:
    """A wrong option is named in one line, and the cell does not run."""
    assert notebook["option"]["error"] == [
        "UsageError",
        "argument --override: give OP=ACTION, such as aten::histc=allow, not 'histc'",
    ]
    kind, message = notebook["value"]["error"]
    assert kind == "UsageError"
    assert "leave one of them out" in message
    assert notebook["syntax"]["error"][0] == "SyntaxError"


def test_differences_are_shown(notebook: dict[str, Any]) -> None:
    """A comparison at the end of a cell is shown with both sides of the call that differs."""
    shown = notebook["recorded"]["html"]
    assert notebook["recorded"]["error"] is None
    assert "The runs diverge at this call" in shown
    assert notebook["recorded"]["result"].startswith("<Comparison: The runs diverge at cell ")
    assert '<span class="mark">differs</span>' in shown
