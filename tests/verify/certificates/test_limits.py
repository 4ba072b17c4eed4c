"""Kernels that do not end: a limit of time, and Ctrl-C."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import detmode
from detmode.cli import main
from detmode.cuda.host import watch
from tests.shared.processes import run_forked
from tests.shared.selection import todays_forms

needs_compiler = pytest.mark.skipif(
    detmode.cuda.unavailable("cpu") is not None, reason="there is no C++ compiler"
)

LONG = 20
"""Seconds: more than an interrupt takes, and what a test takes that waits in vain for one."""

ENDLESS = {
    "atomics": "while (true) atomicAdd(x, 1);",
    "accesses": "int i = 0; while (true) x[(i += 1) & 1] += i;",
    "nothing": 'while (true) asm volatile("" ::: "memory");',
    "barriers": "while (true) __syncthreads();",
    "votes": "while (true) __ballot_sync(~0u, true);",
    "waits": "while (threadIdx.x + blockIdx.x == 0 && *(volatile int*)x != 5) x[1] += 1;",
}
CUDA = {"grid": 2, "block": 32, "repeats": 2}


def source(body: str) -> str:
    return f"__global__ void endless(int* x) {{ if (threadIdx.x < 32) {{ {body} }} }}"


def ends() -> None:
    """The next kernel is certified as ever."""
    text = "__global__ void count(int* x) { atomicAdd(x, 1); }"
    found = detmode.certify(text, {"x": torch.zeros(1, dtype=torch.int32)}, **CUDA)
    assert found.is_order_independent


@pytest.fixture(autouse=True)
def listens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, which it does not where a shell started pytest with ``&``.

    What is started in a test inherits that. A loop without accesses is left soon.
    """
    monkeypatch.setattr(watch, "_GRACE", 0.3)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@contextlib.contextmanager
def interrupted(after: float) -> Iterator[None]:
    """The block is interrupted by Ctrl-C after so many seconds, or ended before."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


HANDLERS = {
    "raises": signal.default_int_handler,
    "ignored": signal.SIG_IGN,
    "default": signal.SIG_DFL,
}


@needs_compiler
@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_the_limit_needs_no_handler(handler: Any) -> None:
    """It holds whatever SIGINT does, and leaves that as it was."""
    signal.signal(signal.SIGINT, handler)
    x = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(TimeoutError):
        detmode.certify(source(ENDLESS["nothing"]), {"x": x}, **CUDA, timeout=0.1)
    assert signal.getsignal(signal.SIGINT) is handler
    ends()


@needs_compiler
def test_an_ignored_interrupt_ends_nothing() -> None:
    """A launch goes on to its limit where Ctrl-C is ignored, and so does the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    x = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(TimeoutError):  # compiles
        detmode.certify(source(ENDLESS["atomics"]), {"x": x}, **CUDA, timeout=0.1)
    begin = time.monotonic()
    with interrupted(0.2), pytest.raises(TimeoutError):
        detmode.certify(source(ENDLESS["atomics"]), {"x": x}, **CUDA, timeout=0.5)
    assert time.monotonic() - begin >= 0.5
    ends()


@needs_compiler
@pytest.mark.parametrize("kind", todays_forms(ENDLESS))
def test_a_kernel_that_does_not_end(kind: str) -> None:
    """It ends in its time, whatever it does meanwhile; the error says what to do."""
    x = torch.zeros(2, dtype=torch.int32)
    begin = time.monotonic()
    with pytest.raises(TimeoutError) as error:
        detmode.certify(source(ENDLESS[kind]), {"x": x}, **CUDA, timeout=0.5)
    assert time.monotonic() - begin < 60
    assert "endless did not end in 0.5 seconds (in program order)" in str(error.value)
    assert "give smaller arguments, or a longer timeout" in str(error.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert x.tolist() == [0, 0]
    ends()


@needs_compiler
@pytest.mark.parametrize("kind", ["atomics", "nothing"])
def test_an_interrupted_kernel(kind: str) -> None:
    """Ctrl-C ends it as any program, and the process can go on."""
    x = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(TimeoutError):  # compiles
        detmode.certify(source(ENDLESS[kind]), {"x": x}, **CUDA, timeout=0.1)
    with interrupted(0.5), pytest.raises(KeyboardInterrupt):
        detmode.certify(source(ENDLESS[kind]), {"x": x}, **CUDA, timeout=LONG)
    ends()


@pytest.mark.thorough
@needs_compiler
def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--timeout`` is a usage error's line, and Ctrl-C ends the command by its signal."""
    monkeypatch.setenv("COLUMNS", "1000")
    program = tmp_path / "kernels.py"
    program.write_text(
        "import torch\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'begun')!r}).touch()\n"
        f"kernel = dict(kernel={source(ENDLESS['atomics'])!r}, grid=1, block=32,\n"
        "              arguments=[torch.zeros(2, dtype=torch.int32)])\n"
    )
    assert main(["certify", f"{program}::kernel", "--timeout", "0.2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "endless did not end in 0.2 seconds" in error
    assert main(["certify", f"{program}::kernel", "--timeout", "-1"]) == 2
    assert "timeout must be above 0 seconds, but got -1.0" in capsys.readouterr().err
    (tmp_path / "begun").unlink()
    command = [sys.executable, "-m", "detmode", "certify", f"{program}::kernel"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            end = time.monotonic() + LONG
            while not (tmp_path / "begun").exists() and time.monotonic() < end:
                time.sleep(0.1)
            time.sleep(1)  # it is compiled already
            assert running.poll() is None
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=LONG)
        finally:
            running.kill()
    assert running.returncode == -signal.SIGINT
    assert "interrupted" in said


FORKED = """
import ctypes, os, signal, threading, time
import torch
import detmode

TEXT = "__global__ void waits(volatile int* x) { while (*x == 0) x[1] += 1; }"

def certify(first):
    x = torch.tensor([first, 0], dtype=torch.int32)
    return detmode.certify(TEXT, {"x": x}, grid=1, block=1, repeats=2, timeout=60)

def fault():
    ctypes.string_at(0)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

def child(end):
    signal.alarm(60)  # one that hangs is killed
    assert certify(1).is_order_independent
    try:
        end()
    except KeyboardInterrupt:
        os._exit(0)

signal.signal(signal.SIGINT, signal.default_int_handler)
certify(1)
threading.Thread(target=certify, args=(0,), daemon=True).start()
begun = time.process_time()
while time.process_time() < begun + 0.3:  # in its launch it does nothing else
    time.sleep(0.01)
for end in (fault, interrupt):
    process = os.fork()
    if process == 0:
        try:
            child(end)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
os._exit(0)
"""


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="by fork")
def test_a_child_that_is_forked_during_a_launch(tmp_path: Path) -> None:
    """It certifies the same kernel, and afterwards faults and Ctrl-C end it as any process."""
    ended = run_forked("-c", [[FORKED]], tmp_path, timeout=100)
    assert ended.stdout.split() == [str(-signal.SIGSEGV), "0"], ended.stderr


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "1"])
def test_what_is_no_limit(timeout: object) -> None:
    """It is refused before anything is compiled."""
    wrong: Any = timeout
    with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
        detmode.certify("__global__ void f() {}", {}, **CUDA, timeout=wrong)


TRITON = """
import triton
import triton.language as tl

@triton.jit
def polls(x):
    while tl.atomic_add(x, 1) >= 0:
        pass

@triton.jit
def loops(x):
    while True:
        pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["polls", "loops"])
def test_a_kernel_of_triton_that_does_not_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in its time, and by Ctrl-C; no thread of it is left."""
    pytest.importorskip("triton", reason="Triton is not installed")
    (tmp_path / "endless_triton.py").write_text(TRITON)
    monkeypatch.syspath_prepend(tmp_path)
    endless_triton = importlib.import_module("endless_triton")
    kernel, x = getattr(endless_triton, name), torch.zeros(1, dtype=torch.int32)
    before = threading.active_count()
    with pytest.raises(TimeoutError, match=f"{name} did not end in 0.2 seconds"):
        detmode.certify(kernel, {"x": x}, grid=2, repeats=2, timeout=0.2)
    assert threading.active_count() == before
    with interrupted(0.5), pytest.raises(KeyboardInterrupt):
        detmode.certify(kernel, {"x": x}, grid=2, repeats=2, timeout=LONG)
    assert threading.active_count() == before
