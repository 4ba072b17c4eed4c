"""Schedules of a launch: which program runs next, and in which order the lanes of an atomic run."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from detmode.verify.certificates.certificate import FoundError, KernelVerdict
from detmode.verify.certificates.triton.dependence import Step, Touch

PATIENCE = 1000
"""Rounds in which all programs wait and none changes memory, before the launch is given up."""

_GRACE = 1.0
"""Seconds in which a program that makes accesses makes one."""

LONG = 10_000
"""Accesses of a program without an atomic, after which another may run: it may be waiting."""


Schedule: TypeAlias = str | Sequence[int] | None
"""The order of a launch. None: programs run one after another in program order. A sequence: as it
chooses, and then each as long as it can. A text is the seed of a shuffle: programs start in another
order, up to eight run at once, another one may go on before each atomic, and an atomic's lanes run
in another order, in several groups."""


class Programs:
    """The programs of one launch, each a thread of its own, of which one runs at a time."""

    def __init__(
        self,
        count: int,
        body: Callable[[], object],
        enter: Callable[[int], None],
        schedule: Schedule,
        steps: list[Step],
    ) -> None:
        self.count, self.body, self.enter, self.steps = count, body, enter, steps
        self._random: random.Random | None = None
        self._choices: Iterator[int] | None = None
        self._waiting = list(range(count))
        self.window = 1
        """The most programs that run at once."""
        if isinstance(schedule, str):
            self._random = random.Random(schedule)
            self.window = self._random.choice((1, 2, 4, 8))
            self._random.shuffle(self._waiting)
        elif schedule is not None:
            self._choices = iter(schedule)
        self._waiting.reverse()
        self._started: list[int] = []
        self.current = -1
        self.finished: set[int] = set()
        self.blocked: dict[int, set[int]] = {}
        """Programs that poll, and the addresses whose change they wait for."""

        self._turns: dict[int, threading.Semaphore] = {}
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._stopped = False
        self._polled: dict[int, object] = {}
        self._rounds = 0
        self._accesses = 0

    def lanes(self, count: int) -> list[NDArray[np.intp]]:
        """Return the lanes of an atomic in one group, or shuffled in up to three."""
        if self._random is None:
            return [np.arange(count)]
        order = np.array(self._random.sample(range(count), count), np.intp)
        cuts = sorted(self._random.choices(range(count + 1), k=2))
        return [group for group in np.split(order, cuts) if group.size]

    def run(self, timeout: float) -> None:
        """Run all programs to their ends; raises what the first one to fail raises.

        Raises:
            TimeoutError: they have not ended in so many seconds.
        """
        try:
            self._go_on()
            if not self._done.wait(timeout):
                raise TimeoutError
        finally:
            self._stopped = True
            for turn in self._turns.values():
                turn.release()
            for thread in self._threads:
                _end(thread)
        if self._failure is not None:
            raise self._failure

    def access(self, touch: Touch) -> None:
        """Record what the running program used."""
        if self._stopped:
            raise _StoppedError
        self.steps[-1].touches.append(touch)
        self._accesses += 1

    def changed(self, touch: Touch) -> None:
        """Free the programs that wait for memory which the running program changed."""
        self._rounds = 0
        self._polled.pop(self.current, None)
        if self.blocked:
            changed = set(touch.addresses.tolist())
            for program, awaited in list(self.blocked.items()):
                if not awaited.isdisjoint(changed):
                    del self.blocked[program]

    def polled(self, touch: Touch, seen: bytes) -> None:
        """Block a program which sees for the second time in a row what it saw before.

        It goes on when another program changes the memory, or when all programs wait.
        """
        look = (touch.addresses.tobytes(), seen)
        if self._polled.get(self.current) == look:
            self.blocked[self.current] = set(touch.addresses.tolist())
        else:
            self._rounds = 0
        self._polled[self.current] = look

    @property
    def weary(self) -> bool:
        """True if the running program made many accesses without an atomic."""
        return self._accesses >= LONG

    def switch(self) -> None:
        """End a step of the running program; others may run before it returns."""
        turn = self._turns[self.current]
        if self._go_on():
            turn.acquire()
        if self._stopped:
            raise _StoppedError

    def _choose(self) -> tuple[int, frozenset[int]]:
        """Return the program that goes on, and after given choices all that could."""
        if self._choices is not None:
            could = frozenset(range(self.count)) - self.finished - self.blocked.keys()
            chosen = next(self._choices, self.current)
            return chosen if chosen in could else min(could), could
        self._started = [program for program in self._started if program not in self.finished]
        ready = [program for program in self._started if program not in self.blocked]
        while self._waiting and len(ready) < self.window:
            ready.append(self._waiting.pop())
            self._started.append(ready[-1])
        return ready[0] if self._random is None else self._random.choice(ready), frozenset()

    def _go_on(self) -> bool:
        """Give the turn to the program that the schedule chooses; false if it has the turn."""
        if len(self.finished) == self.count:
            self._done.set()
            return True
        if len(self.finished) + len(self.blocked) == self.count:
            self._rounds += 1
            if self._rounds > PATIENCE:
                raise FoundError(
                    KernelVerdict.FAULT, "all programs wait for memory that none of them changes"
                )
            self.blocked.clear()
        before = self.current
        chosen, ready = self._choose()
        self.steps.append(Step(chosen, ready))
        self.current, self._accesses = chosen, 0
        self.enter(chosen)
        if chosen == before:
            return False
        if chosen in self._turns:
            self._turns[chosen].release()
        else:
            self._turns[chosen] = threading.Semaphore(0)
            thread = threading.Thread(target=self._program, daemon=True)
            self._threads.append(thread)
            thread.start()
        return True

    def _program(self) -> None:
        try:
            with np.errstate(all="ignore"):
                self.body()
            self.finished.add(self.current)
            self._go_on()
        except _StoppedError:
            pass
        except BaseException as error:
            if not self._stopped:
                self._failure = error
                self._done.set()


def _end(thread: threading.Thread) -> None:
    """Wait for a thread that is to end at its next access; a loop without one is left."""
    thread.join(_GRACE)
    while thread.is_alive():
        number, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_StoppedError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)
        thread.join(_GRACE)


class _StoppedError(BaseException):
    """End the threads of a launch that is given up."""
