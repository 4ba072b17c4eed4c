"""``intercept="listed"``: kernels of the listed operators alone hand their calls to the mode."""

import contextlib
import copy
import pickle
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from detmode import (
    DeterministicMode,
    Refuse,
    RuleTable,
    Substitute,
    allow,
    default_rules,
    diff,
    record,
)
from detmode.mode import listed
from detmode.mode.deterministic_mode import current_mode
from detmode.reports.report import Report
from detmode.verify.claims import same_bits
from tests.mode.native_calls.ways import rows_of_both
from tests.process.test_setting import exit_code_of_child
from tests.shared import needs
from tests.shared.compiled_functions import FUNCTIONS, run
from tests.shared.processes import run_forked
from tests.shared.programs import (
    actions,
    image,
    in_another_thread,
    index_add,
    put,
    rule,
)

pytestmark = [
    pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE),
    pytest.mark.usefixtures("without_player"),
]

INDEX_ADD = ("aten::index_add.default", "substitute", 1)
SAMPLE = (
    "index_add",
    "getitem",
    "conv2d",
    "interpolate-bilinear-2d",
    "in-place-setitem-add",
    "sparse-mm",
)
OWN_FORMULAS = {"median"}
"""Functions whose gradient PyTorch computes by another formula while a dispatch mode is on."""


def tables() -> list[str]:
    """Tables of the dispatcher for operators that the tests list."""
    names = ("index_add", "index_add_", "index_add.out", "put_", "upsample_bicubic2d_backward")
    return [torch._C._dispatch_dump_table(f"aten::{name}") for name in (*names, "neg")]


@pytest.fixture
def made(mode):
    """Makes modes over the small table that intercept listed operators alone."""
    return lambda **arguments: mode(**{"intercept": "listed", **arguments})


# The same as with a dispatch mode


@needs.compiler
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=() if each in SAMPLE else pytest.mark.thorough)
        for each in FUNCTIONS
    ],
)
@pytest.mark.filterwarnings("ignore")  # each call of the table warns somewhere
def test_every_listed_operator(name):
    """By the user's functions, forward and backward: the rows, lines and bits of a dispatch mode.

    With ``warn_only`` native calls are intercepted too.
    """
    torch.manual_seed(0)
    function, make = FUNCTIONS[name]
    arguments = make()
    seen = []
    for intercept in ("all", "listed"):
        with DeterministicMode(True, simulate="cuda", intercept=intercept) as mode:
            bits = run(function, arguments)
        seen.append((rows_of_both(mode), bits))
    (expected, bits), (found, own_bits) = seen
    assert found == expected
    assert name in OWN_FORMULAS or same_bits(own_bits, bits)


def test_other_operators_keep_their_kernels(made):
    """Neither an unlisted operator nor a native one has another kernel inside the block."""
    names = ("aten::neg", "aten::cumsum", "aten::mm", "aten::empty.memory_format")
    before = [torch._C._dispatch_dump_table(name) for name in names]
    listed_before = tables()
    with made():
        assert [torch._C._dispatch_dump_table(name) for name in names] == before
        assert tables() != listed_before
    assert tables() == listed_before


def test_below_autograd_and_autocast(made):
    """They do not apply to what a substitute calls, also for an operator without a derivative."""
    seen = []

    def substitute(self, weights, minlength):
        x = torch.ones(2, 2, requires_grad=True)
        seen.append((x.mul(2).requires_grad, (x @ x).dtype))
        return torch.zeros(1)

    rules = RuleTable([rule("aten::bincount", Substitute(substitute))])
    with made(rules=rules), torch.autocast("cpu", torch.bfloat16):
        torch.tensor([0, 1]).bincount(torch.ones(2, requires_grad=True))
    assert seen == [(False, torch.float32)]


@pytest.mark.parametrize("how", [copy.copy, lambda mode: pickle.loads(pickle.dumps(mode))])
def test_a_copy_intercepts_in_the_same_way(how):
    """Copies and pickles keep the argument."""
    mode = DeterministicMode(intercept="listed", overrides={"aten::neg": "allow"})
    with mode:
        torch.ones(2).neg()
    copied = how(mode)
    with copied:
        assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
        torch.ones(2).neg()
    assert actions(copied) == [("aten::neg.default", "allow", 1)]


# What a dispatch mode does not see


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


def test_calls_of_another_thread(made, line):
    """A thread that has entered no mode is in the block, with its lines, forward and backward."""

    def work():
        index_add()
        F.interpolate(image(), scale_factor=2, mode="bilinear").sum().backward()  # here

    with made(intercept="all") as unseen:
        in_another_thread(work)
    with made() as seen:
        in_another_thread(work)
    assert actions(unseen) == []
    backward = ("aten::upsample_bilinear2d_backward.default", "substitute", 1)
    assert actions(seen) == [INDEX_ADD, backward]
    assert [seen.records[-1].site] == line(work)


def test_a_region_belongs_to_its_thread(made):
    """An ``allow`` region exempts the calls of the thread that opened it, and of no other."""

    def allowed():
        with allow("aten::put_"):
            put()

    with made() as mode:
        with allow("aten::put_"), pytest.raises(RuntimeError, match="put_"):
            in_another_thread(put)
        in_another_thread(allowed)
        with pytest.raises(RuntimeError, match="put_"):
            put()
    assert sorted(action for _, action, _ in actions(mode)) == ["allow", "error"]


def test_an_operator_that_is_loaded_later_meets_pytorchs_alert(made):
    """Torchvision alerts above its operator: skipped only if calls of that are intercepted."""
    rules = RuleTable([rule("torchvision::absent", Refuse(), alert="absent")], family="small")
    with made(rules=rules, intercept="all"):
        torch._prims_common.alert_not_deterministic("absent")
    with made(rules=rules), pytest.raises(RuntimeError, match="absent does not have"):
        torch._prims_common.alert_not_deterministic("absent")


# Nesting


@pytest.mark.parametrize(
    ("outer", "inner"), [("listed", "listed"), ("all", "listed"), ("listed", "all")]
)
def test_nested_blocks(made, outer, inner):
    """The innermost block acts, once for each call, and then the outer one again."""
    before = tables()
    first, second = made(intercept=outer), made(intercept=inner, overrides={"aten::neg": "allow"})
    with first:
        index_add()
        with second:
            index_add()
            torch.ones(2).neg()
            assert current_mode() is second
        index_add()
        torch.ones(2).neg()
        assert current_mode() is first
    assert actions(first) == [(*INDEX_ADD[:2], 2)]
    assert actions(second) == [INDEX_ADD, ("aten::neg.default", "allow", 1)]
    assert tables() == before


def test_one_mode_again(made):
    """A mode that is entered twice counts each call once, and stays until it is left twice."""
    before, mode = tables(), made()
    with mode:
        with mode:
            index_add()
        index_add()
    index_add()
    assert actions(mode) == [(*INDEX_ADD[:2], 2)]
    assert tables() == before


def test_a_block_ends_before_one_that_was_entered_in_it(made):
    """The kernels stay as long as a block is open, in whichever order they end."""
    before = tables()
    first, second = made(), made()
    blocks = contextlib.ExitStack()
    blocks.enter_context(first)
    with second:
        blocks.close()
        index_add()
    assert actions(second) == [INDEX_ADD]
    assert tables() == before


def test_inside_a_substitute_originals_run(table, made):
    """Calls of a substitute are not intercepted again, also where it calls its own operator."""

    def substitute(**arguments):
        return torch.ops.aten.index_add.default(**arguments)

    rules = RuleTable([rule("aten::index_add", Substitute(substitute, launches=False))])
    with made(rules=rules) as mode:
        assert index_add().tolist() == [1, 0, 0]
    assert actions(mode) == [INDEX_ADD]


def test_a_mode_inside_a_substitute(made):
    """It receives calls as anywhere: PyTorch 2.9 fails where the first key is excluded."""
    calls = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **kwargs or {})

    def substitute(self, dim, index, source, *, alpha):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        assert not excluded.has(torch._C.DispatchKey.PythonTLSSnapshot)
        with Seen():
            return self.clone()

    rules = RuleTable([rule("aten::index_add", Substitute(substitute, launches=False))])
    with made(rules=rules):
        assert index_add().tolist() == [0, 0, 0]
    assert calls == [torch.ops.aten.clone.default]


def test_what_an_unlisted_operator_calls_is_intercepted(made):
    """A forward that is intercepted for its place alone hides no call inside it."""
    rules = RuleTable([rule("aten::index_add", Refuse())], forwards=["aten::_to_dense"])
    before = torch._C._dispatch_dump_table("aten::_to_dense")
    with made(rules=rules, strict=True) as mode:
        assert torch._C._dispatch_dump_table("aten::_to_dense") != before
        with pytest.raises(RuntimeError, match="index_add_"):
            torch.eye(3).to_sparse_csr().to_dense()
    assert actions(mode) == [("aten::index_add_.default", "error", 1)]


# The end


def test_an_exception_leaves_no_kernel(made):
    """Raised inside, also by a refused call, it ends the interception."""
    before = tables()
    with pytest.raises(RuntimeError, match="put_"), made():
        put()
    with pytest.raises(ZeroDivisionError), made():
        raise ZeroDivisionError
    assert tables() == before


def test_an_interrupted_registration_leaves_no_kernel(made, monkeypatch):
    """An interrupt among the registrations of an inner block takes back those, and no others."""
    before, make = tables(), torch._C._dispatch_library
    calls = []

    class Interrupted:
        def __init__(self, *arguments):
            self.library = make(*arguments)
            self.reset = self.library.reset

        def impl(self, *arguments):
            calls.append(arguments)
            self.library.impl(*arguments)
            raise KeyboardInterrupt

    names = ("aten::neg", "aten::neg.out", "aten::index_add")
    with made():
        inside = [torch._C._dispatch_dump_table(name) for name in names]
        monkeypatch.setattr(torch._C, "_dispatch_library", Interrupted)
        with pytest.raises(KeyboardInterrupt), made(overrides={"aten::neg": "allow"}):
            pass
        monkeypatch.undo()
        assert len(calls) == 1
        assert [torch._C._dispatch_dump_table(name) for name in names] == inside
        with made(overrides={"aten::neg": "allow"}) as again:
            torch.ones(2).neg()
    assert actions(again) == [("aten::neg.default", "allow", 1)]
    assert tables() == before


def test_a_forked_child(made):
    """It is in the block of the thread that forked it, and in no block of another thread's."""
    before = tables()

    def leaves():
        with contextlib.suppress(ZeroDivisionError), made() as mode:
            index_add()
            raise ZeroDivisionError
        return actions(mode) == [INDEX_ADD] and tables() == before

    assert exit_code_of_child(leaves) == 0
    mode = made()
    with mode:

        def counts():
            index_add()
            return actions(mode) == [INDEX_ADD] and tables() != before

        assert exit_code_of_child(counts) == 0
        assert in_another_thread(exit_code_of_child, lambda: tables() == before) == 0
    assert actions(mode) == []
    assert tables() == before


def test_another_table_in_another_thread_is_refused(made):
    """Two blocks in two threads may be open at a time if they decide alike, and only then."""
    before, entered, leave = tables(), threading.Event(), threading.Event()
    other = made()

    def stay():
        with other:
            entered.set()
            assert leave.wait(10)
            index_add()

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert entered.wait(10)
        with pytest.raises(RuntimeError, match="another thread is in such a block"):
            made(rules=default_rules()).__enter__()
        with pytest.raises(RuntimeError, match='or use intercept="all"'):
            made(warn_only=True).__enter__()
        with made(rules=default_rules(), intercept="all"), made() as mine:
            index_add()
    finally:
        leave.set()
        thread.join(10)
    assert actions(mine) == actions(other) == [INDEX_ADD]
    assert tables() == before


# With the rest of detmode


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


def test_the_report_says_what_was_not_seen(made):
    """The verdict, on one line, and the JSON; a report of all calls says nothing of it."""
    with made() as mode:
        index_add()
    report = mode.report()
    unseen = "unlisted calls, and those left to PyTorch's flag, were not counted"
    assert report.verdict.startswith("deterministic on this GPU model with this software: ")
    assert unseen in report.verdict
    again = Report.from_json(report.to_json())
    assert (again.verdict, again.head["intercept"]) == (report.verdict, "listed")
    with made(warn_only=True) as mode, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is what is looked at
        put()
    assert mode.report().verdict.startswith(f"may vary: 1 call at 1 line ({unseen}")
    assert "intercept" not in made(intercept="all").report().head


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
