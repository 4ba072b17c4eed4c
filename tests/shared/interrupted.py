"""Blocks and calls to interrupt, and what must be left of them: nothing.

As a program: one of them over and over, with a signal at any moment, as often as its argument says.
"""

import gc
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch._inductor.config as inductor
from torch.utils import _python_dispatch as dispatch

from detmode import DeterministicMode, Native, Refuse, RuleTable, Substitute, allow
from detmode.mode.compiled.current import thread
from detmode.mode.detours import STAND_INS
from detmode.mode.substitution import validations
from detmode.process.dispatch import own_calls
from detmode.process.setting import all_settings, native_calls
from detmode.process.undo import _locks
from detmode.sites.forward_memory import forward_memory
from tests.shared.programs import rule

x = torch.ones(4)
RULES = RuleTable(
    [
        rule("aten::cumsum", Native()),
        rule("aten::cumprod", Refuse(), alert="cumprod"),
        rule("aten::trace", Substitute(lambda self: torch.ones(()), launches=False)),
    ]
)


def native() -> None:
    with DeterministicMode(rules=RULES):
        x.cumsum(0)


def native_strictly() -> None:
    with DeterministicMode(True, rules=RULES, fill_uninitialized_memory=False):
        x.cumsum(0)


def substituted() -> None:
    with DeterministicMode(rules=RULES, simulate="cuda", schedule_seed=1):
        x.reshape(2, 2).trace()


def allowed() -> None:
    with DeterministicMode(rules=RULES), allow("aten::cumprod"):
        x.cumprod(0)


def warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only the end of the block matters
        with DeterministicMode(True, rules=RULES):
            x.cumprod(0)


def refused() -> None:
    try:
        with DeterministicMode(rules=RULES):
            x.cumprod(0)
    except RuntimeError:
        return
    raise AssertionError("the call is refused")


def taken_apart() -> None:
    with torch.inference_mode(), DeterministicMode(rules=RULES):
        torch.nn.functional.linear(x, x.reshape(2, 2).repeat(1, 2))


def nested() -> None:
    outer = DeterministicMode(rules=RULES)
    with outer, DeterministicMode(rules=RULES), outer:
        x.cumsum(0)


def listed() -> None:
    with DeterministicMode(rules=RULES, simulate="cuda", intercept="listed"):
        x.reshape(2, 2).trace()
        with DeterministicMode(rules=RULES, overrides={"aten::cos": "allow"}, intercept="listed"):
            x.cos()


def waiting() -> Iterator[None]:
    with DeterministicMode(rules=RULES):
        yield


def left_early() -> None:
    held = waiting()
    next(held)
    with DeterministicMode(rules=RULES):
        held.close()


BLOCKS: dict[str, Callable[[], None]] = {
    block.__name__: block
    for block in (
        native,
        native_strictly,
        substituted,
        allowed,
        warned,
        refused,
        taken_apart,
        nested,
        left_early,
        listed,
    )
}
LISTED = ("aten::trace", "aten::trace.out", "aten::cumprod", "aten::cumprod_", "aten::cos")
"""Operators for which one of the blocks registers kernels."""


def _kernels_of(name: str) -> list[str]:
    """The table of an operator without the player's kernels, which stay where modes are called."""
    lines = torch._C._dispatch_dump_table(name).splitlines()
    return [line for line in lines if not line.startswith(("Python:", "PythonTLSSnapshot:"))]


def state() -> dict[str, object]:
    """All that a block or a call may leave behind."""
    return {
        "flag": torch.get_deterministic_debug_mode(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (torch._C._get_cudnn_deterministic(), torch._C._get_cudnn_benchmark()),
        "inductor": getattr(inductor, "deterministic", None),
        "compiling": thread.key,
        "kernels": [_kernels_of(name) for name in LISTED],
        "stack": dispatch._get_current_dispatch_mode_stack(),
        "dispatch": [getattr(dispatch, name) for name in vars(dispatch) if name[:6] == "_is_in"],
        "detours": [(len(each.users), each._current) for each in STAND_INS],
        "interpolate": torch._decomp.decompositions._upsample_linear_vec.__module__,
        "regions": len(forward_memory()._active),
        "open": [len(setting._open) for setting in all_settings],
        "held": [len(setting._waiting + setting._active) for setting in all_settings],
        "counted": [setting.holds.value for setting in all_settings],
        "calls": [calls.here() for calls in (own_calls, native_calls, validations)],
        "locks": locks_taken(),
    }


def locks_taken() -> int:
    """Count the locks that another thread finds taken."""
    taken = []

    def look() -> None:
        for lock in list(_locks):
            if lock._held.acquire(blocking=False):
                lock._held.release()
            else:
                taken.append(lock)

    other = threading.Thread(target=look)
    other.start()
    other.join()
    return len(taken)


@contextmanager
def raised_at_line(number: int, files: tuple[str, ...]) -> Iterator[list[str]]:
    """``KeyboardInterrupt`` at the line of this number that runs in ``files``; which it was."""
    struck: list[str] = []
    count = 0

    def at_line(frame, event, arg):
        nonlocal count
        if event == "line" and not struck:
            count += 1
            if count > number:
                struck.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return at_line

    def at_call(frame, event, arg):
        return at_line if frame.f_code.co_filename.startswith(files) else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield struck
    finally:
        sys.settrace(before)


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def left_since(clean: dict[str, object]) -> dict[str, object]:
    """Parts of the state that are not as they were."""
    return {key: value for key, value in state().items() if value != clean[key]}


def strike(times: int, seed: int) -> None:
    """Let signals strike at any moment, and find the state as it was after each.

    Raises:
        AssertionError: something was left, which is told.
    """
    random.seed(seed)
    names = list(BLOCKS)
    for block in BLOCKS.values():
        block()
    clean = state()

    signal.signal(signal.SIGALRM, interrupt)
    struck = 0
    while struck < times:
        name = random.choice(names)
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-5, 2e-3))
            while True:
                BLOCKS[name]()
        except KeyboardInterrupt:
            struck += 1
        gc.collect(0)
        left = left_since(clean)
        assert not left, f"signal {struck} in {name} left {left}"


if __name__ == "__main__":
    strike(int(sys.argv[1]), int(sys.argv[2]))
