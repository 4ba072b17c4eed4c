"""Whatever a command prints fits the terminal, and one screen if it can."""

import subprocess
from collections.abc import Callable
from itertools import product

import pytest

from tests.shared import ROOT, needs
from tests.shared.selection import todays_forms

Run = Callable[..., subprocess.CompletedProcess[str]]

WIDTHS = (60, 80, 120)
PROGRAM = """
import torch
from torch import nn

class SegmentationNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature_extractor = nn.Sequential(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(8))
        self.enlarging_layers = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)

    def forward(self, images):
        return self.enlarging_layers(self.feature_extractor(images)).square().mean(dim=(0, 1, 2, 3))

SegmentationNetwork()(torch.rand(2, 1, 16, 16)).backward()
query = torch.rand(1, 2, 8, 16, requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
torch.histc(torch.rand(20)), torch.bincount(torch.tensor([1]), torch.rand(1))
"""
VARYING = """
import torch
from torch.utils.data import DataLoader

def augmented(images, probability=0.5, generator=torch.Generator()):
    generator.seed()
    chance = torch.rand(1, generator=generator).item()
    return images.flip(0) if chance < probability else images.roll(1)

for _ in range(6):
    augmented(torch.arange(4.0)).mul(torch.rand(1, generator=torch.Generator().manual_seed(0)))
torch.empty(5).fill_(0).sin(), torch.rand(3, generator=torch.default_generator)
"""
HISTC = "--override=aten::histc=allow"
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "--simulate=cuda", HISTC, "program.py"),
    "run to its error": ("run", "--simulate=cuda", "-c", "raise ValueError('a text. ' * 30)"),
    "run --long": ("run", "--long", "--simulate=cuda", HISTC, "program.py"),
    "run --recheck": ("run", "--recheck=1", "--simulate=cuda", HISTC, "program.py"),
    "run -o": ("run", "-o=report.json", "--simulate=cuda", HISTC, "program.py"),
    "run on the CPU": ("run", "program.py"),
    "run --quiet": ("run", "--quiet", "--simulate=cuda", HISTC, "program.py"),
    "run --write-lock": ("run", "--write-lock", "program.py"),
    "run --locked": ("run", "--locked", "--lock=other.lock", "program.py"),
    "audit": ("audit", "program.py"),
    "audit --no-substitute": ("audit", "--no-substitute", "program.py"),
    "audit --long": ("audit", "--long", "program.py"),
    "record": ("record", "-o=a-folder-of-recordings/with-a-long-name/first", "varying.py"),
    "probe": ("probe", "--simulate=cuda", "varying.py"),
    "doctor": ("doctor",),
    "doctor --all": ("doctor", "--all"),
    "doctor --against": ("doctor", "--against=other.lock"),
    "explain": ("explain", "aten::index_add", "F.interpolate", "flip"),
    "explain a glob": ("explain", "*scatter*"),
    "certify": ("certify", f"{ROOT}/tools/pictured/kernels.py::total"),
    "lock": ("lock", "-o=a-lock-of-this-environment-with-a-long-name.lock"),
    "rules": ("rules",),
}  # fmt: skip
LOCK = """
version = 1
[environment]
PYTHONHASHSEED = "12345"
[versions]
python = "3.9.1 of a distribution with a long name, with patches"
"""


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "varying.py").write_text(VARYING)
    (tmp_path / "other.lock").write_text(LOCK)
    (tmp_path / "a-folder-of-recordings" / "with-a-long-name").mkdir(parents=True)


def printed(
    run_command: Run, monkeypatch: pytest.MonkeyPatch, width: int, *arguments: str
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    done = run_command(*arguments)
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert lines
    # A traceback is Python's.
    if "Traceback (most recent call last):" in lines:
        lines = lines[lines.index("", lines.index("Traceback (most recent call last):")) :]
    return lines


def too_wide(lines: list[str], width: int) -> list[str]:
    return [line for line in lines if len(line) > width]


@needs.compiler
@pytest.mark.parametrize(("name", "width"), todays_forms(product(COMMANDS, WIDTHS)))
def test_no_line_is_wider_than_the_terminal(name, width, run_command, programs, monkeypatch):
    """All that a command prints, on both streams, has at most the terminal's columns."""
    lines = printed(run_command, monkeypatch, width, *COMMANDS[name])
    wide = too_wide(lines, width)
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("width", WIDTHS)
def test_diff_fits(width, run_command, programs, monkeypatch):
    """So has the comparison of two runs, at each level, with and without their tensors."""
    lines = []
    for level, dump in (("call", "--dump=aten::rand.generator@0"), ("module", ""), ("step", "")):
        for run in "ab":
            options = filter(None, (f"-o={level}/{run}", f"--level={level}", dump))
            lines += printed(run_command, monkeypatch, width, "record", *options, "varying.py")
        lines += printed(run_command, monkeypatch, width, "diff", f"{level}/a", f"{level}/b")
    wide = too_wide(lines, width)
    assert not wide, "\n".join(wide)
