"""Plans beside other modes, tracers, captures, threads, forks and interrupts."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import detmode
from detmode.bits.difference import same_bits
from detmode.cuda import host
from detmode.mode import plans
from detmode.sites.observers import Observer
from tests.mode.planned import added, example, expected, simulated
from tests.shared import needs
from tests.shared.programs import Seen

pytestmark = [needs.compiler, pytest.mark.usefixtures("without_player")]


class Observed(Observer):
    """Notes the operators that it observes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def _observe(self, func: Any, args: Any, kwargs: Any, run: Any, place: Any) -> Any:
        self.names.append(func.name())
        return run(*args, **kwargs)


@pytest.mark.parametrize("outer", [Observed, Seen])
def test_other_modes_see_the_calls(outer, played):
    """Calls under an observer or another mode are made by their launchers, plan or not."""
    arguments = example()
    with simulated():
        for _ in range(4):
            added(*arguments)
    count = played.count
    with outer() as seen, simulated() as mode:
        for _ in range(4):
            result = added(*arguments)
    assert played.count == count
    assert same_bits(result, expected(lambda: added(*arguments)))
    assert [row.count for row in mode.records if "index_add" in row.overload] == [4]
    if outer is Observed:
        assert seen.names.count("aten::index_add") == 4


def test_regions_and_overrides_act(played):
    """An allowed call runs as PyTorch runs it, and a plan goes on behind the region."""
    arguments = example()
    with simulated() as mode:
        for _ in range(4):
            added(*arguments)
        count = played.count
        with detmode.allow("aten::index_add"):
            added(*arguments)
        assert played.count == count
        added(*arguments)
        assert played.count == count + 1
    assert {row.action for row in mode.records} == {"substitute", "allow"}
    with simulated(overrides={"aten::index_add": "allow"}) as mode:
        added(*arguments)
    assert {row.action for row in mode.records} == {"allow"}


def test_calls_made_twice_are_made_by_a_launcher_once(played):
    """``recheck`` compares a plan with the launcher, and counts each call once."""
    with simulated(recheck=1.0) as mode:
        for _ in range(5):
            added(*example())
    assert [row.count for row in mode.records if "index_add" in row.overload] == [5]
    assert 0 < played.count < 5
    assert mode.report().head["recheck"]["differing"] == 0


def test_nothing_is_recorded_during_a_capture(played):
    """A call that a CUDA graph captures is never recorded; one behind the capture is."""
    with patch.object(plans, "is_captured", lambda tensors: True), simulated():
        for _ in range(4):
            added(*example())
    assert played.count == 0
    with simulated():
        for _ in range(3):
            added(*example())
    assert played.count == 2
    on_gpu = [SimpleNamespace(is_cuda=True)]
    for capturing in (False, True):
        state = {"return_value": capturing}
        with patch.object(torch.cuda, "is_current_stream_capturing", **state):
            assert plans.is_captured(on_gpu) is capturing
            assert not plans.is_captured([torch.zeros(1)])


def test_an_interrupt_strikes_a_plan():
    """Ctrl-C in a launch of a plan, or while one is recorded, leaves nothing behind."""
    wanted = expected(lambda: added(*example(1)))
    for before in range(5):
        plans.forget()
        with simulated():
            for _ in range(before):
                added(*example())
            with (
                patch.object(host, "launch_blocks", side_effect=KeyboardInterrupt),
                pytest.raises(KeyboardInterrupt),
            ):
                added(*example())
            for _ in range(4):
                assert same_bits(added(*example(1)), wanted)
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch._C._len_torch_function_stack() == 0
