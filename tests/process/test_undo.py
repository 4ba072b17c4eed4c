"""Restoring the changes of a block."""

import functools
import gc

import pytest

from detmode.process.undo import Calls, Undo, undone
from tests.shared.programs import in_another_thread


def test_the_last_change_is_undone_first():
    """Steps run backwards, and all of them once more where an interrupt ends one."""
    steps = []

    def interrupted():
        steps.append("interrupted")
        if steps.count("interrupted") == 1:
            raise KeyboardInterrupt

    undo = Undo()
    undo.note(lambda: steps.append("first"))
    undo.note(interrupted)
    undo.note(lambda: steps.append("last"))
    with pytest.raises(KeyboardInterrupt):
        undo.run()
    assert steps == ["last", "interrupted", "last", "interrupted", "first"]
    undo.run()
    assert steps[5:] == ["last", "interrupted", "first"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_end_of_a_with_statement(elsewhere):
    """It undoes the block in whatever thread it is dropped; what is a thread's is left to it."""
    undo, held = Undo(), [functools.partial(int)]
    steps, steps_here = [], []
    undo.note(lambda: steps.append(True))
    undo.note(lambda: undo.run_in_thread(lambda: steps_here.append(True)))
    undo.run_at_end_of(held[0])
    in_another_thread(held.clear) if elsewhere else held.clear()
    assert undo.is_done
    assert (steps, steps_here) == ([True], [True] * (not elsewhere))
    in_another_thread(Undo)
    Undo()
    Undo()
    assert steps_here == [True]


def test_the_end_of_a_block_by_hand():
    """It is the last that the thread has entered; or else the last of other threads by hand."""
    first, second, theirs = Undo(), Undo(), in_another_thread(Undo)
    tied, exit = in_another_thread(Undo), functools.partial(int)
    tied.run_at_end_of(exit)
    blocks = [first, second, theirs, tied]
    for expected in (second, first, theirs):
        assert undone(None, blocks, "nothing to leave") is expected
        assert expected.is_done
        blocks.remove(expected)
    with pytest.raises(RuntimeError, match="nothing to leave"):
        undone(None, blocks, "nothing to leave")
    assert undone(tied, [], "") is tied


def test_a_call_is_no_matter_of_references():
    """A list of all objects, as a memory profiler keeps it, begins no call and ends none."""
    calls, seen = Calls(), []

    def look():
        objects = gc.get_objects()
        seen.append((calls.here(), in_another_thread(calls.elsewhere), bool(objects)))

    look()
    calls.run(look)
    look()
    assert seen == [(False, False, True), (True, True, True), (False, False, True)]


def test_a_block_that_counts_as_a_call():
    """It counts until it is undone, in whatever order blocks and calls end."""
    calls, first, second = Calls(), Undo(), Undo()
    calls.count(first)
    calls.run(calls.count, second)
    first.run()
    assert calls.here()
    in_another_thread(second.run)
    assert not calls.here()


def test_calls_belong_to_their_threads():
    """A call in progress is known in its own thread as one here, in others as one elsewhere."""
    calls, seen = Calls(), []

    def look():
        seen.append((calls.here(), calls.elsewhere()))

    def inside():
        look()
        in_another_thread(look)

    calls.run(inside)
    look()
    in_another_thread(look)
    assert seen == [(True, False), (False, True), (False, False), (False, False)]


def test_a_call_that_raised_is_over():
    """Its error's traceback, which holds frames, does not keep it in progress."""
    calls = Calls()

    def fail():
        assert calls.here()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        calls.run(fail)
    assert raised.tb is not None
    assert not calls.here()
