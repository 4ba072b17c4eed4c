"""A lock, calls and blocks that signals strike at any moment; and what must be left: nothing.

As a program: for as many seconds as its argument says. It needs no PyTorch, so that each version of
Python can run it.
"""

import random
import signal
import sys
import time
from collections import Counter

from detmode.process.undo import Calls, Lock, Undo

lock, calls = Lock(), Calls()
changes: list[int] = []


def begin(block: Undo) -> None:
    calls.count(block)
    block.note(changes.clear)
    changes.append(1)


def in_a_section() -> int:
    return lock.run(sum, (1, 2))


def in_nested_sections() -> int:
    return lock.run(lock.run, in_a_section)


def in_a_call() -> int:
    return calls.run(calls.run, sum, (1, 2))


def in_a_block() -> int:
    with Undo(begin):
        return sum((1, 2))


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(seconds: float) -> Counter[str]:
    """Strike; the number of signals, by what they struck.

    Raises:
        AssertionError: something was left.
    """
    struck: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        program = random.choice((in_a_section, in_nested_sections, in_a_call, in_a_block))
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 2e-4))
            while True:
                program()
        except KeyboardInterrupt:
            struck[program.__name__] += 1
        assert not lock._held._is_owned(), f"{program.__name__} left the lock taken"
        assert not calls.here(), f"{program.__name__} left a call in progress"
        assert not changes, f"{program.__name__} left its change"
    return struck


if __name__ == "__main__":
    print(sys.version.split()[0], dict(main(float(sys.argv[1]))))
