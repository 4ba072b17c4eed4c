"""The modes of tests: one for a marked test, one for a whole suite."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from detmode.mode import DeterministicMode
from detmode.repeats import Snapshot, snapshot
from detmode.settings import flag
from detmode.sites import backward_site, site_of, user_frame

__all__ = ["SuiteMode", "CheckedMode"]


class CheckedMode(DeterministicMode):
    """The mode of a test, which collects what must be the same bits in each repeat."""

    collected: Snapshot | None = None
    """What the running repeat has given; ``None`` outside of one."""

    def compare(self, **values: Any) -> None:
        """Require that values have the same bits in each repeat of the test.

        Args:
            values: tensors, arrays, numbers, texts, or containers of them, by the names that a
                message calls them. They are copied now. A name that is given again, in a loop, is
                another value: "loss", "loss (2)", ...

        Raises:
            RuntimeError: the test has no marker ``deterministic``, so that nothing repeats.
            TypeError: a value cannot be compared bit for bit.
        """
        if self.collected is None:
            raise RuntimeError(
                "compare() compares repeats of a test: mark it with @pytest.mark.deterministic"
            )
        for name, value in values.items():
            self._times[name] = times = self._times.get(name, 0) + 1
            self.collected |= snapshot(value, name if times == 1 else f"{name} ({times})")

    def begin_repeat(self) -> None:
        """What the next repeat gives is collected anew."""
        self.collected, self._times = {}, dict[str, int]()
