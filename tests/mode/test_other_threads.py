"""Threads that a block's thread starts: the mode acts in them, or counts what it does not see."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

import detmode
from detmode import DeterministicMode
from detmode.mode import dispatch_stack
from tests.shared.programs import in_another_thread, in_threads, put


def index_add() -> torch.Tensor:
    return torch.zeros(3).index_add(0, torch.tensor([1, 1]), torch.ones(2))


def in_a_thread() -> None:
    thread = threading.Thread(target=index_add)
    thread.start()
    thread.join()


def in_a_pool() -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(lambda: pool.submit(index_add)).result().result()


def in_a_task() -> None:
    asyncio.run(asyncio.to_thread(index_add))


def in_a_thread_of_a_thread() -> None:
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()


STARTS = [in_a_thread, in_a_pool, in_a_task, in_a_thread_of_a_thread]


@pytest.mark.parametrize("start", STARTS)
def test_a_mode_does_not_vouch_for_what_it_has_not_seen(start):
    """The report counts the calls of other threads that rules list, and is not `deterministic`."""
    plain = threading.Thread.start
    with DeterministicMode(simulate="cuda") as mode:
        start()
    report = mode.report()
    assert threading.Thread.start is plain
    assert len(report) == 0
    assert report.verdict.startswith(
        "not checked: 1 call of other threads (aten::index_add.default)"
    )
    with mode:
        index_add()
    assert [row.action for row in mode.report()] == ["substitute"]
    assert mode.report().verdict.startswith("not checked: 1 call of other threads")


@pytest.mark.parametrize("acts_in_threads", [False, True])
def test_a_thread_leaves_what_it_has_entered(acts_in_threads, monkeypatch, caplog):
    """Its block ends with it, and nothing is logged."""
    left = []
    monkeypatch.setattr(dispatch_stack, "take_off", lambda mode, _: left.append(mode))
    mode = DeterministicMode(simulate="cuda")
    mode.acts_in_threads = acts_in_threads
    with mode:
        in_a_thread()
        assert len(left) == 1
    assert not caplog.records


def test_calls_without_a_rule_are_not_counted():
    """They are covered in any thread, as they are in the mode's own."""
    with DeterministicMode(simulate="cuda") as mode, ThreadPoolExecutor() as pool:
        pool.submit(lambda: torch.ones(3) + 1).result()
        torch.ones(2)
    assert mode.report().verdict.startswith("deterministic")


def test_a_thread_with_a_mode_of_its_own_is_seen_by_that_one():
    """Its calls, and those of its substitutes, do not count as unseen."""
    inner = DeterministicMode(simulate="cuda")

    def work():
        with inner:
            index_add()

    with DeterministicMode(simulate="cuda") as mode:
        in_another_thread(work)
        torch.ones(2)
    assert len(inner.report()) == 1
    assert mode.report().verdict.startswith("deterministic")


def test_threads_of_others_are_not_counted():
    """A block counts the threads that its own thread starts, and those that these start."""
    go_on = threading.Event()

    def other():
        go_on.wait()
        in_a_thread()

    thread = threading.Thread(target=other)
    thread.start()
    with DeterministicMode(simulate="cuda") as mode:
        go_on.set()
        thread.join()
        torch.ones(2)
    assert mode.report().verdict.startswith("deterministic")


def acting(**options) -> DeterministicMode:
    mode = DeterministicMode(simulate="cuda", **options)
    mode.acts_in_threads = True
    return mode


@pytest.mark.parametrize("start", STARTS)
def test_a_mode_that_acts_in_threads(start):
    """Their calls are substituted and counted, in one row with those of its own thread."""
    with acting() as mode:
        start()
        index_add()
    report = mode.report()
    assert [(row.action, row.count) for row in report] == [("substitute", 2)]
    order = "the order of the calls of 1 other thread"
    assert report.verdict.startswith(f"not checked: {order}")


def test_calls_made_twice_in_threads():
    """They are sampled like those of its own thread, and what the thread allows is allowed."""

    def work():
        with detmode.allow("aten::put"):
            put()
        index_add()

    counts = []
    for run in (work, lambda: in_another_thread(work)):
        with acting(recheck=1.0) as mode:
            run()
        counts.append(mode.report().head["recheck"])
        assert [(row.action, row.count) for row in mode.report()] == [
            ("allow", 1),
            ("substitute", 1),
        ]
    assert counts[0] == counts[1]
    assert counts[0]["made_twice"] > 0


def test_threads_whose_calls_no_rule_lists():
    """Their order changes nothing that the mode is about; and a mode has not seen what ran."""
    with acting() as mode:
        torch.ones(2).index_fill(0, torch.tensor([0]), 1.0)
        in_another_thread(torch.ones(2).add, 1)
    assert mode.report().verdict.startswith("deterministic")


def test_it_refuses_in_threads():
    """A call that is refused raises in the thread that makes it."""
    with acting(substitute=False) as mode, pytest.raises(RuntimeError, match="put_ does not have"):
        in_another_thread(put)
    assert mode.report().verdict.startswith("may vary: 1 call at 1 line")


def test_it_leaves_threads_that_go_on():
    """A thread that ends after the block runs on as without the mode."""
    entered, left = threading.Event(), threading.Event()

    def work():
        index_add()
        entered.set()
        left.wait()
        index_add()

    with acting() as mode:
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait()
    left.set()
    thread.join()
    assert [row.count for row in mode.report()] == [1]


def test_counts_of_many_threads():
    """None of the calls of threads that run at the same time is lost, nor a byte of an audit."""
    mode = detmode.audit.__globals__["Audit"]()

    def work():
        for _ in range(50):
            index_add()

    with mode:
        in_threads(*[work] * 4)
    report = mode.report()
    assert [row.count for row in report] == [200]
    alone = detmode.audit(work)
    assert report.total_bytes == 4 * alone.total_bytes
    assert report.costs[0].calls == 4 * alone.costs[0].calls


def test_a_subclass_and_an_error_are_as_without_a_block():
    """A thread with a run() of its own runs; its error reaches the hook, with its own frames."""

    class Failing(threading.Thread):
        def run(self):
            raise ValueError("ours")

    seen = []
    hook, threading.excepthook = threading.excepthook, seen.append
    try:
        for block in (nullcontext(), acting()):
            with block:
                thread = Failing()
                thread.start()
                thread.join()
            with pytest.raises(RuntimeError, match="once"):
                thread.start()
    finally:
        threading.excepthook = hook
    first, second = [each.exc_traceback for each in seen]

    def depth(traceback):
        return 0 if traceback is None else 1 + depth(traceback.tb_next)

    assert depth(first) == depth(second)
