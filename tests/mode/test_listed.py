"""``intercept="listed"``: kernels of the listed operators alone hand their calls to the mode."""

import contextlib
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterministicMode, Refuse, RuleTable, Substitute, allow
from detmode.mode import listed
from detmode.mode.deterministic_mode import current_mode
from detmode.verify.claims import same_bits
from tests.mode.listing import INDEX_ADD, tables
from tests.mode.native_calls.ways import rows_of_both
from tests.shared import needs
from tests.shared.compiled_functions import FUNCTIONS, run
from tests.shared.programs import Seen, actions, image, in_another_thread, index_add, put, rule

pytestmark = [
    pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE),
    pytest.mark.usefixtures("without_player"),
]

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


def test_other_operators_keep_their_kernels(listing):
    """Neither an unlisted operator nor a native one has another kernel inside the block."""
    names = ("aten::neg", "aten::cumsum", "aten::mm", "aten::empty.memory_format")
    before = [torch._C._dispatch_dump_table(name) for name in names]
    listed_before = tables()
    with listing():
        assert [torch._C._dispatch_dump_table(name) for name in names] == before
        assert tables() != listed_before
    assert tables() == listed_before


def test_below_autograd_and_autocast(listing):
    """They do not apply to what a substitute calls, also for an operator without a derivative."""
    seen = []

    def substitute(self, weights, minlength):
        x = torch.ones(2, 2, requires_grad=True)
        seen.append((x.mul(2).requires_grad, (x @ x).dtype))
        return torch.zeros(1)

    rules = RuleTable([rule("aten::bincount", Substitute(substitute))])
    with listing(rules=rules), torch.autocast("cpu", torch.bfloat16):
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


def test_calls_of_another_thread(listing, line):
    """A thread that has entered no mode is in the block, with its lines, forward and backward."""

    def work():
        index_add()
        F.interpolate(image(), scale_factor=2, mode="bilinear").sum().backward()  # here

    with listing(intercept="all") as unseen:
        in_another_thread(work)
    with listing() as seen:
        in_another_thread(work)
    assert actions(unseen) == []
    backward = ("aten::upsample_bilinear2d_backward.default", "substitute", 1)
    assert actions(seen) == [INDEX_ADD, backward]
    assert [seen.records[-1].site] == line(work)


def test_a_region_belongs_to_its_thread(listing):
    """An ``allow`` region exempts the calls of the thread that opened it, and of no other."""

    def allowed():
        with allow("aten::put_"):
            put()

    with listing() as mode:
        with allow("aten::put_"), pytest.raises(RuntimeError, match="put_"):
            in_another_thread(put)
        in_another_thread(allowed)
        with pytest.raises(RuntimeError, match="put_"):
            put()
    assert sorted(action for _, action, _ in actions(mode)) == ["allow", "error"]


def test_an_operator_that_is_loaded_later_meets_pytorchs_alert(listing):
    """Torchvision alerts above its operator: skipped only if calls of that are intercepted."""
    rules = RuleTable([rule("torchvision::absent", Refuse(), alert="absent")], family="small")
    with listing(rules=rules, intercept="all"):
        torch._prims_common.alert_not_deterministic("absent")
    with listing(rules=rules), pytest.raises(RuntimeError, match="absent does not have"):
        torch._prims_common.alert_not_deterministic("absent")


@pytest.mark.parametrize(
    ("outer", "inner"), [("listed", "listed"), ("all", "listed"), ("listed", "all")]
)
def test_nested_blocks(listing, outer, inner):
    """The innermost block acts, once for each call, and then the outer one again."""
    before = tables()
    first, second = (
        listing(intercept=outer),
        listing(intercept=inner, overrides={"aten::neg": "allow"}),
    )
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


def test_one_mode_again(listing):
    """A mode that is entered twice counts each call once, and stays until it is left twice."""
    before, mode = tables(), listing()
    with mode:
        with mode:
            index_add()
        index_add()
    index_add()
    assert actions(mode) == [(*INDEX_ADD[:2], 2)]
    assert tables() == before


def test_a_block_ends_before_one_that_was_entered_in_it(listing):
    """The kernels stay as long as a block is open, in whichever order they end."""
    before = tables()
    first, second = listing(), listing()
    blocks = contextlib.ExitStack()
    blocks.enter_context(first)
    with second:
        blocks.close()
        index_add()
    assert actions(second) == [INDEX_ADD]
    assert tables() == before


def test_inside_a_substitute_originals_run(table, listing):
    """Calls of a substitute are not intercepted again, also where it calls its own operator."""

    def substitute(**arguments):
        return torch.ops.aten.index_add.default(**arguments)

    rules = RuleTable([rule("aten::index_add", Substitute(substitute, launches=False))])
    with listing(rules=rules) as mode:
        assert index_add().tolist() == [1, 0, 0]
    assert actions(mode) == [INDEX_ADD]


def test_a_mode_inside_a_substitute(listing):
    """It receives calls as anywhere: PyTorch 2.9 fails where the first key is excluded."""
    seen = Seen()

    def substitute(self, dim, index, source, *, alpha):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        assert not excluded.has(torch._C.DispatchKey.PythonTLSSnapshot)
        with seen:
            return self.clone()

    rules = RuleTable([rule("aten::index_add", Substitute(substitute, launches=False))])
    with listing(rules=rules):
        assert index_add().tolist() == [0, 0, 0]
    assert seen.names == ["aten::clone"]


def test_what_an_unlisted_operator_calls_is_intercepted(listing):
    """A forward that is intercepted for its place alone hides no call inside it."""
    rules = RuleTable([rule("aten::index_add", Refuse())], forwards=["aten::_to_dense"])
    before = torch._C._dispatch_dump_table("aten::_to_dense")
    with listing(rules=rules, strict=True) as mode:
        assert torch._C._dispatch_dump_table("aten::_to_dense") != before
        with pytest.raises(RuntimeError, match="index_add_"):
            torch.eye(3).to_sparse_csr().to_dense()
    assert actions(mode) == [("aten::index_add_.default", "error", 1)]


def test_an_interrupted_registration_leaves_no_kernel(listing, monkeypatch):
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
    with listing():
        inside = [torch._C._dispatch_dump_table(name) for name in names]
        monkeypatch.setattr(torch._C, "_dispatch_library", Interrupted)
        with pytest.raises(KeyboardInterrupt), listing(overrides={"aten::neg": "allow"}):
            pass
        monkeypatch.undo()
        assert len(calls) == 1
        assert [torch._C._dispatch_dump_table(name) for name in names] == inside
        with listing(overrides={"aten::neg": "allow"}) as again:
            torch.ones(2).neg()
    assert actions(again) == [("aten::neg.default", "allow", 1)]
    assert tables() == before
