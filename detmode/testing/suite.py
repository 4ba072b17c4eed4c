"""The modes of tests: one that repeats a marked test, and one around a whole suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from detmode import cuda
from detmode.mode.deterministic_mode import DeterministicMode
from detmode.mode.handled import Handled
from detmode.process.interface import MARKER, PYTEST
from detmode.testing.repeats import (
    Values,
    differences,
    first_divergence,
    remember_generators,
    snapshot,
)


class CheckedMode(DeterministicMode):
    """The mode of a test, which collects what must have the same bits in each repeat.

    Args:
        repeats: the number of times that a marked test runs, at least 2.
        options: those of :class:`DeterministicMode`.

    Raises:
        ValueError, TypeError: an argument is impossible.
    """

    _public = (*DeterministicMode._public, "compare")
    interface = MARKER

    def __init__(self, repeats: int = 3, **options: Any) -> None:
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 2:
            raise ValueError(f"repeats must be an int of at least 2, got {repeats!r}")
        super().__init__(**options)
        self.repeats = repeats
        self._collected: Values | None = None
        self._times: dict[str, int] = {}

    def compare(self, **values: Any) -> None:
        """Require that values have the same bits in each repeat of the test.

        Args:
            values: tensors, arrays, numbers, texts, or containers of them, by the names that a
                message calls them. They are copied now. A name that is given again, in a loop,
                is another value: "loss", "loss (2)", ...

        Raises:
            RuntimeError: the test has no marker ``deterministic``, so that nothing repeats.
            TypeError: a value cannot be compared bit for bit.
        """
        if self._collected is None:
            raise RuntimeError(
                "compare() compares the repeats of a test: mark it with @pytest.mark.deterministic"
            )
        for name, value in values.items():
            self._times[name] = times = self._times.get(name, 0) + 1
            self._collected |= snapshot(value, name if times == 1 else f"{name} ({times})")

    def repeat(
        self,
        call: Callable[[], object],
        set_up: Callable[[], object],
        shared: Callable[[], Mapping[str, Any]],
    ) -> str | None:
        """Run a test's body as often as was asked for, each time from the same random state.

        Args:
            call: runs the body.
            set_up: sets up what belongs to one repeat.
            shared: returns the objects with which a repeat begins, by name.

        Returns:
            How the repeats differ in their bits, or that there is nothing to compare; ``None`` if
            all have the same bits.
        """
        restore_generators = remember_generators()

        def run(number: int, inside: AbstractContextManager[object]) -> Values:
            restore_generators()
            set_up()
            self._collected, self._times = {}, {}
            try:
                with inside, self, cuda.host.schedule(self._seed(number)):
                    result = call()
                if result is not None:
                    self._collected |= snapshot(result, "result")
                return self._collected
            finally:
                self._collected = None

        first = run(0, nullcontext())
        for number in range(1, self.repeats):
            lines = differences(first, run(number, nullcontext()))
            if lines:
                again = (0, *range(number, number + self.repeats - 1))
                return self._message(lines, number, first_divergence(run, again, shared))
        if first:
            return None
        return (
            "the repeats give nothing to compare: return tensors from the test, or give them "
            "to deterministic_mode.compare(name=tensor)"
        )

    def _seed(self, number: int) -> int | None:
        """The schedule of a repeat: another one for each, where CUDA is simulated."""
        if self.simulate is None:
            return None
        return (self._schedule_seed or 0) + number if number else self._schedule_seed

    def _message(self, lines: list[str], number: int, divergence: str) -> str:
        head = f"repeat {number} gave other bits than repeat 0"
        if self.simulate:
            head += f" (schedule_seed {self._seed(0)} and {self._seed(number)})"
        return "\n".join([head, *(f"  {line}" for line in lines), divergence])


class SuiteMode(DeterministicMode):
    """The mode around a suite: it keeps silent where it does not raise, and records everything.

    Args:
        known: whether an offender, by its overload and site, is one that may go on. Under
            ``warn_only`` each is: nothing is to fail.
        options: those of :class:`DeterministicMode`.
    """

    # A warning for each would fail a suite that runs under -W error; the summary tells.
    announced_actions = ("error",)
    interface = PYTEST

    def __init__(self, known: Callable[[str, str], bool], **options: Any) -> None:
        super().__init__(**options)
        self._is_known = known

    def may_go_on(self, call: Handled) -> bool:
        """Return whether the baseline has the call, or nothing is to fail."""
        assert call.site is not None
        return self.policy.warn_only or self._is_known(call.overload.name, call.site.site.text)
