"""Blocks and calls of several threads: each its own, all counted, and all restored."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from detmode.mode.deterministic_mode import current_mode
from detmode.mode.row_counter import RowCounter
from detmode.process.setting import FILL
from detmode.process.torch_settings import deterministic_flag
from tests.shared.interrupted import state
from tests.shared.programs import Other, cumsum, in_another_thread

x = torch.ones(4)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_threads_leave_in_any_order(mode, start, order):
    """Modes in three threads overlap and end in any order; the last restores the first state."""
    before = state()

    def work(i):
        def in_a_block(other):
            with mode(warn_only=i % 2 == 0, fill_uninitialized_memory=i == 1):
                other.stay()

        return in_a_block

    others = [Other(work(i)).__enter__() for i in range(len(order))]
    for i in order:
        assert torch.are_deterministic_algorithms_enabled()
        others[i].__exit__()
    assert state() == before


def test_one_mode_in_two_threads(mode):
    """Two threads may enter one mode object; each leaves its own level, the records are one."""
    made = mode()

    def work(other):
        with made:
            cumsum()
            other.stay()
            cumsum()

    with Other(work), made:
        cumsum()
    assert sum(record.count for record in made.records) == 3


class Scan(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(0)


@pytest.fixture
def hasty():
    """Python switches between threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_count_each_call(mode, hasty, monkeypatch):
    """A call that threads make at the same time is in one row, each time, under its module."""
    given = []
    with mode() as made, monkeypatch.context() as patch:
        patch.setattr(RowCounter, "count", lambda _, *arguments: given.append(arguments))
        Scan()(x)
    threads, calls = 4, 2000

    def work(counter, start):
        start.wait()
        for _ in range(calls):
            counter.count(*given[0])

    for _ in range(20):
        counter, start = RowCounter(made.logger, made.interface), Barrier(threads)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, [counter] * threads, [start] * threads))
        total = threads * calls
        assert [(row.count, row.modules) for row in counter.report({}).records] == [
            (total, {"Scan": total})
        ]


@pytest.mark.parametrize("order", ["first in first out", "last in first out"])
@pytest.mark.parametrize(
    ("hold", "read"),
    [
        (lambda: deterministic_flag(False), torch.are_deterministic_algorithms_enabled),
        (lambda: FILL.holding(False), lambda: torch.utils.deterministic.fill_uninitialized_memory),
    ],
)
def test_calls_of_two_threads_overlap(mode, hold, read, order):
    """Two calls that switch a setting off for their length may end in any order."""
    with mode(fill_uninitialized_memory=True):
        first, second = hold(), hold()
        first.__enter__()
        second.__enter__()
        assert read() is False
        pair = (first, second) if order.startswith("first") else (second, first)
        pair[0].__exit__(None, None, None)
        assert read() is False
        pair[1].__exit__(None, None, None)
        assert read() is True


def test_a_block_opened_during_a_call_does_not_keep_its_flag(mode):
    """A mode entered while another thread's call has the flag off restores it to on."""
    with mode():
        call = deterministic_flag(False)
        call.__enter__()
        with mode():
            call.__exit__(None, None, None)
            assert torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()


def test_leaving_what_was_not_entered(mode):
    """A thread that has not entered a mode cannot leave it; the thread that has, still can."""
    made = mode()
    said = "^DeterministicMode: this thread leaves a mode that it has not entered$"
    with made:
        with pytest.raises(RuntimeError, match=said):
            in_another_thread(made.__exit__, None, None, None)
        assert current_mode() is made
