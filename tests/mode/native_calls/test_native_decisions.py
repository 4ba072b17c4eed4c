"""Decisions on the player's calls: rules, overrides, regions, the flag; in backward, too."""

import sys
import threading
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from detmode import DeterminismWarning, Refuse, allow, default_rules
from detmode.process.setting import is_flag_on
from detmode.process.torch_settings import deterministic_flag
from detmode.table.condition import Condition
from detmode.table.conditions import on
from detmode.table.rule import Native, Substitute
from tests.mode.native_calls.ways import actions, added, again, data, gathered, only_listed
from tests.shared.programs import in_another_thread, rule


def test_conditions_of_others_are_asked_each_time(ways):
    """They may look at the elements of a tensor, which a key does not have."""
    far = Condition("is_far", lambda call: bool(call.arguments["index"].max() > 1))
    rules = default_rules() + [rule("aten::index_add", when=far, action=Refuse())]

    def program():
        with pytest.warns(DeterminismWarning) as warned:
            for last in (0, 0, 0, 0, 0, 2, 0):
                added(torch.zeros(3, 3), torch.tensor([1, last]), torch.ones(2, 3))
        return len(warned)

    rows = ways.same(program, rules=rules)
    assert [(line[1], count) for line, count, *_ in rows] == [("substitute", 6), ("warn", 1)]


def test_substitutes_of_users_are_called_each_time(ways):
    """They may have effects, and depend on more than their arguments, also around a launcher."""
    index_add = default_rules().get(torch.ops.aten.index_add.default)
    launcher = next(x.rule.action for x in index_add if isinstance(x.rule.action, Substitute))
    factors = []

    def substitute(self, dim, index, source, *, alpha=1):
        factors.append(len(factors))
        return launcher.function(self, dim, index, source, alpha=len(factors))

    def program():
        factors.clear()
        return [added(*data()) for _ in range(6)], len(factors)

    rules = default_rules() + [
        rule("aten::index_add", when=on("cuda"), action=Substitute(substitute))
    ]
    ways.same(program, rules=rules)
    assert len(factors) == 6


def test_allow_regions_overrides_and_recheck(ways):
    """Calls that more than their arguments decide on are Python's."""
    arguments = data()
    with ways.by_player(overrides={"aten::put": "allow"}), ways.by_player(recheck=1.0):
        again(lambda: added(*arguments))
    assert ways.replayed == 0
    with ways.by_player() as mode:
        again(lambda: added(*arguments))
        before = ways.replayed
        with allow("aten::index_add"):
            again(lambda: added(*arguments))
            assert ways.replayed == before > 0
        again(lambda: added(*arguments))
    assert ways.replayed > before
    assert actions(mode) == [("substitute", 8), ("allow", 4)]


@pytest.mark.parametrize("action", ["allow", "native", "warn"])
@pytest.mark.filterwarnings("ignore")  # what varies
def test_overrides_of_operators(action, ways):
    """The action is the override's; calls of operators that none names are made again."""

    def program():
        for _ in range(6):
            before = ways.replayed
            gathered(torch.ones(3, 3, requires_grad=True)).backward()
            of_named.append(ways.replayed - before)
            added(*data())
        others.append(ways.replayed - sum(of_named[-6:]))

    of_named, others = [], []
    ways.same(program, overrides={"aten::scatter_add": action})
    assert of_named == [0] * 12
    assert others[-1] >= 3


class Gathered(torch.autograd.Function):
    """Adds at indices in a backward that is a function of Python's."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return added(grad, torch.tensor([0, 0, 1, 1, 2]), torch.ones(5, 3))


class Quiet(torch.nn.Module):
    """Adds at indices without gradients, which a checkpoint does again in its backward."""

    def forward(self, x):
        with torch.no_grad():
            offset = added(x, torch.tensor([0, 0, 1, 1, 2]), torch.ones(5, 3))
        return gathered(x + offset)


QUIET = Quiet()
BACKWARDS = {
    "of an operator": gathered,
    "of a function of Python's": lambda x: Gathered.apply(x).sum(),
    "of a checkpoint": lambda x: checkpoint(gathered, x, use_reentrant=False),
    "of a re-entrant checkpoint": lambda x: checkpoint(gathered, x, use_reentrant=True),
    "of a re-entrant checkpoint of a module": lambda x: checkpoint(QUIET, x, use_reentrant=True),
    "twice": lambda x: torch.autograd.grad(gathered(x), x, create_graph=True)[0].square().sum(),
}


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards_after_a_region(name, warn_only, ways):
    """They are allowed if their forward was, and others are made by the player, as before it."""
    after = regions_and_backwards(BACKWARDS[name], ways, warn_only=warn_only)
    if "Python" not in name and "checkpoint" not in name:
        assert after[-2] > after[-4] > 0  # the last call was allowed


@only_listed
@pytest.mark.parametrize("warn_only", [False, True])
def test_backwards_after_a_region_in_another_thread(warn_only, ways):
    """As in the thread that has entered the block."""
    after = regions_and_backwards(gathered, ways, in_another_thread, warn_only=warn_only)
    assert after[-2] > after[-4] > 0


def regions_and_backwards(forward, ways, run=lambda f: f(), **arguments):
    """The number of replays after each of twelve backwards; every third forward is allowed."""

    def program():
        x = torch.ones(3, 3, requires_grad=True)
        for i in range(12):
            with allow("aten::scatter_add", "aten::index_add") if i % 3 == 2 else nullcontext():
                result = forward(x)
            result.backward()
            after.append(ways.replayed)
        return x.grad

    after, counts = [], Counter()
    for line, count, *_ in ways.same(lambda: run(program), **arguments):
        counts[line[1]] += count
    assert counts["allow"] >= 4
    assert counts["substitute"] >= 8
    return after


def test_a_region_reaches_the_backward_of_a_backward(ways):
    """The nodes of a backward take over what was allowed at the forward."""
    table = default_rules() + [rule("aten::gather", when=on("cuda"), action=Native())]
    pool = torch.ops.aten.max_pool3d_with_indices

    def program():
        x = torch.ones(1, 1, 4, 4, 4, requires_grad=True)
        for i in range(12):
            with allow("aten::gather") if i % 3 == 2 else nullcontext():
                values, _ = pool(x, [2, 2, 2])
            (grad,) = torch.autograd.grad(values.square().sum(), x, create_graph=True)
            grad.square().sum().backward()

    rows = ways.same(program, rules=table, warn_only=True)
    counts = {line[1]: count for line, count, *_ in rows if "gather" in line[0]}
    assert counts == {"native": 8, "allow": 4}


@only_listed
def test_a_region_of_another_thread(ways):
    """While it is open, Python makes all calls; it ends wherever its end comes from."""
    arguments, opened, done = data(), threading.Event(), threading.Event()

    def work():
        with allow("aten::index_add"):
            opened.set()
            assert done.wait(60)
            again(lambda: added(*arguments))

    with ways.by_player() as mode:
        again(lambda: added(*arguments))
        thread = threading.Thread(target=work)
        thread.start()
        assert opened.wait(60)
        before = ways.replayed
        again(lambda: added(*arguments))
        assert ways.replayed == before > 0
        done.set()
        thread.join()
        again(lambda: added(*arguments))
        assert ways.replayed > before
    assert sorted(actions(mode)) == [("allow", 4), ("substitute", 12)]


@pytest.mark.filterwarnings("ignore")  # while it is off
def test_a_flag_that_the_program_turns_off(ways):
    """Native calls are decided on by the flag of the moment, as with a dispatch mode."""

    def program():
        for is_on in (True, False, True):
            torch.use_deterministic_algorithms(is_on)
            for _ in range(4):
                F.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))

    by_player = ways.as_with_a_dispatch_mode(program)
    assert sum(row.count for row in by_player.records) == 12
    assert "unsettled" not in by_player.report().head


# PyTorch tells that the test's own kernel overrides ATen's.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_another_thread_leaves_the_flag_on_during_a_native_call(ways):
    """One that needs it off waits for the end of the call, although Python knows nothing of it."""
    kernels, states = torch.library.Library("aten", "IMPL"), []

    def kernel(x, *_):
        """In the place of ATen's, so that the other thread comes in its midst."""
        off = threading.Thread(target=deterministic_flag(False).around, args=(lambda: None,))
        off.start()
        off.join(0.05)
        is_outside_python = sys._getframe(1).f_code.co_filename == __file__
        states.append((is_outside_python, off.is_alive(), is_flag_on()))
        threads.append(off)
        return x.clone()

    threads = []
    kernels.impl("convolution", kernel, "CPU")
    try:
        with ways.by_player() as mode:
            for _ in range(8):
                torch.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
                threads[-1].join()
    finally:
        kernels._destroy()
    # A thread of another test may hold the flag for a moment; then a call goes through Python.
    assert [state[1:] for state in states] == [(True, True)] * 8
    assert [state[0] for state in states[:2]] == [False] * 2
    assert sum(state[0] for state in states[2:]) >= 4
    assert actions(mode) == [("native", 8)]
