"""The state of PyTorch's dispatcher, and what PyTorch keeps for a thread."""

import sys

from detmode.process.dispatch import carry
from tests.shared.programs import in_another_thread


def test_what_is_carried_is_referenced_once():
    """However often a block keeps the same levels: up to PyTorch 2.11 a reference too few is left.

    The thread's end would then free what others still use.
    """

    def references():
        value = []
        before = sys.getrefcount(value)
        for _ in range(3):
            carry("detmode.test", value)
        return sys.getrefcount(value) - before

    assert in_another_thread(references) == 1
