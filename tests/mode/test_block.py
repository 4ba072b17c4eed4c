"""The block: entering, leaving, nesting, and what is restored."""

import gc
import statistics
import sys
import time
import timeit

import pytest
import torch
import torch._inductor.config as inductor
from torch.utils import _python_dispatch as dispatch

from detmode import DeterministicMode, RuleTable
from detmode.mode import levels
from detmode.mode.compiled.current import thread
from detmode.mode.deterministic_mode import current_mode
from tests.shared.interrupted import state
from tests.shared.programs import Seen, actions, cumsum, in_another_thread, put

x = torch.ones(4)
SCAN = ("aten::cumsum.default", "native", 1)


def test_each_block_has_a_level(mode):
    """Entered again, or in another thread, a mode acts by another level, and is the same mode."""
    made = mode()

    def inside(other=None):
        with made:
            assert current_mode() is made
            return levels.innermost()

    with made:
        entered = [levels.innermost(), inside(), in_another_thread(inside)]
        assert levels.innermost() is entered[0]
    entered.append(inside())
    assert len({id(level) for level in entered}) == 4
    assert {level.mode for level in entered} == {made}
    assert len({id(level.memory) for level in entered}) == 2
    assert not any(level.is_innermost for level in entered)


def test_decorator_keeps_name_and_result(mode):
    """As a decorator the mode acts in every call of the function, recursive ones too."""
    made = mode()

    @made
    def total(n):
        """Adds up."""
        return x.cumsum(0) if n == 0 else total(n - 1)

    assert torch.equal(total(3), x.cumsum(0))
    assert total.__name__ == "total"
    assert total.__doc__ == "Adds up."
    total(0)
    assert actions(made) == [("aten::cumsum.default", "native", 2)]


async def waits():
    """Across an ``await`` other tasks would run inside the block."""


@pytest.mark.parametrize(
    ("decorated", "text"), [(3, "decorates a function, got int"), (waits, "coroutine")]
)
def test_decorator_refuses_what_cannot_be_called(mode, decorated, text):
    """Decorating something that is no function, or a coroutine function, is a TypeError."""
    with pytest.raises(TypeError, match=text):
        mode()(decorated)


def test_inner_warn_only_acts_inside_a_strict_mode(mode):
    """The inner mode's arguments hold inside it, the outer's after it."""
    with mode():
        with mode(warn_only=True), pytest.warns(UserWarning, match="put_"):
            put()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        with pytest.raises(RuntimeError, match="put_"):
            put()


@pytest.mark.parametrize("depth", [2, 3])
def test_reentrant(mode, depth):
    """One mode may be entered several times over; each call is counted once."""
    made = mode()
    for _ in range(depth):
        made.__enter__()
    x.cumsum(0)
    for _ in range(depth):
        assert torch.are_deterministic_algorithms_enabled()
        x.cumsum(0)
        made.__exit__(None, None, None)
    assert sum(record.count for record in made.records) == depth + 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_reentrant_around_another(mode):
    """A, B, A: of nested modes the innermost acts alone; one acts again when the inner has left."""
    a, b = mode(), mode()

    def counts():
        cumsum()
        return [sum(record.count for record in each.records) for each in (a, b)]

    with a:
        with b:
            with a:
                assert counts() == [1, 0]
            assert counts() == [1, 1]
        assert counts() == [2, 1]
    assert counts() == [2, 1]


def held(block):
    """A generator that holds a block while it waits."""
    with block:
        yield


def test_a_block_ends_before_one_that_was_entered_in_it(mode, monkeypatch):
    """A generator's block ends inside a later one: the later one goes on, and all is restored."""
    outer, later, seen = mode(), mode(), Seen()
    for name in [name for name in vars(dispatch) if name.startswith("_is_in")]:
        monkeypatch.setattr(dispatch, name, False)  # PyTorch puts back what ``seen`` found
    for inner in (later, seen):
        waiting = held(outer)
        next(waiting)
        with inner:
            waiting.close()
            assert [current_mode(), thread.mode] == [later if inner is later else None] * 2
            x.cumsum(0)
    assert thread.mode is None
    assert actions(outer) == []
    assert actions(later) == [SCAN]
    assert seen.names == ["aten::cumsum"]


@pytest.mark.parametrize("fill", [None, True, False])
@pytest.mark.parametrize("before", [True, False])
def test_fill_is_left_alone_unless_given(mode, monkeypatch, fill, before):
    """``fill_uninitialized_memory=None`` leaves the user's setting, a bool sets it."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", before)
    with mode(fill_uninitialized_memory=fill):
        inside = torch.utils.deterministic.fill_uninitialized_memory
    assert inside is (before if fill is None else fill)
    assert torch.utils.deterministic.fill_uninitialized_memory is before


def test_settings_inside(mode, start):
    """Inside, the flags are those that deterministic results need, whatever they were before."""
    with mode(warn_only=True, fill_uninitialized_memory=False):
        assert torch.get_deterministic_debug_mode() == 1
        assert torch.utils.deterministic.fill_uninitialized_memory is False
        assert torch.backends.cudnn.deterministic is True
        assert torch.backends.cudnn.benchmark is False
        assert getattr(inductor, "deterministic", True) is True


def meddle():
    """Changes that user code may make to the settings inside a block."""
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory ^= True
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = True
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = False


@pytest.mark.parametrize("inside", ["nothing", "error", "meddling", "meddling and error", "nested"])
def test_every_setting_is_restored(mode, start, inside):
    """Whatever happens inside, all settings are as before; what is raised comes out as it is."""
    before, error, caught = state(), KeyboardInterrupt("mine"), None
    try:
        with mode(warn_only=True, fill_uninitialized_memory=True):
            if "meddling" in inside:
                meddle()
            if inside == "nested":
                with mode(fill_uninitialized_memory=False):
                    meddle()
            if "error" in inside:
                raise error
    except KeyboardInterrupt as raised:
        caught = raised
    assert caught is (error if "error" in inside else None)
    assert state() == before


def test_a_block_keeps_and_frees_nothing(mode):
    """Blocks leave as many references to the thread's list of modes as there were."""
    made = mode()
    counts = []
    for _ in range(3):
        with made:
            pass
        gc.collect()
        counts.append((sys.getrefcount(levels.levels_here()), sys.getrefcount(made)))
    assert counts == counts[:1] * 3


@pytest.mark.parametrize(
    "name",
    [
        "detmode.process.torch_settings.CUDNN_BENCHMARK.choose",
        "torch.utils._python_dispatch.TorchDispatchMode.__enter__",
        "detmode.mode.detours.replace",
        "detmode.cuda.host.choose_schedule",
    ],
)
def test_an_error_while_entering_changes_nothing(mode, monkeypatch, start, name):
    """When ``__enter__`` itself fails, every setting is put back and the mode can be used again."""
    outer, made = mode(), mode(fill_uninitialized_memory=False)

    def fail(*args, **kwargs):
        raise OSError("no more")

    with outer:
        before = state()
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(OSError, match="no more"):
                made.__enter__()
        assert state() == before
        x.cumsum(0)
        with made:
            x.cumsum(0)
        assert state() == before
    assert (len(outer.records), len(made.records)) == (1, 1)


def test_frozen_backend_flags(mode, monkeypatch):
    """The mode sets and restores the cuDNN flags even if ``torch.backends`` is frozen."""
    frozen = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(frozen, "__allow_nonbracketed_mutation_flag", False)
    with pytest.raises(RuntimeError, match="not allowed"):
        torch.backends.cudnn.benchmark = True
    before = state()
    with mode():
        assert torch.backends.cudnn.deterministic is True
    assert state() == before


def test_an_empty_table_still_sets_the_flag():
    """Without rules PyTorch's own alert guards every call."""
    with DeterministicMode(rules=RuleTable()), pytest.raises(RuntimeError, match=r"^put_ does not"):
        put()


def test_entering_is_quick(mode):
    """Entering and leaving takes little, so that a decorator may wrap a small call."""
    made = mode()

    def enter_and_leave():
        with made:
            pass

    enter_and_leave()
    times = timeit.repeat(enter_and_leave, timer=time.thread_time, number=1, repeat=50)
    assert statistics.median(times) < 0.005


def test_generator_runs_inside_and_waits_outside():
    """Between two values of a decorated generator the caller has its own settings back."""

    @DeterministicMode()
    def seen():
        for _ in range(2):
            yield torch.are_deterministic_algorithms_enabled()

    flags = [(inside, torch.are_deterministic_algorithms_enabled()) for inside in seen()]
    assert flags == [(True, False)] * 2


def test_a_summary_where_asked(capsys):
    """One line at the end of the outermost block, also where it fails; nothing without it."""
    summary = DeterministicMode(summary=True, simulate="cuda")
    with summary, summary:
        torch.ones(3).cumsum(0)
    assert capsys.readouterr().err == f"detmode: {summary.report().verdict}\n"
    with pytest.raises(KeyError), summary:
        raise KeyError
    shown = capsys.readouterr().err
    assert shown.startswith("detmode: not finished: KeyError at ")
    assert shown.count("\n") == 1
    with DeterministicMode(simulate="cuda"):
        torch.ones(3).cumsum(0)
    assert capsys.readouterr().err == ""
