"""``intercept="listed"`` beside recordings, compilers, forks, reports and the command line."""

import contextlib
import threading
import warnings

import pytest
import torch

from detmode import DeterministicMode, default_rules, diff, record
from detmode.mode import listed
from detmode.reports.report import Report
from detmode.verify.claims import same_bits
from tests.mode.listing import INDEX_ADD, tables
from tests.mode.native_calls.ways import rows_of_both
from tests.process.test_setting import exit_code_of_child
from tests.shared import needs
from tests.shared.compiled_functions import FUNCTIONS, run
from tests.shared.processes import run_forked
from tests.shared.programs import actions, in_another_thread, index_add, put

pytestmark = [
    pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE),
    pytest.mark.usefixtures("without_player"),
]


@needs.compiler
def test_calls_in_c_plus_plus():
    """``to_dense`` of a CSR tensor calls ``index_add_``, which a dispatch mode never sees."""
    x = torch.eye(3).to_sparse_csr()
    counts = {}
    for intercept in ("all", "listed"):
        with DeterministicMode(simulate="cuda", intercept=intercept) as mode:
            x.to_dense()
            torch.cumulative_trapezoid(torch.ones(4))  # taken apart above the modes
        counts[intercept] = [row.overload for row in mode.records]
    assert counts["all"] == ["aten::cumsum.default"]
    assert counts["listed"] == ["aten::index_add_.default", "aten::cumsum.default"]


def test_a_forked_child(listing):
    """It is in the block of the thread that forked it, and in no block of another thread's."""
    before = tables()

    def leaves():
        with contextlib.suppress(ZeroDivisionError), listing() as mode:
            index_add()
            raise ZeroDivisionError
        return actions(mode) == [INDEX_ADD] and tables() == before

    assert exit_code_of_child(leaves) == 0
    mode = listing()
    with mode:

        def counts():
            index_add()
            return actions(mode) == [INDEX_ADD] and tables() != before

        assert exit_code_of_child(counts) == 0
        assert in_another_thread(exit_code_of_child, lambda: tables() == before) == 0
    assert actions(mode) == []
    assert tables() == before


def test_another_table_in_another_thread_is_refused(listing):
    """Two blocks in two threads may be open at a time if they decide alike, and only then."""
    before, entered, leave = tables(), threading.Event(), threading.Event()
    other = listing()

    def stay():
        with other:
            entered.set()
            assert leave.wait(60)
            index_add()

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert entered.wait(60)
        with pytest.raises(RuntimeError, match="another thread is in such a block"):
            listing(rules=default_rules()).__enter__()
        with pytest.raises(RuntimeError, match='or use intercept="all"'):
            listing(warn_only=True).__enter__()
        with listing(rules=default_rules(), intercept="all"), listing() as mine:
            index_add()
    finally:
        leave.set()
        thread.join(60)
    assert actions(mine) == actions(other) == [INDEX_ADD]
    assert tables() == before


@needs.compiler
@pytest.mark.parametrize("outermost", ["record", "mode"])
def test_a_recording_sees_whole_calls(tmp_path, outermost):
    """Inside a recording or around it: calls are recorded whole, and detmode's own not counted."""
    recordings, modes = [], []
    for intercept in ("all", "listed"):
        mode = DeterministicMode(simulate="cuda", intercept=intercept)
        recording = record(tmp_path / intercept)
        blocks = [recording, mode] if outermost == "record" else [mode, recording]
        with blocks[0], blocks[1]:
            torch.zeros(5).index_add(0, torch.tensor([0, 0]), torch.ones(2))
            torch.ones(1 << 15).cumsum(0)
        modes.append(actions(mode))
        recordings.append(tmp_path / intercept)
    assert modes[1] == modes[0] == [INDEX_ADD, ("aten::cumsum.default", "substitute", 1)]
    assert diff(*recordings).divergence is None


def summed(x, index, source):
    doubled = x * 2
    added = doubled.index_add(0, index, source)
    picked = added[index]
    return picked.cumsum(0)


@needs.compiler
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
)
@pytest.mark.filterwarnings("ignore")  # PyTorch's compilers warn of much that no test is about
def test_compiled_code(backend):
    """A compiled function meets the rows of eager code, and is compiled once for both modes."""
    _, make = FUNCTIONS["index_add"]
    torch.manual_seed(0)
    arguments = make()
    torch._dynamo.reset()
    compiled = torch.compile(summed, backend=backend)
    seen, called = [], (summed, compiled, compiled)
    for call, intercept in zip(called, ("listed", "listed", "all")):
        with DeterministicMode(simulate="cuda", intercept=intercept) as mode:
            bits = run(call, arguments)
        seen.append((rows_of_both(mode), bits))
    (eager, expected), *others = seen
    assert len(eager) == 2
    for found, bits in others:
        assert found == eager
        assert same_bits(bits, expected)
    torch._dynamo.reset()


def test_the_report_says_what_was_not_seen(listing):
    """The verdict, on one line, and the JSON; a report of all calls says nothing of it."""
    with listing() as mode:
        index_add()
    report = mode.report()
    unseen = "unlisted calls, and those left to PyTorch's flag, were not counted"
    assert report.verdict.startswith("deterministic on this GPU model with this software: ")
    assert unseen in report.verdict
    again = Report.from_json(report.to_json())
    assert (again.verdict, again.head["intercept"]) == (report.verdict, "listed")
    with listing(warn_only=True) as mode, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is what is looked at
        put()
    assert mode.report().verdict.startswith(f"may vary: 1 call at 1 line ({unseen}")
    assert "intercept" not in listing(intercept="all").report().head


@needs.compiler
def test_on_the_command_line(run_command, tmp_path):
    """``detmode run --intercept listed`` counts the calls of a program's threads."""
    (tmp_path / "script.py").write_text(
        "import threading, torch\n"
        "add = lambda: torch.zeros(3).index_add(0, torch.tensor([0]), torch.ones(1))\n"
        "thread = threading.Thread(target=add); thread.start(); thread.join()\n"
    )
    ended = run_command("run", "--simulate", "cuda", "--intercept", "listed", "script.py")
    assert ended.returncode == 0
    assert "aten::index_add.default" in ended.stderr
    assert "were not counted" in ended.stderr


def test_a_first_block_is_silent(tmp_path):
    """PyTorch warns of kernels that override others; a program that asks for them is not told."""
    code = """
import warnings, detmode
warnings.simplefilter("error", UserWarning)
with detmode.DeterministicMode(intercept="listed"): pass
"""
    ended = run_forked("-c", [[code]], tmp_path, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_program_that_wants_all_warnings(listing, monkeypatch):
    """No block tells it of the kernels that it overrides, be it the first; the choice stays."""
    monkeypatch.setattr(listed, "_has_overridden", False)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                with listing() as mode:
                    index_add()
                assert actions(mode) == [INDEX_ADD]
        assert torch.is_warn_always_enabled()
    finally:
        torch.set_warn_always(False)
