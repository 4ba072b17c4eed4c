"""The package where the system has less than Linux: all modules import, and what runs says so."""

import sys

import pytest

from detmode.cuda import device
from tests.shared.processes import run_forked

HIDE = """
import os, signal, sys, warnings
# What other packages need of this system, they have by now.
import filelock, jinja2, multiprocessing.pool, numpy, tabulate, tqdm, wrapt
import torch, torch._dynamo, torch._inductor.compile_fx, torch.distributed.checkpoint

NOT_ON_WINDOWS = (
    "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH WNOHANG chown fork forkpty getegid geteuid "
    "getgid getloadavg getpgid getpriority getuid killpg lchown mkfifo nice openpty pread pwrite "
    "register_at_fork sched_getaffinity sched_setaffinity sched_yield setpgid setpriority setsid "
    "statvfs uname wait"
)
for name in NOT_ON_WINDOWS.split():
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "setitimer"):
    delattr(signal, name)
for name in "cupy curses fcntl grp pwd pty resource termios triton tty".split():
    sys.modules[name] = None  # an import of it raises
filelock.FileLock = filelock.SoftFileLock  # as filelock chooses there
os.environ["PATH"] = ""  # nor is there a compiler
os.environ.pop("CXX", None)
"""
RUN = """
import importlib, pkgutil, re
import detmode
from detmode.cli.parser import main

before = len(sys.modules)
for found in pkgutil.walk_packages(detmode.__path__, "detmode."):
    # The command itself, and what needs packages that are optional.
    if not re.search("__main__|integrations[.]|certificates[.]triton", found.name):
        importlib.import_module(found.name)
assert len(sys.modules) > before + 100
for name in dir(detmode):
    getattr(detmode, name)

def step():
    # Other sizes in each run would be other calls.
    x = torch.rand(3, 4, requires_grad=True)
    x.index_add(0, torch.tensor([1, 1]), torch.rand(2, 4)).sin().sum().backward()
    return x.grad

with detmode.DeterministicMode(warn_only=True) as mode:
    step()
print(mode.report())
for path in ("first", "second"):
    detmode.seed_everything(0)
    with detmode.record(path):
        step()
print(detmode.diff("first", "second"))
print(detmode.audit(step).verdict)
with warnings.catch_warnings(record=True), detmode.DeterministicMode(simulate="cuda") as simulated:
    step()
print(simulated.report())
print(detmode.cuda.unavailable("cpu"))
assert main(["doctor"]) == 0, "doctor"
assert main(["rules", "--op", "aten::index_add"]) == 0, "rules"

from detmode.cuda import cache
kept = cache.take("host", "a.so", lambda: (b"code", "note"))
assert not kept.is_new or cache.take("host", "a.so", lambda: 1 / 0).note == "note"
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="hides what Linux has")
def test_less_than_linux(run_python, tmp_path):
    """Without forks, users, file locks, signals and a compiler, everything imports.

    What needs no CUDA kernel runs, and what needs one says what is missing.
    """
    done = run_python("-c", HIDE + RUN, DETMODE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    for words in (
        "the runs are identical",
        "The host runner needs a C++ compiler; install g++ or set CXX.",
    ):
        assert words in done.stdout, done.stdout


@pytest.mark.thorough
def test_windows_waits_for_the_program(tmp_path):
    """The command starts the program over and waits, as exec would lose the exit code there."""
    program = (
        "import os, sys; from detmode.cli.parser import main; sys.platform = 'win32'; "
        "os.execve = None; sys.exit(main(['run', '-c', 'import sys; print(5); sys.exit(7)']))"
    )
    done = run_forked("-c", [[program]], tmp_path, timeout=100)
    assert (done.returncode, done.stdout) == (7, "5\n"), done.stderr


def test_macos_says_that_it_has_no_cuda(monkeypatch):
    """There no build of PyTorch has CUDA, and none is advised."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "macOS has no CUDA; simulate='cuda' runs" in str(device.unavailable())
