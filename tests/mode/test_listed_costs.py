"""The cost of ``intercept="listed"``: few calls meet Python, and a block leaves nothing."""

import gc
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from detmode import DeterministicMode, Refuse, RuleTable
from detmode.mode import listed
from detmode.table.conditions import FLOATING, cublas_workspace_unset, dtype_in, on
from detmode.verify.claims import same_bits
from tests.shared import needs
from tests.shared.programs import rule
from tests.shared.selection import PROFILE

pytestmark = [
    pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE),
    pytest.mark.usefixtures("without_player"),
]


@pytest.fixture
def entries():
    """Counts the calls that reach a kernel in Python while a function runs."""

    def count(function):
        seen = []

        def note(frame, event, argument):
            if event == "call" and frame.f_code.co_name == "kernel":
                seen.append(frame.f_code.co_filename)

        sys.setprofile(note)
        try:
            function()
        finally:
            sys.setprofile(None)
        return seen.count(listed.__file__)

    return count


def test_views_and_convolutions_enter_no_python(entries):
    """Listed operators that ATen calls inside of them cost nothing: no kernel in Python runs.

    With gradients as well, forward and backward; a call by the program's own hand is received.
    """
    convolution, x = torch.nn.Conv2d(3, 4, 3), torch.ones(1, 3, 8, 8, requires_grad=True)
    calls = (
        lambda: x.transpose(0, 1)[0].expand(2, 1, 8, 8).squeeze().t,
        lambda: x[0, 1:, None].permute(1, 0, 2, 3).reshape(-1).chunk(2)[0].neg().sum().backward(),
        lambda: convolution(x).sum().backward(),
        lambda: torch.nn.functional.conv_transpose2d(
            x, x.detach()[:, :, :3, :3].expand(3, 3, 3, 3)
        ),
    )
    with DeterministicMode(intercept="listed", simulate="cuda"):
        assert [entries(call) for call in calls] == [0] * len(calls)
        assert entries(lambda: x.as_strided((2,), (1,))) == 1


@needs.compiler
def test_the_line_of_a_view_by_strides(line):
    """The backward of ``as_strided`` adds by index: its row has the line of the forward call."""

    def work():
        x = torch.ones(8, requires_grad=True)
        windows = x.as_strided((6, 3), (1, 1))  # here
        (windows * windows).sum().backward()

    with DeterministicMode(intercept="listed", simulate="cuda") as mode:
        work()
    assert [row.site for row in mode.records if "index_add" in row.overload] == line(work)


CONVOLUTION = (torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), None, [1, 1], [0, 0], [1, 1])


@pytest.mark.parametrize(("benchmark", "deterministic"), [(True, True), (False, False)])
def test_a_convolution_that_says_itself_how_it_runs(benchmark, deterministic):
    """A traced program passes the settings of its tracing: a warning names the call's line.

    A call that asks for what does not vary gives none.
    """

    def call(*how):
        return torch._convolution(*CONVOLUTION, False, [0, 0], 1, *how, True, True)

    with DeterministicMode(intercept="listed", simulate="cuda") as mode:
        call(False, True)
        with pytest.warns(UserWarning, match="aten::_convolution"):
            expected = call(benchmark, deterministic)
    assert [row.action for row in mode.records if row.varies] == ["warn"]
    assert same_bits(expected, call(benchmark, deterministic))
    with DeterministicMode(intercept="listed", simulate="cuda", strict=True):
        with pytest.raises(RuntimeError, match="aten::_convolution"):
            call(benchmark, deterministic)
        assert same_bits(expected, call(False, True))


def test_the_environment_is_read_at_the_block(entries, monkeypatch):
    """Products enter Python, and are refused, only where cuBLAS has no workspace of its own."""
    when = on("cuda") & dtype_in("self", FLOATING) & cublas_workspace_unset()
    x, rules = torch.ones(2, 2), RuleTable([rule("aten::mm", Refuse(), when=when)])
    mode = DeterministicMode(rules=rules, strict=True, intercept="listed", simulate="cuda")
    for value, count in ((":4096:8", 0), ("", 1), (":16:8", 0)):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        with mode, pytest.raises(RuntimeError, match="aten::mm") if count else nullcontext():
            assert entries(lambda: x @ x) == count
    assert [row.count for row in mode.records] == [1]


def test_many_blocks_take_no_more_memory_than_ten():
    """Kernels are made once, and registered again at each block."""
    count = 1000 if PROFILE.thorough else 100

    def enter(times):
        for _ in range(times):
            with mode:
                pass
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    mode = DeterministicMode(intercept="listed", simulate="cuda")
    before = enter(10)
    assert enter(count) - before < 2048 * count  # what a block left would be two kilobytes


# PyTorch says that the kernel is replaced, which the test means to do.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_that_is_replaced_between_blocks(mode):
    """The next block calls what the program has registered meanwhile, and then ATen's again."""
    seen = []

    def allowed():
        with mode(intercept="listed", overrides={"aten::neg": "allow"}):
            return torch.ones(2).neg().tolist()

    assert allowed() == [-1, -1]
    for value in (5.0, 7.0):
        library = torch.library.Library("aten", "IMPL")
        library.impl("neg", lambda x, value=value: torch.full_like(x, value), "CPU")
        seen.append(allowed())
        library._destroy()
    assert seen == [[5, 5], [7, 7]]
    assert allowed() == [-1, -1]
