"""Commands of tools/sanitize.py: every entry's smallest sample, under each tool."""

import shlex
import stat
import sys
from pathlib import Path

import as_large
import pytest
import sanitize
import torch

from detmode.table.conditions import FLOATING
from detmode.verify.cases import cases, run_substituted
from tests.shared import needs


@needs.compiler
@pytest.mark.parametrize("family", ["put", pytest.param("scan", marks=pytest.mark.thorough)])
def test_every_entry_is_reached(family: str) -> None:
    """The chosen cases launch what all cases of the family launch, and are fewer."""
    chosen = sanitize.smallest(family)
    with sanitize.launched() as reached:
        for case in chosen:
            run_substituted(case.sample, case.dtype)
    with sanitize.launched() as entries:
        for case in cases(family):
            run_substituted(case.sample, case.dtype)
    assert reached == entries
    assert len(chosen) <= len(entries)
    assert all(case in cases(family) for case in chosen)


@needs.compiler
@pytest.mark.parametrize(
    ("family", "part"),
    [("grid_sampler", "tiles"), ("index", "few_destinations"), ("max_pool3d", "_few")],
)
def test_samples_reach_what_large_inputs_do(
    monkeypatch: pytest.MonkeyPatch, family: str, part: str
) -> None:
    """Samples launch these kernels only where the sizes that choose them are small."""
    assert sanitize.smallest(family, [part]) == []
    for module, sizes in as_large.SIZES:
        for name, size in sizes.items():
            # Raises where the module has no such size any more.
            monkeypatch.setattr(module, name, size)
    assert {case.dtype for case in sanitize.smallest(family, [part])} >= {*FLOATING}


@needs.compiler
def test_list_prints_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each tool, which a shell can run: settings, tool, and the cases by name."""
    assert sanitize.main(["--list", "--family", "histograms"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[line.index("--tool") + 1] for line in lines] == list(sanitize.TOOLS)
    names = {str(case) for case in cases("histograms")}
    for line in lines:
        assert line[:3] == [
            "PYTORCH_NO_CUDA_MEMORY_CACHING=1",
            "CUDA_LAUNCH_BLOCKING=1",
            "compute-sanitizer",
        ]
        program = line[line.index(sys.executable) :]
        assert program[1:3] == [sanitize.__file__, "--run"]
        assert set(program[3:]) <= names
        assert len(program) > 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU nothing is started, and the sentence says what is missing."""
    assert sanitize.main([]) == 2
    assert capsys.readouterr().err.startswith("cannot sanitize: PyTorch")


@needs.compiler
def test_a_fault_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tools in which the program fails are named, the others run all the same."""
    monkeypatch.setattr(sanitize.cuda, "unavailable", lambda device_type: None)
    seen = tmp_path / "seen"
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text(
        f'#!/bin/sh\necho "$2 $PYTORCH_NO_CUDA_MEMORY_CACHING" >> {seen}\n'
        '[ "$2" != racecheck ] || exit 86\n'
    )
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert sanitize.main(["--family", "histograms"]) == 1
    assert seen.read_text().splitlines() == [f"{tool} 1" for tool in sanitize.TOOLS]
    assert capsys.readouterr().err == "not clean: racecheck\n"


def test_unknown_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that is not there is named before anything runs."""
    with pytest.raises(ValueError, match="there is no case 'put-float32'"):
        sanitize.run(["put-float32"])


@pytest.mark.cuda
def test_cases_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The cases that a tool is given run on the GPU, each after its name."""
    name = str(cases("put")[0])
    assert sanitize.main(["--run", name]) == 0
    assert capsys.readouterr().out == f"{name}\n"
