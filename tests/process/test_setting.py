"""Settings belong to the process: calls of several threads that need other values of them."""

import os
import re
import signal
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
import torch

import detmode
from detmode.process import setting as process_setting
from detmode.process.torch_settings import FILL, FLAG, call_native, deterministic_flag
from detmode.process.undo import Lock
from tests.shared.processes import run_forked
from tests.shared.programs import Other
from tests.shared.selection import PROFILE

WAITS = 0.05


def with_flag_off(other: Other) -> None:
    with deterministic_flag(False):
        other.stay()


def natively(other: Other) -> None:
    call_native(other.stay, (), {})


def flag_of_a_native_call() -> bool:
    return call_native(torch.are_deterministic_algorithms_enabled, (), {})


@pytest.fixture
def on():
    with detmode.DeterministicMode(fill_uninitialized_memory=True):
        yield


def after(seconds: float, function) -> threading.Timer:
    timer = threading.Timer(seconds, function)
    timer.start()
    return timer


def test_a_native_call_waits_for_one_that_needs_the_flag_off(on):
    """It runs when the other one has ended, with the flag on."""
    with Other(with_flag_off) as other:
        start = time.monotonic()
        after(WAITS, other.go_on.set)
        assert flag_of_a_native_call()
        assert time.monotonic() - start >= WAITS


@pytest.mark.parametrize(
    "needs_other_settings",
    [
        lambda: deterministic_flag(False),
        lambda: FLAG.holding((True, True)),
        lambda: detmode.DeterministicMode(warn_only=True),
        lambda: detmode.DeterministicMode(fill_uninitialized_memory=False),
    ],
    ids=["flag off", "warn_only held", "block with warn_only", "block without fill"],
)
def test_what_needs_other_settings_waits_for_a_native_call(on, needs_other_settings):
    """The native call keeps the flag and the filling until its end, from calls and blocks."""
    with Other(natively) as other:
        found = []
        after(WAITS, lambda: (found.append((FLAG._read(), FILL._read())), other.go_on.set()))
        with needs_other_settings():
            assert found == [((True, False), True)]


def test_calls_that_need_the_same_overlap(on):
    """Native calls do not wait for each other, nor do calls with the flag off."""
    with Other(natively):
        assert flag_of_a_native_call()
    with Other(with_flag_off), deterministic_flag(False):
        assert not torch.are_deterministic_algorithms_enabled()


def test_what_a_call_holds_is_not_the_choice_of_the_program(on):
    """The modes of other threads know what the program has chosen, while it is not in force."""
    with Other(with_flag_off):
        assert FLAG._read() != (True, False)
        assert FLAG.chosen() == (True, False)


@pytest.mark.parametrize("nested", [False, True])
def test_what_the_program_chooses_during_a_call_stays(on, nested):
    """A setting that is set anew while a call, or a call in a call, holds it is not set back."""
    with deterministic_flag(False), deterministic_flag(False) if nested else nullcontext():
        torch.use_deterministic_algorithms(True, warn_only=True)
    assert FLAG.chosen() == (True, True)


@pytest.mark.parametrize(
    ("other", "mine", "named"),
    [
        (with_flag_off, flag_of_a_native_call, "PyTorch's deterministic flag"),
        (natively, lambda: deterministic_flag(False).__enter__(), "PyTorch's deterministic flag"),
        (natively, lambda: FILL.holding(False).__enter__(), "the filling of uninitialized memory"),
    ],
)
def test_calls_that_wait_for_each_other_are_told(on, monkeypatch, other, mine, named):
    """Two calls that cannot end before each other are no deadlock: the second one raises."""
    monkeypatch.setattr(process_setting, "PATIENCE", WAITS)
    said = f"^{named} belongs to the process, and calls of two threads need different values"
    with Other(other), pytest.raises(RuntimeError, match=said):
        mine()
    assert FLAG.chosen() == (True, False)
    assert FLAG._waiting + FLAG._active == []


@pytest.mark.parametrize(
    ("clock", "raised"),
    [(time.monotonic, nullcontext()), (iter(()).__next__, pytest.raises(StopIteration))],
    ids=["the wait ends", "the clock fails"],
)
def test_a_block_that_waits_in_vain_restores_the_settings(monkeypatch, clock, raised):
    """The end of a block waits for another thread's call, but not forever, nor by a clock alone."""
    monkeypatch.setattr(process_setting, "PATIENCE", WAITS)
    with ExitStack() as others, raised, detmode.DeterministicMode():
        others.enter_context(Other(natively))
        monkeypatch.setattr(time, "monotonic", clock)
    assert FLAG._read() == (False, False)
    assert not FLAG._open


def test_one_thread_waits_not_for_itself(on, monkeypatch):
    """A call within a call, in the same thread, holds what it needs."""
    with deterministic_flag(False):
        assert flag_of_a_native_call()
        assert not torch.are_deterministic_algorithms_enabled()

    def call_with_flag_off() -> bool:
        with deterministic_flag(False):
            return not torch.are_deterministic_algorithms_enabled()

    monkeypatch.setattr(process_setting, "PATIENCE", 2.0)
    assert call_native(call_with_flag_off, (), {})


def test_a_native_call_waits_for_one_that_waits_already(on):
    """Those that need the flag off come to their turn, however many native calls follow."""
    order = []

    def with_flag_off() -> None:
        with deterministic_flag(False):
            order.append("flag off")

    threads = [
        threading.Thread(target=with_flag_off),
        threading.Thread(target=call_native, args=(order.append, ("native",), {})),
    ]
    with Other(natively):
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(FLAG._waiting) < number and not order:
                time.sleep(1e-3)
    for thread in threads:
        thread.join()
    assert order == ["flag off", "native"]


def test_a_native_call_that_waits_holds_nobody_up(on):
    """The call for which it waits may need other settings still, which the native call lacks."""
    native = threading.Thread(target=flag_of_a_native_call)
    with deterministic_flag(False):
        native.start()
        while not FLAG._waiting:
            time.sleep(1e-3)
        with detmode.DeterministicMode(warn_only=True):
            assert FLAG.chosen() == (True, True)
    native.join()


def exit_code_of_child(check) -> int:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # one that hangs is killed
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_waits_for_no_thread_of_its_parent(on):
    """Locks are free, and calls of other threads over: a ``DataLoader`` forks its workers."""
    lock = Lock()
    with Other(lambda other: lock.run(other.stay)):
        assert exit_code_of_child(lambda: lock.run(bool, 1)) == 0
    with Other(with_flag_off):
        assert exit_code_of_child(torch.are_deterministic_algorithms_enabled) == 0
        assert exit_code_of_child(flag_of_a_native_call) == 0
    for call in (natively, lambda other: call_native(natively, (other,), {})):
        with Other(call):
            assert exit_code_of_child(lambda: deterministic_flag(False).__enter__() is None) == 0


def test_there_are_no_other_locks():
    """Locks are those of ``cuda.undo``; an observer's, which stops at a fork, is its own.

    So are those of the command line: one lasts as long as its process, and one writes to the
    terminal, to which a child of a fork does not.
    """
    package = Path(detmode.__file__).parent
    own = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"(threading|_thread)\.R?Lock\b", file.read_text())
    }
    command_line = {"cli/commands/run.py", "reports/progress.py"}
    assert own == command_line | {"process/undo.py", "sites/observers.py"}


THREADS = """
import threading, torch
from detmode import DeterministicMode

together = threading.Barrier(48)

def work():
    with DeterministicMode():
        torch.ones(3).cumsum(0)
    together.wait()

threads = [threading.Thread(target=work) for _ in range(48)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_a_program_ends_right_after_its_threads(tmp_path):
    """Destructors that run as a thread ends need the interpreter, which is still there."""
    for _ in range(5 if PROFILE.thorough else 1):
        ended = run_forked("-c", [[THREADS]], tmp_path, timeout=100)
        assert (ended.returncode, ended.stderr) == (0, "")
