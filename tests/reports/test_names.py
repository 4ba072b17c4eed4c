"""Reports name a line of code first, then what its user wrote, then the overload."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import detmode
from detmode.reports.written_as import written_as
from detmode.sites.source_lines import source_of


@pytest.mark.parametrize(
    ("overload", "source", "name"),
    [
        ("aten::upsample_bilinear2d_backward.default", "y = F.interpolate(x, 9)", "F.interpolate"),
        ("aten::upsample_bilinear2d_backward.default", "loss = net(x)", "F.interpolate"),
        ("aten::put_.default", "x.put_(index, values)", "Tensor.put_"),
        ("aten::index_add.default", "", "torch.index_add"),
        ("aten::scatter_add.default", "torch.gather(x, 0, i)", "torch.gather"),
        ("aten::convolution.default", "nn.Conv2d(1, 2, 3)(x)", "nn.Conv2d"),
        ("aten::convolution.default", "y = torch.conv1d(x, w)", "F.conv1d"),
        ("aten::convolution_backward.default", "y = self.encoder(x)", "F.conv*"),
        ("aten::_local_scalar_dense.default", "", "Tensor.item"),
        ("aten::lift_fresh.default", "torch.tensor(np.random.rand())", "torch.tensor"),
        ("aten::lift_fresh.default", "torch.from_numpy(noise)", "torch.from_numpy"),
        ("aten::lift_fresh.default", "", "torch.tensor"),
        ("mylib::fused.default", "fused(x)", ""),
    ],
)
def test_the_name_that_users_write(overload: str, source: str, name: str) -> None:
    """It is PyTorch's public one: that of the line of code, where the line calls it."""
    assert written_as(overload, source) == name


def test_sources_are_of_python_files_only(tmp_path: Path) -> None:
    """A report comes from elsewhere too: what its sites name is read only where it is code."""
    program = tmp_path / "program.py"
    program.write_text("import torch\n\tx = 1  # \N{GREEK SMALL LETTER ALPHA}\n", encoding="utf-8")
    secret = tmp_path / "secret.txt"
    secret.write_text("a password\n")
    assert source_of(f"{program}:2") == "x = 1  # \N{GREEK SMALL LETTER ALPHA}"
    for site in (f"{program}:9", f"{secret}:1", "gone.py:1", "<string>:1", f"{tmp_path}:1", "?"):
        assert source_of(site) == ""


def test_a_report_begins_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of code with its text, then the function, then the overload, in every text."""
    with detmode.DeterministicMode(simulate="cuda") as mode:
        image = torch.ones(1, 1, 4, 4, requires_grad=True)
        F.interpolate(image, 9, mode="bilinear").sum().backward()
    lines = mode.report().text(width=80).splitlines()
    (place,) = (n for n, line in enumerate(lines) if "F.interpolate(image, 9" in line)
    assert "test_names.py:" in lines[place]
    assert "F.interpolate (backward)" in lines[place + 1]
    assert "aten::upsample_bilinear2d_backward" in "".join(lines[place + 1 :])
    long = mode.report().text(long=True)
    assert '  F.interpolate(image, 9, mode="bilinear").sum().backward()\n  called ' in long
    assert "  called     F.interpolate\n  overload   aten::upsample_bilinear2d_backward" in long


def test_a_comparison_begins_with_the_line(tmp_path: Path) -> None:
    """Also where the runs diverge at a scalar of NumPy's, whose operator nobody has called."""
    for run in "ab":
        with detmode.record(tmp_path / run, dump=["aten::lift_fresh.default@0"]):
            torch.tensor(np.float32(ord(run)))
    text = str(detmode.diff(tmp_path / "a", tmp_path / "b"))
    verdict, *lines = text.splitlines()
    assert "test_names.py:" in verdict
    assert ", torch.tensor: " in verdict
    (line,) = (line for line in lines if line.startswith("line "))
    assert line.endswith("torch.tensor(np.float32(ord(run)))")
    values = [line.split(maxsplit=1) for line in lines if line.startswith("values ")]
    assert ["values", "97.0 and 98.0"] in values


def test_a_call_of_one_run_only(tmp_path: Path) -> None:
    """The verdict says which run makes it; all lines that differ are shown where asked."""
    for run in "ab":
        with detmode.record(tmp_path / run):
            x = torch.arange(3.0)
            x = x.flip(0) if run == "b" else x
            x.mul(2)
    comparison = detmode.diff(tmp_path / "a", tmp_path / "b")
    assert ", torch.flip: only the second run makes this call" in comparison.verdict
    assert "x.mul(2)" not in comparison.text()
    assert "x.mul(2)" in comparison.text(long=True)


def test_numbers_that_differ_are_shown(tmp_path: Path) -> None:
    """Two runs that call an operator with different numbers are shown with both."""
    for run in "ab":
        with detmode.record(tmp_path / run):
            torch.arange(3.0).mul(0.25 if run == "a" else 0.5)
    assert "_, 0.25 and _, 0.5" in str(detmode.diff(tmp_path / "a", tmp_path / "b"))
