"""Restoring the changes of a block."""

import functools

import pytest
from programs import in_another_thread

from detmode.cuda.undo import Calls, Undo


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
    calls, seen = Calls(), []

    def look():
        seen.append((calls.here(), calls.elsewhere()))

    def inside():
        look()
        in_another_thread(look)

    (calls.own.token, inside())
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
        (calls.own.token, fail())
    assert raised.tb is not None
    assert not calls.here()
