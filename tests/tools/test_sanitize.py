"""Commands of tools/sanitize.py: every entry's smallest sample, under each tool."""

import stat
from pathlib import Path

import as_large
import pytest
import sanitize
import torch

from detmode.table.conditions import FLOATING
from detmode.verify.cases import cases, run_substituted
from tests.shared import needs
from tests.shared.selection import todays_forms


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


@pytest.mark.thorough
@needs.compiler
@pytest.mark.parametrize(
    ("family", "part"),
    todays_forms(
        [("grid_sampler", "tiles"), ("index", "few_destinations"), ("max_pool3d", "_few")]
    ),
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


@pytest.mark.cuda
def test_cases_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The cases that a tool is given run on the GPU, each after its name."""
    name = str(cases("put")[0])
    assert sanitize.main(["--run", name]) == 0
    assert capsys.readouterr().out == f"{name}\n"
