"""Threads of modes with different options, forks and signals among them; nothing may be left.

Generators end their blocks in other threads meanwhile, and a thread keeps lists of all objects.

As a program: for as many seconds as its argument says.
"""

import collections
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import torch

from detmode import DeterministicMode, Native, Refuse, RuleTable, Substitute, allow, cuda
from tests.shared import interrupted
from tests.shared.programs import rule

NAMESPACE = "detmode_stress"
RULES = RuleTable(
    [
        rule(f"{NAMESPACE}::native", Native()),
        rule(f"{NAMESPACE}::refused", Refuse(), alert="refused"),
        rule(
            f"{NAMESPACE}::substituted",
            Substitute(lambda x: torch.empty(4).fill_(0), launches=False),
        ),
    ]
)
faults: list[str] = []
counts = collections.Counter()
over = threading.Event()


def define(library: torch.library.Library) -> None:
    """Operators that look, while they run, at what they need."""

    def native(x: torch.Tensor) -> torch.Tensor:
        for _ in range(random.randrange(4)):
            if torch.get_deterministic_debug_mode() != 2 or torch._C._get_cudnn_benchmark():
                faults.append("a native call found the flag off, or cuDNN's benchmark on")
            if not torch.utils.deterministic.fill_uninitialized_memory:
                faults.append("a native call found the filling off")
            time.sleep(0)
        return x.clone()

    def refused(x: torch.Tensor) -> torch.Tensor:
        if not threading.current_thread().name.startswith("lenient"):
            faults.append("a call ran that is refused")
        elif torch.are_deterministic_algorithms_enabled():
            faults.append("an allowed call found the flag on")
        time.sleep(0)
        return x.clone()

    for name, kernel in (("native", native), ("refused", refused), ("substituted", native)):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernel, "CPU")


def strict() -> None:
    """Refused calls raise, native ones run under the flag."""
    with DeterministicMode(rules=RULES):
        torch.ops.detmode_stress.native(interrupted.x)
        with contextlib.suppress(RuntimeError):
            torch.ops.detmode_stress.refused(interrupted.x)
            faults.append("a call was not refused")
        counts.update(["refused", "native"])


def warn_only() -> None:
    """Refused calls run with the flag off, native ones under the strict flag."""
    with DeterministicMode(True, rules=RULES):
        torch.ops.detmode_stress.native(interrupted.x)
        torch.ops.detmode_stress.refused(interrupted.x)
        counts.update(["native", "allowed"])


def allowing() -> None:
    """Allowed calls run with the flag off."""
    with DeterministicMode(rules=RULES), allow(f"{NAMESPACE}::refused"):
        torch.ops.detmode_stress.refused(interrupted.x)
        torch.ops.detmode_stress.substituted(interrupted.x)
        counts.update(["allowed", "substituted"])


def simulated() -> None:
    """CUDA kernels run on the host, one launch at a time."""
    with DeterministicMode(simulate="cuda"):
        torch.zeros(8).index_add(0, torch.tensor([3, 3]), torch.ones(2))
    counts["simulated"] += 1


def passed_on() -> Iterator[None]:
    """A block that is entered in one thread, and left in whichever takes it next."""
    options = {"rules": RULES, "fill_uninitialized_memory": random.choice((True, None))}
    blocks = (DeterministicMode(**options), DeterministicMode(True, **options), allow("aten::put"))
    with random.choice(blocks):
        yield


waiting: list[Iterator[None]] = []
"""Generators in their blocks."""


def stepping() -> None:
    """Generators go round between threads."""
    generator = passed_on()
    next(generator)
    waiting.append(generator)
    time.sleep(0)
    try:
        next(waiting.pop(0), None)
    except RuntimeError as error:
        if "left in another" not in str(error):
            raise
        counts["left elsewhere"] += 1
    except IndexError:
        return  # another thread has taken it


def profiling() -> None:
    """A memory profiler's part: other references to each object, for a while."""
    counts["objects"] = len(objects := gc.get_objects())
    time.sleep(random.uniform(0, 0.05))
    del objects


BLOCKS = [warn_only, allowing]
if cuda.unavailable("cpu") is None:
    BLOCKS.append(simulated)


def until_over(*blocks: Callable[[], None]) -> None:
    """One thread's part."""
    while not over.is_set():
        try:
            random.choice(blocks)()
        except BaseException as error:
            # Python's own: a list of all objects has the tuple that tuple() is about to shorten.
            if not (isinstance(error, SystemError) and "bad argument to internal" in str(error)):
                faults.append(f"{threading.current_thread().name}: {type(error).__name__}: {error}")


def fork() -> None:
    """A child enters modes while the parent's threads are in theirs."""
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # a child that hangs is killed
        faults.clear()
        threading.current_thread().name = "strict"
        strict()
        threading.current_thread().name = "lenient"
        for block in BLOCKS:
            block()
        os._exit(len(faults))
    _, status = os.waitpid(child, 0)
    counts["forks"] += 1
    if status:
        faults.append(f"a child ended with {os.waitstatus_to_exitcode(status)}")


def main(seconds: float) -> list[str]:
    """Stress the process; what went wrong, each line once."""
    warnings.simplefilter("ignore")  # the blocks that only warn would fill the terminal
    threading.current_thread().name = "lenient main"
    for block in BLOCKS:
        # Imports and compiles: Python itself hangs in a child that is forked during an import.
        block()
    clean = interrupted.state()
    threads = [threading.Thread(target=until_over, args=(strict,)) for _ in range(4)]
    threads += [
        threading.Thread(target=until_over, args=BLOCKS, name=f"lenient {i}") for i in range(4)
    ]
    threads += [threading.Thread(target=until_over, args=(stepping,)) for _ in range(2)]
    threads.append(threading.Thread(target=until_over, args=(profiling,)))
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGALRM, interrupted.interrupt)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-2))
            while True:
                random.choice(BLOCKS)()
        except KeyboardInterrupt:
            counts["signals"] += 1
        if counts["signals"] % 16 == 0:
            fork()
    over.set()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            faults.append(f"{thread.name} hangs")
    for generator in waiting:
        with contextlib.suppress(RuntimeError):
            generator.close()
    # What other threads have left to this one, it undoes before its next block.
    warn_only()
    if left := interrupted.left_since(clean):
        faults.append(f"left: {left}")
    return list(dict.fromkeys(faults))


if __name__ == "__main__":
    with torch.library._scoped_library(NAMESPACE, "FRAGMENT") as library:
        define(library)
        found = main(float(sys.argv[1]))
    print(counts)
    for line in found:
        print(line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(bool(found))  # a thread that hangs would keep the process
