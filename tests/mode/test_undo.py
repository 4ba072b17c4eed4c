"""Restoring the changes of a block."""

import functools
import gc
import threading
import weakref

import pytest
from programs import in_another_thread

from detmode.cuda.undo import Calls, FoundCalls, Undo


def test_the_last_change_is_undone_first():
    """Steps run backwards, and all of them once more where an interrupt ends one."""
    undone = []

    def interrupted():
        undone.append("interrupted")
        if undone.count("interrupted") == 1:
            raise KeyboardInterrupt

    undo = Undo()
    undo.note(lambda: undone.append("first"))
    undo.note(interrupted)
    undo.note(lambda: undone.append("last"))
    with pytest.raises(KeyboardInterrupt):
        undo.run()
    assert undone == ["last", "interrupted", "last", "interrupted", "first"]
    undo.run()
    assert undone[5:] == ["last", "interrupted", "first"]


def test_who_asks_for_calls_keeps_nothing_alive():
    """The stacks of the threads are read, and their frames, with what is in them, are let go."""
    found = FoundCalls()
    found(in_another_thread)

    def ask() -> weakref.ref:
        local = threading.local()
        assert not found.elsewhere()
        return weakref.ref(local)

    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_end_of_a_with_statement(elsewhere):
    """It undoes what its own thread entered; another thread that drops it undoes nothing."""
    undo, held = Undo(), [functools.partial(int)]
    undone = []
    undo.note(lambda: undone.append(True))
    undo.run_at_end_of(held[0])
    if elsewhere:
        in_another_thread(held.clear)
    held.clear()
    assert undo.is_done == bool(undone) == (not elsewhere)


def test_calls_belong_to_their_threads():
    """A call in progress is known in its own thread as one here, in others as one elsewhere."""
    registered, found, seen = Calls(), FoundCalls(), []

    def look():
        seen.append((registered.here(), found.here(), found.elsewhere()))

    @found
    def inside():
        look()
        in_another_thread(look)

    registered.made(inside)()
    look()
    assert seen == [(True, True, False), (False, False, True), (False, False, False)]
