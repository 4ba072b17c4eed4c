"""Blocks, threads and other modes around the player's calls: who counts a call, and once."""

import contextlib
import threading
from contextlib import nullcontext
from functools import partial

import pytest

from detmode import RuleTable
from detmode.reports.report import Report
from detmode.reports.union import of_ranks
from detmode.runs.probing import Probe
from detmode.verify.claims import same_bits
from tests.mode.native_calls.ways import actions, added, again, data, only_listed, rows
from tests.shared.programs import Seen, in_another_thread, in_threads


def counts_and_heads(modes):
    """The rows of each mode, its number of calls, and what it has not seen."""
    return [
        (rows(mode), sum(row.count for row in mode.records), mode.report().head.get("not_seen"))
        for mode in modes
    ]


def nested(mode, inner, ways):
    """Calls in a block, in an inner one, and behind that: the replays of each."""
    numbers = []
    with mode:
        for block in (nullcontext(), inner, nullcontext()):
            before = ways.replayed
            with block:
                again(lambda: added(*data()))
                in_another_thread(lambda: again(lambda: added(*data())))
            numbers.append(ways.replayed - before)
    return numbers


@pytest.mark.parametrize("is_same", [False, True])
def test_nested_blocks(is_same, ways):
    """The innermost block decides, in the player too if it lists, and the outer one goes on."""
    reports = []
    for number in (0, 1):
        ways.use(number)
        outer, inner = ways.mode(), ways.mode()
        replayed = nested(outer, outer if is_same else inner, ways)
        reports.append(counts_and_heads((outer, inner)))
    assert reports[0] == reports[1]
    lists = ways.intercept == "listed"
    threads = 2 if lists else 1  # a mode does not act in another one
    expected = [12, 0] if is_same else [8, 4]
    assert [count for _, count, _ in reports[1]] == [threads * count for count in expected]
    assert [number > 0 for number in replayed] == [True, lists, True]


@only_listed
def test_a_mode_for_each_step_looks_nothing_up_at_its_beginning(ways, monkeypatch):
    """The facts about operators are the table's: the player learns them with its first mode."""
    with ways.by_player():
        pass
    looked_up = []
    get = RuleTable.get
    monkeypatch.setattr(RuleTable, "get", lambda *a: (looked_up.append(a[1]), get(*a))[1])
    with ways.by_player():
        assert looked_up == []
        added(*data())
    assert looked_up != []


def works(modes, ways, calls=6):
    """Threads that have blocks of their own at a time, before and behind it, and one without."""
    barrier = threading.Barrier(3)

    def work(block):
        again(lambda: added(*data()), calls)
        barrier.wait(60)
        with block:
            barrier.wait(60)
            before = ways.replayed
            again(lambda: added(*data()), calls)
            barrier.wait(60)
            after = ways.replayed
            barrier.wait(60)
        barrier.wait(60)
        again(lambda: added(*data()), calls)
        return after - before

    return in_threads(*(partial(work, block) for block in (*modes, nullcontext())))


@pytest.mark.parametrize("is_same", [False, True])
@only_listed
def test_blocks_of_several_threads(is_same, ways):
    """The player acts for those of one mode, and tells the calls that are not the blocks' own."""
    reports = []
    for number in (0, 1):
        ways.use(number)
        modes = [ways.mode()] * 2 if is_same else [ways.mode(), ways.mode()]
        with modes[0]:
            replayed = works(modes, ways)
        reports.append(counts_and_heads(modes))
    counts = [count for _, count, _ in reports[1]]
    if is_same:
        assert reports[0] == reports[1]
        assert counts == [54, 54]
        assert all(count > 0 for count in replayed)
    else:
        assert sum(counts) == 54
        assert replayed == [0, 0, 0]


@only_listed
def test_threads(ways):
    """Four threads at once: each result is its own, and every call is counted, with the threads."""
    seen = []
    for number in (0, 1):
        wrong = []

        def work(wrong=wrong):
            for i in range(60):
                x, index, source = data(4 + i % 5, i % 7)
                expected = x.clone()
                for row, addend in zip(index.tolist(), source):
                    expected[row] += addend
                if not added(x, index, source).allclose(expected, atol=1e-5):
                    wrong.append(i)

        with ways.block(number) as mode:
            in_threads(*[work] * 4)
        assert not wrong
        seen.append((rows(mode), mode.report().head["not_seen"]))
    assert ways.replayed > 50
    assert seen[0] == seen[1]


@pytest.mark.parametrize("is_outside", [False, True])
def test_other_modes(ways, is_outside):
    """A dispatch mode around the block, or inside it, sees the calls that it would see."""
    seen = []
    for number in (0, 1):
        seeing = Seen()
        outer, inner = (seeing, nullcontext()) if is_outside else (nullcontext(), seeing)
        with outer, ways.block(number) as mode, inner:
            again(lambda: added(*data()))
        seen.append((seeing.names, rows(mode)))
    assert seen[0] == seen[1]
    assert seen[0][0]


def test_calls_inside_those_of_another_mode(ways):
    """The player makes what another mode calls in Python."""
    with ways.by_player() as mode, Seen():
        results = [added(*data()) for _ in range(6)]
    assert same_bits(results, [added(*data())] * 6)
    assert ways.replayed >= 3
    assert actions(mode) == [("substitute", 6)]


@pytest.mark.parametrize("is_outside", [False, True])
def test_repeats_of_a_probe_are_not_counted(is_outside, ways):
    """Neither by the player, which knows the calls before the probe begins."""
    mode, probing = ways.mode(), Probe(repeats=6)
    with mode:
        added(*data())
    with contextlib.ExitStack() as stack:
        for block in (probing, mode) if is_outside else (mode, probing):
            stack.enter_context(block)
        for _ in range(4):
            added(*data())
    assert sum(row.count for row in mode.records if row.action == "substitute") == 5
    assert probing.report().rows == ()


@only_listed
def test_the_verdict_on_several_processes(ways):
    """It says that native calls were counted where all have counted them; JSON keeps it."""
    reports = []
    for number in (0, 1, 1):
        with ways.block(number) as mode:
            added(*data())
        reports.append(mode.report())
    in_python, first, second = reports
    uncounted = "unlisted calls, and those left to PyTorch's flag, were not counted"
    assert uncounted in of_ranks(first, [in_python], 2, {}).verdict
    assert uncounted in of_ranks(in_python, [first], 2, {}).verdict
    whole = of_ranks(first, [second], 2, {})
    assert "(unlisted calls were not counted; " in whole.verdict
    assert Report.from_json(whole.to_json()).verdict == whole.verdict
