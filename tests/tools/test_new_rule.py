"""A family is written from schemas, and red until its author has filled in what they lack."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import new_rule
import pytest

from tests.shared import ROOT, needs
from tests.shared.selection import todays_forms

EXAMPLE = ROOT / "docs" / "tutorial" / "reflection_pad1d"


PAGE = ROOT / "docs" / "adding-a-rule.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for families, with the repository's settings of linters."""
    (tmp_path / "detmode" / "rules").mkdir(parents=True)
    for name in ("pyproject.toml", ".clang-format"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def tree(folder: Path) -> Path:
    """A copy of what the tests over the table need."""
    skip = shutil.ignore_patterns("__pycache__", "_build")
    for name in ("detmode", "tests", "tools", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip, dirs_exist_ok=True)
    return folder


def typed(command: str, tree: Path) -> str:
    """The text that a command prints, typed in the tree with its tools on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tree)}
    ran = subprocess.run(
        ["bash", "-ec", command], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.thorough
@needs.compiler
def test_the_tutorial_leads_to_green(tree: Path, run_python: Any) -> None:
    """The page's commands work; their files are red, and name each blank; the page's are green."""
    python = partial(run_python, PYTHONPATH=str(tree))
    family = tree / "detmode" / "rules" / EXAMPLE.name
    (commands, *_) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert "ATen takes every sample on the CPU" in typed(commands, tree)
    assert 'alert="reflection_pad1d_backward_out_cuda"' in (family / "__init__.py").read_text()
    folders = ("tests/rules", "tests/cuda/rows")
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--family", family.name, *folders)
    red = python(*tests, "-x", "-k", "no_blank")
    assert red.returncode == 1, red.stdout
    for path in filter(Path.is_file, family.iterdir()):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if "FILL IN" in line:
                assert f"{family.name}/{path.name}:{number}: " in red.stdout

    shutil.copytree(EXAMPLE, family, dirs_exist_ok=True)
    written = python("tools/generate_docs.py")
    assert written.returncode == 0, written.stderr
    green = python(*tests, "-x")
    assert green.returncode == 0, green.stdout[-4000:] + green.stderr[-2000:]


SIGNATURES = {
    "unfold_backward": "grad_in: Tensor, input_sizes: Sequence[int], dim: int, size: int, "
    "step: int",
    "dot": "self: Tensor, tensor: Tensor",
    "im2col": "self: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], "
    "padding: Sequence[int], stride: Sequence[int]",
    "native_group_norm": "input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, "
    "C: int, HxW: int, group: int, eps: float",
    "glu_backward": "grad_output: Tensor, self: Tensor, dim: int",
}


@pytest.mark.thorough
@pytest.mark.parametrize("op", todays_forms(SIGNATURES))
def test_what_is_written(folder: Path, op: str) -> None:
    """Schemas give signatures; ruff and clang-format leave the files as they are."""
    family = new_rule.make_family("made", [new_rule.operator(op)], root=folder)
    launch = ast.parse((family / "launch.py").read_text())
    (function, *_) = (node for node in launch.body if isinstance(node, ast.FunctionDef))
    assert ast.unparse(function.args) == SIGNATURES[op]
    typed(f"clang-format --dry-run -Werror {family}/kernels.cu", folder)
    typed(f"ruff format --check {family} && ruff check {family}", folder)


@pytest.mark.thorough
def test_samples_that_are_written(tree: Path) -> None:
    """Schemas give arguments that ATen takes, also of rows without kernels."""
    names = ("unfold_backward", "aten::glu_backward", "frac", "aten::renorm", "col2im")
    new_rule.make_family("made", [*map(new_rule.operator, names)], root=tree, kernels=False)
    assert new_rule.rejected("made", tree) == ""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["Upper", "--op", "unfold_backward"], "a family's name is like"),
        (["upsample", "--op", "unfold_backward"], "there is a family 'upsample' already"),
        (["made", "--op", "unfold_bakward"], "did you mean 'aten::unfold_backward'"),
        (["made", "--op", "aten::scatter.nothing"], "it has value, src, reduce"),
        (["made", "--op", "aten::put"], "is listed in the family 'put'"),
        (["made", "--op", "aten::neg_"], "give --op aten::neg"),
        (["made", "--op", "unfold_backward", "--op", "size.int"], "no plain tensors"),
    ],
)
def test_refused(
    arguments: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, which says what is wrong and what to do; exit code 2; nothing is written."""
    before = sorted((ROOT / "detmode" / "rules").iterdir())
    monkeypatch.setattr(sys, "argv", ["new_rule.py", *arguments])
    assert new_rule.main() == 2
    said = capsys.readouterr().err
    assert error in said
    assert len(said.splitlines()) == 1
    assert sorted((ROOT / "detmode" / "rules").iterdir()) == before
