"""The block: entering, leaving, nesting, and what is restored."""

import itertools
import subprocess
import sys
import threading
import time
import warnings
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode import DeterministicMode, RuleTable
from detmode.environment.settings import FILL, FLAG, deterministic_flag, no_memory_fill
from detmode.mode.deterministic_mode import current_mode

x = torch.ones(4)


def overloads(mode):
    return [(record.overload, record.count) for record in mode.records]


def test_context_manager_gives_the_mode(mode):
    """``with DeterministicMode() as mode`` gives the mode itself, and it acts inside only."""
    made = mode()
    with made as entered:
        x.cumsum(0)
        assert current_mode() is made
    x.cumsum(0)
    assert entered is made
    assert overloads(made) == [("aten::cumsum.default", 1)]


def test_decorator_keeps_name_and_result(mode):
    """As a decorator the mode acts in every call of the function, recursive ones too."""
    made = mode()

    @made
    def total(n: int) -> torch.Tensor:
        """Adds up."""
        return x.cumsum(0) if n == 0 else total(n - 1)

    assert torch.equal(total(3), x.cumsum(0))
    assert total.__name__ == "total"
    assert total.__doc__ == "Adds up."
    total(0)
    assert overloads(made) == [("aten::cumsum.default", 2)]


def test_decorator_refuses_what_cannot_be_called(mode):
    """Decorating something that is no function is a TypeError."""
    with pytest.raises(TypeError, match="decorates a function, got int"):
        mode()(3)


def test_innermost_acts_outer_passes(mode):
    """Of two nested modes the inner one acts; the outer one acts again when the inner has left."""
    outer, inner = mode(), mode()
    with outer:
        x.cumsum(0)
        with inner:
            x.cumsum(0)
            x.cumsum(0)
        x.cumsum(0)
    assert sum(record.count for record in outer.records) == 2
    assert sum(record.count for record in inner.records) == 2


def test_inner_warn_only_acts_inside_a_strict_mode(mode):
    """The inner mode's arguments hold inside it, the outer's after it."""
    with mode():
        with mode(warn_only=True), pytest.warns(UserWarning, match="put_"):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        with pytest.raises(RuntimeError, match="put_"):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


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
    """A, B, A: the innermost A acts, then B, then the outer A."""
    a, b = mode(), mode()
    with a, b:
        with a:
            x.cumsum(0)
        assert [sum(r.count for r in m.records) for m in (a, b)] == [1, 0]
        x.cumsum(0)
        assert [sum(r.count for r in m.records) for m in (a, b)] == [1, 1]
    with a:
        x.cumsum(0)
    assert [sum(r.count for r in m.records) for m in (a, b)] == [2, 1]


def held(block):
    """A generator that holds a block while it waits."""
    with block:
        yield


def test_a_block_ends_before_one_that_was_entered_in_it(mode):
    """A generator's block ends inside a later one: the later one goes on, and all is restored."""
    outer, later = mode(), mode()
    waiting = held(outer)
    next(waiting)
    with later:
        waiting.close()
        assert current_mode() is later
        x.cumsum(0)
    assert overloads(outer) == []
    assert overloads(later) == [("aten::cumsum.default", 1)]


def test_a_block_ends_before_another_mode_that_was_entered_in_it(mode):
    """A mode of the user's, entered inside, stays when the block ends; it alone."""

    class Seen(TorchDispatchMode):
        names: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    made = mode()
    waiting = held(made)
    next(waiting)
    with Seen():
        waiting.close()
        x.cumsum(0)
    assert Seen.names == ["aten::cumsum"]
    assert overloads(made) == []


def test_a_block_that_waits_at_the_end_of_the_process(tmp_path):
    """A block that a generator still holds when Python ends is left without a word."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import detmode\n"
        "def held():\n"
        "    with detmode.DeterministicMode():\n"
        "        yield\n"
        "waiting = held()\n"
        "next(waiting)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("fill", [None, True, False])
@pytest.mark.parametrize("before", [True, False])
def test_fill_is_left_alone_unless_given(mode, fill, before):
    """``fill_uninitialized_memory=None`` leaves the user's setting, a bool sets it."""
    saved = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = before
    try:
        with mode(fill_uninitialized_memory=fill):
            inside = torch.utils.deterministic.fill_uninitialized_memory
        assert inside is (before if fill is None else fill)
        assert torch.utils.deterministic.fill_uninitialized_memory is before
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = saved


@pytest.fixture(
    params=list(itertools.product([(False, True), (True, True), (True, False)], [0, 1]))
)
def start(request):
    """A state of all settings before the block, undone afterwards."""
    import torch._inductor.config as inductor

    (deterministic, warn_only), other = request.param
    saved = (
        torch.utils.deterministic.fill_uninitialized_memory,
        torch._C._get_cudnn_deterministic(),
        torch._C._get_cudnn_benchmark(),
        getattr(inductor, "deterministic", None),
    )
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = bool(other)
    torch.backends.cudnn.deterministic = bool(other)
    torch.backends.cudnn.benchmark = not other
    if saved[3] is not None:
        inductor.deterministic = not other
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = saved[0]
    torch._C._set_cudnn_deterministic(saved[1])
    torch._C._set_cudnn_benchmark(saved[2])
    if saved[3] is not None:
        inductor.deterministic = saved[3]


def test_settings_inside(mode, start):
    """Inside, the flags are those that deterministic results need, whatever they were before."""
    import torch._inductor.config as inductor

    with mode(warn_only=True, fill_uninitialized_memory=False):
        assert torch.get_deterministic_debug_mode() == 1
        assert torch.utils.deterministic.fill_uninitialized_memory is False
        assert torch.backends.cudnn.deterministic is True
        assert torch.backends.cudnn.benchmark is False
        assert getattr(inductor, "deterministic", True) is True


def meddle():
    """What user code may do to the settings inside a block."""
    import torch._inductor.config as inductor

    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory ^= True
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = True
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = False


@pytest.mark.parametrize("inside", ["nothing", "error", "meddling", "meddling and error", "nested"])
def test_every_setting_is_restored(mode, make_settings, start, inside):
    """Whatever happens inside, all settings are afterwards as they were before."""
    before = make_settings()
    try:
        with mode(warn_only=True, fill_uninitialized_memory=True):
            if "meddling" in inside:
                meddle()
            if inside == "nested":
                with mode(fill_uninitialized_memory=False):
                    meddle()
            if "error" in inside:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert "error" in inside
    assert make_settings() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_threads_leave_in_any_order(mode, make_settings, start, order):
    """Modes in three threads overlap and end in any order; the last restores the first state."""
    before = make_settings()
    entered = [threading.Event() for _ in order]
    leave = [threading.Event() for _ in order]

    def work(i):
        with mode(warn_only=i % 2 == 0, fill_uninitialized_memory=i == 1):
            entered[i].set()
            leave[i].wait(10)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(order))]
    for thread, event in zip(threads, entered):
        thread.start()
        assert event.wait(10)
    for i in order:
        assert torch.are_deterministic_algorithms_enabled()
        leave[i].set()
        threads[i].join()
    assert make_settings() == before


def test_one_mode_in_two_threads(mode):
    """Two threads may enter one mode object; each leaves its own level, the records are one."""
    made = mode()
    barrier = threading.Barrier(2, timeout=10)

    def work(first: bool):
        with made:
            barrier.wait()
            x.cumsum(0)
            barrier.wait()
            if not first:
                barrier.wait()
                x.cumsum(0)
        if first:
            barrier.wait()

    threads = [threading.Thread(target=work, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(record.count for record in made.records) == 3


def test_many_threads_and_many_calls(mode, make_settings):
    """Under a storm of overlapping blocks and calls that switch the flag nothing is left behind.

    PyTorch's flag is the process's, so that an allowed call may meet PyTorch's own warning where
    another thread has it on; none is ever silent where it should not be.
    """
    before = make_settings()
    failures = []

    def work():
        try:
            for _ in range(20):
                with mode(warn_only=True, overrides={"aten::put": "allow"}):
                    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
                    x.index_add(0, torch.tensor([0]), torch.ones(1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert make_settings() == before


def test_a_choice_inside_of_nested_calls_stays():
    """What the program chooses while calls hold the flag is its choice after all of them."""
    try:
        with deterministic_flag(False), deterministic_flag(False):
            torch._C._set_deterministic_algorithms(True, warn_only=True)
        assert FLAG.chosen() == (True, True)
    finally:
        torch._C._set_deterministic_algorithms(False, warn_only=False)


@pytest.mark.parametrize("order", ["first in first out", "last in first out"])
@pytest.mark.parametrize(
    ("hold", "read"),
    [
        (lambda: deterministic_flag(False), torch.are_deterministic_algorithms_enabled),
        (no_memory_fill, lambda: torch.utils.deterministic.fill_uninitialized_memory),
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


@pytest.mark.parametrize(
    "name",
    [
        "torch.use_deterministic_algorithms",
        "detmode.mode.deterministic_mode.Detours",
        "detmode.cuda.host.choose_schedule",
    ],
)
def test_an_error_while_entering_changes_nothing(mode, make_settings, monkeypatch, start, name):
    """When ``__enter__`` itself fails, every setting is put back and the mode can be used again."""
    before = make_settings()
    made = mode(fill_uninitialized_memory=False)

    def fail(*args, **kwargs):
        raise OSError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(name, fail)
        with pytest.raises(OSError, match="no more"):
            made.__enter__()
        assert make_settings() == before
    with made:
        x.cumsum(0)
    assert make_settings() == before
    assert len(made.records) == 1


def test_an_error_of_the_dispatch_stack_changes_nothing(mode, make_settings, monkeypatch):
    """The last step of entering may fail too."""
    from torch.utils._python_dispatch import TorchDispatchMode

    before = make_settings()
    outer, inner = mode(), mode()
    with outer:
        with monkeypatch.context() as patch:
            patch.setattr(TorchDispatchMode, "__enter__", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                inner.__enter__()
        x.cumsum(0)
    assert len(outer.records) == 1
    assert make_settings() == before


def test_frozen_backend_flags(mode, make_settings, monkeypatch):
    """Where ``torch.backends`` is frozen the mode still sets and restores the cuDNN flags."""
    frozen = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(frozen, "__allow_nonbracketed_mutation_flag", False)
    with pytest.raises(RuntimeError, match="not allowed"):
        torch.backends.cudnn.benchmark = True
    before = make_settings()
    with mode():
        assert torch.backends.cudnn.deterministic is True
    assert make_settings() == before


def test_leaving_what_was_not_entered(mode):
    """A thread that has not entered a mode cannot leave it; the thread that has, still can."""
    made = mode()
    errors = []

    def leave():
        try:
            made.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(str(error))

    with made:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert current_mode() is made
    assert errors == ["DeterministicMode: this thread leaves a mode that it has not entered"]


def test_exceptions_pass_unchanged(mode):
    """What is raised inside comes out as it is."""
    error = LookupError("mine")
    with pytest.raises(LookupError) as caught, mode():
        raise error
    assert caught.value is error


def test_leaving_restores_other_modes(mode):
    """A block that ends lets the surrounding dispatch modes stand."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        with mode():
            torch.ones(2, 2) @ torch.ones(2, 2)
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert counter.get_total_flops() == 32


def test_an_empty_table_still_sets_the_flag():
    """Without rules PyTorch's own alert guards every call."""
    with DeterministicMode(rules=RuleTable()), pytest.raises(RuntimeError, match=r"^put_ does not"):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert not FLAG._open
    assert not FILL._open


def test_entering_is_quick(mode):
    """Entering and leaving takes little, so that a decorator may wrap a small call."""
    made = mode()
    with made:
        pass
    times = []
    for _ in range(50):
        start = time.perf_counter()
        with made:
            pass
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 0.005
