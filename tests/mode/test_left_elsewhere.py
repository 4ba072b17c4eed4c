"""Blocks that end in another thread than the one that entered them, as in a stepped generator."""

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from torch.utils import _python_dispatch as dispatch

from detmode import allow, record
from detmode.cuda import host
from detmode.mode.deterministic_mode import current_mode
from detmode.process.dispatch import without_modes
from detmode.runs.trace_file import Reader
from tests.shared.interrupted import state
from tests.shared.programs import actions, cumsum, put

SAID = "a block was entered in one thread and left in another"


@pytest.fixture
def pool():
    """One other thread."""
    with ThreadPoolExecutor(1) as executor:
        yield lambda function, *args: executor.submit(function, *args).result()


BLOCKS = {
    "all": lambda mode: mode(fill_uninitialized_memory=False, schedule_seed=1),
    "listed": lambda mode: mode(intercept="listed"),
    "allow": lambda mode: allow("aten::put"),
    "recheck": lambda mode: mode(recheck=1.0),
}


@pytest.fixture(params=BLOCKS)
def block(mode, request):
    return BLOCKS[request.param](mode)


def stepped(block):
    with block:
        yield


def in_an_exit_stack(block):
    with ExitStack() as stack:
        stack.enter_context(block)
        yield


def by_hand(block):
    block.__enter__()
    yield
    block.__exit__(None, None, None)


@pytest.mark.parametrize("generator", [stepped, in_an_exit_stack, by_hand])
def test_a_generator_that_a_pool_steps(block, pool, generator):
    """Its end restores what it had set, and says that it is in another thread."""
    before = state()
    steps = generator(block)
    pool(next, steps)
    assert pool(state) != before
    with pytest.raises(RuntimeError, match=SAID):
        next(steps, None)
    assert state() == before
    # Its thread has yet to take the mode off, which no longer acts there.
    pool(put)
    assert pool(current_mode) is None
    with block:
        put() if isinstance(block, allow) else cumsum()
    pool(lambda: [block.__enter__(), block.__exit__(None, None, None)])
    assert pool(state) == before


@pytest.mark.parametrize("mode_of_thread", ["entered before", "entered after"])
def test_the_other_modes_of_its_thread_act(mode, pool, mode_of_thread):
    """The level that another thread has left is taken off from below or above others."""
    outer, steps = mode(), stepped(mode(warn_only=True))
    entered = [outer.__enter__, lambda: next(steps)]
    for enter in entered if mode_of_thread == "entered before" else reversed(entered):
        pool(enter)
    with pytest.raises(RuntimeError, match=SAID):
        next(steps, None)

    def refused():
        with pytest.raises(RuntimeError, match="put_"):
            put()
        assert current_mode() is outer
        outer.__exit__(None, None, None)

    pool(refused)
    pool(lambda: [outer.__enter__(), outer.__exit__(None, None, None)])
    assert pool(dispatch._get_current_dispatch_mode_stack) == []


@pytest.mark.parametrize("end", ["closed", "dropped", "collected"])
def test_a_generator_that_ends_early(block, pool, end, monkeypatch):
    """Closed, dropped or collected in another thread, it leaves nothing either, and says so."""
    before, told = state(), []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: told.append(str(raised.exc_value)))
    steps = [stepped(block)]
    pool(next, steps[0])
    if end == "closed":
        with pytest.raises(RuntimeError, match=SAID):
            steps[0].close()
    else:
        if end == "collected":
            steps.append(steps)
        del steps
        gc.collect()
        assert re.search(SAID, *told)
    assert state() == before


def test_a_recording(pool, tmp_path):
    """A recording is complete, and its thread's later calls go on unrecorded."""
    before, recording = state(), record(tmp_path / "trace")
    steps = stepped(recording)
    pool(next, steps)
    pool(cumsum)
    with pytest.raises(RuntimeError, match=f"record: {SAID}"):
        next(steps)
    assert state() == before
    pool(cumsum)
    reader = Reader(tmp_path / "trace")
    names = [call.overload for call in reader.calls()]
    assert (names.count("aten::cumsum.default"), reader.complete) == (1, True)

    def again():
        with record(tmp_path / "again"):
            cumsum()

    pool(again)
    assert pool(state) == before


def test_an_error_goes_on(block, pool):
    """The error by which a block ends is not replaced: a warning tells what was wrong."""
    before = state()
    steps = stepped(block)
    pool(next, steps)
    with pytest.raises(LookupError), pytest.warns(RuntimeWarning, match=SAID):
        steps.throw(LookupError())
    assert state() == before


def test_a_region_that_ended_elsewhere_is_closed(mode, pool):
    """Its thread's later calls are refused; so is what was not remembered: the safe side."""
    steps = stepped(allow("aten::put"))
    pool(next, steps)
    with pytest.raises(RuntimeError, match=SAID):
        steps.close()

    def refused():
        with mode(), pytest.raises(RuntimeError, match="put_"):
            put()

    pool(refused)


def test_the_schedule_of_a_thread(mode, pool):
    """The seed of a thread's launches is restored by the thread, not in the one that leaves."""
    steps = stepped(mode(schedule_seed=7))
    with host.schedule(3):
        pool(next, steps)
        with pytest.raises(RuntimeError, match=SAID):
            steps.close()
        assert host._schedule.seed == 3

    def seed():
        with mode():
            pass
        return host._schedule.seed

    assert pool(seed) is None


def test_without_modes(mode, pool):
    """A block in which nothing is intercepted ends with its generator, wherever that is closed."""
    steps = stepped(without_modes())
    pool(next, steps)
    steps.close()

    def intercepted():
        with mode(intercept="listed") as made:
            cumsum()
            with pytest.raises(RuntimeError, match="put_"):
                put()
        return actions(made)

    assert pool(intercepted)[-1] == ("aten::put_.default", "error", 1)
