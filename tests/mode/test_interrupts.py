"""Interrupts: whatever line or instruction one strikes at, everything is put back."""

import contextlib
import os

import pytest
from torch.utils import _python_dispatch as dispatch

import detmode
from tests.mode import locked, stress
from tests.shared import ROOT, interrupted
from tests.shared.processes import run_forked
from tests.shared.selection import PROFILE, SHARE

FILES = (os.path.dirname(detmode.__file__), dispatch.__file__)


@pytest.mark.parametrize("name", interrupted.BLOCKS)
def test_an_interrupt_at_each_line(name):
    """Raised at each line of entering, a call and leaving in turn, an interrupt leaves nothing."""
    block = interrupted.BLOCKS[name]
    block()
    clean = interrupted.state()
    # A week strikes at them all.
    struck, number = ["begin"], SHARE % PROFILE.interrupted_lines
    while struck:
        with (
            interrupted.raised_at_line(number, FILES) as struck,
            contextlib.suppress(KeyboardInterrupt),
        ):
            block()
        left = interrupted.left_since(clean)
        assert not left, f"line {number}, {struck}, left {left}"
        number += PROFILE.interrupted_lines
    assert number > 100


@pytest.mark.parametrize(
    ("program", "arguments"),
    [(interrupted, (PROFILE.signals, 0)), (locked, (PROFILE.locked,)), (stress, (PROFILE.stress,))],
    ids=("interrupted", "locked", "stress"),
)
def test_a_program_of_signals(program, arguments):
    """Real signals leave nothing, wherever they strike; nor does stress, under which nothing hangs.

    No thread takes from another what it needs.
    """
    ended = run_forked("-m", [(program.__name__, *arguments)], ROOT, timeout=500)
    assert (ended.returncode, ended.stderr) == (0, "")
