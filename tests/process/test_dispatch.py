"""The state of PyTorch's dispatcher, and what PyTorch keeps for a thread."""

import sys

from detmode.process.dispatch import carry
from tests.shared.programs import in_another_thread


def test_what_is_carried_is_referenced_once():
    """Each block keeps the thread's levels anew, and they have one reference more, not one less.

    PyTorch up to 2.11 drops one that it has not taken.
    """

    def references():
        value = []
        before = sys.getrefcount(value)
        for _ in range(3):
            carry("detmode.test", value)
        return sys.getrefcount(value) - before

    assert in_another_thread(references) == 1
