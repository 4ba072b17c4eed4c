"""Kernels that do not end: a limit of time, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import detmode
from detmode.cli import main

needs_compiler = pytest.mark.skipif(
    detmode.cuda.unavailable("cpu") is not None, reason="there is no C++ compiler"
)

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


@needs_compiler
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_kernel_that_does_not_end(kind: str) -> None:
    """It ends in its time, whatever it does meanwhile; the error says what to do."""
    x = torch.zeros(2, dtype=torch.int32)
    begin = time.monotonic()
    with pytest.raises(TimeoutError) as error:
        detmode.certify(source(ENDLESS[kind]), {"x": x}, **CUDA, timeout=1.5)
    assert time.monotonic() - begin < 60
    assert "endless did not end in 1.5 seconds (schedule 'program order')" in str(error.value)
    assert "give smaller arguments, or a longer timeout" in str(error.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert x.tolist() == [0, 0]
    ends()


@needs_compiler
@pytest.mark.parametrize("kind", ["atomics", "nothing"])
def test_an_interrupted_kernel(kind: str) -> None:
    """Ctrl-C ends it as any program, and the process can go on."""
    detmode.certify(source("x[0] = 1;"), {"x": torch.zeros(2, dtype=torch.int32)}, **CUDA)
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        detmode.certify(
            source(ENDLESS[kind]), {"x": torch.zeros(2, dtype=torch.int32)}, **CUDA, timeout=100
        )
    assert time.monotonic() - begin < 60
    ends()


@needs_compiler
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--timeout`` is a usage error's line, and Ctrl-C ends the command by its signal."""
    program = tmp_path / "kernels.py"
    program.write_text(
        "import torch\n"
        f"kernel = dict(kernel={source(ENDLESS['atomics'])!r}, grid=1, block=32,\n"
        "              arguments=[torch.zeros(2, dtype=torch.int32)])\n"
    )
    assert main(["certify", f"{program}::kernel", "--timeout", "1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "endless did not end in 1 seconds" in error
    assert main(["certify", f"{program}::kernel", "--timeout", "-1"]) == 2
    assert "timeout must be above 0 seconds, but got -1.0" in capsys.readouterr().err
    command = [sys.executable, "-m", "detmode", "certify", f"{program}::kernel"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(10)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    try:
        _, said = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == -signal.SIGINT
    assert "interrupted" in said


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "1"])
def test_what_is_no_limit(timeout: object) -> None:
    """It is refused before anything is compiled."""
    with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
        # To be refused.
        detmode.certify("__global__ void f() {}", {}, **CUDA, timeout=timeout)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("name", ["polls", "loops"])
def test_a_kernel_of_triton_that_does_not_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in its time, and by Ctrl-C; no thread of it is left."""
    pytest.importorskip("triton", reason="Triton is not installed")
    (tmp_path / "endless_triton.py").write_text(TRITON)
    monkeypatch.syspath_prepend(tmp_path)
    import endless_triton  # type: ignore[import-not-found]  # the test writes it

    kernel, x = getattr(endless_triton, name), torch.zeros(1, dtype=torch.int32)
    before = threading.active_count()
    with pytest.raises(TimeoutError, match=f"{name} did not end in 1 seconds"):
        detmode.certify(kernel, {"x": x}, grid=2, repeats=2, timeout=1)
    assert threading.active_count() == before
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        detmode.certify(kernel, {"x": x}, grid=2, repeats=2, timeout=100)
    timer.join()
    assert threading.active_count() == before
