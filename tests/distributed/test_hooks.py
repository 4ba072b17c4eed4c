"""Communication hooks of DDP: two gloo ranks, whose backend may call back from its own threads."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from detmode.process.callbacks import callbacks_at_once
from detmode.process.undo import Undo
from tests.shared import needs
from tests.shared.processes import run_ranks

pytestmark = needs.distributed

EXPECTED = {
    "own": {"aten::sinh.default": 5},
    "both": {"aten::sinh.default": 5},
    "compress": {"aten::div_.Tensor": 5},
    "power": {"aten::bmm.out": 24},
}
"""For each hook, how often its operators are called: for 5 buckets in 3 steps."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    program = Path(__file__).parent / "hooked.py"
    return run_ranks(program, 2, tmp_path_factory.mktemp("hooked"))


@pytest.mark.thorough
@pytest.mark.parametrize("hook", EXPECTED)
def test_callbacks_run_inside(results: dict[str, list[Any]], hook: str) -> None:
    """Callbacks of collectives run inside the mode and inside a recording, always in one order.

    The program itself asserts that PyTorch's method is back after the blocks.
    """
    # What PyTorch calls once, for itself, is left out.
    known = {*EXPECTED[hook], "aten::copy_.default"}
    first, second = (
        {name: count for name, count in rank["counted"].items() if name in known}
        for rank in results[hook]
    )
    assert first == second
    for rank in results[hook]:
        calls, again = rank["recorded"]
        assert calls == again
        found = Counter(calls)
        for overload, count in EXPECTED[hook].items():
            assert found[overload] == count
            # The mode counts no bmm of dense tensors.
            assert first.get(overload, count) == count


@pytest.mark.thorough
def test_one_thread(results: dict[str, list[Any]]) -> None:
    """The callbacks run in the thread of the backward."""
    assert results["threads"] == [1, 1]


def test_another_get_future_stays() -> None:
    """A method that a program puts in the place of PyTorch's inside a block is there after it."""
    work, undo = torch._C._distributed_c10d.Work, Undo()
    original = work.get_future
    callbacks_at_once(undo)
    try:
        work.get_future = other = functools.wraps(original)(lambda work: original(work))
        undo.run()
        assert work.get_future is other
    finally:
        work.get_future = original
