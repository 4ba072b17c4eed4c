"""A long process: calls without end, of one form or of ever new ones, take no more memory."""

import gc
import resource
import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch

from detmode import DeterministicMode, RuleTable, Substitute, default_rules
from detmode.cuda import host
from detmode.mode import plans
from tests.shared import needs
from tests.shared.programs import rule
from tests.shared.selection import PROFILE

pytestmark = [needs.compiler, pytest.mark.usefixtures("without_player")]

INDEX = torch.tensor([0, 2, 2])
MEBIBYTE = 1 << 20


@pytest.fixture
def mode():
    """A mode with plans of its own, a few of them, whose launches do nothing."""
    action = default_rules().get(torch.ops.aten.index_add.default)[0].rule.action
    assert isinstance(action, Substitute)
    table = RuleTable([rule("aten::index_add", action)])
    with (
        patch.object(plans, "_FORMS", min(plans._FORMS, PROFILE.calls // 40)),
        patch.object(host, "launch_blocks", lambda *_: None),
        DeterministicMode(rules=table, simulate="cuda") as mode,
    ):
        yield mode


def growth(call: Callable[[int], object], warm: int, calls: int) -> tuple[int, int]:
    """The objects of Python, and the bytes at the peak, that calls add behind the first ones."""
    for number in range(warm):
        call(number)
    gc.collect()
    blocks, peak = sys.getallocatedblocks(), _peak()
    for number in range(warm, warm + calls):
        call(number)
    gc.collect()
    return sys.getallocatedblocks() - blocks, _peak() - peak


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_calls_without_end(mode):
    """A million calls that a plan makes leave nothing behind."""
    x, source = torch.zeros(4, 2), torch.ones(3, 2)
    objects, peak = growth(
        lambda _: torch.index_add(x, 0, INDEX, source), PROFILE.calls // 4, PROFILE.calls
    )
    (row,) = mode.records
    assert row.count == PROFILE.calls // 4 + PROFILE.calls
    assert objects < 1000
    assert peak < 8 * MEBIBYTE


def test_shapes_without_end(mode):
    """Of 10^5 shapes, each called until a plan makes the call, the oldest plans are dropped."""

    def call(number):
        x, source = torch.zeros(4 + number, 2), torch.ones(3, 2)
        for _ in range(3):
            torch.index_add(x, 0, INDEX, source)

    shapes = PROFILE.calls // 10
    objects, peak = growth(call, shapes // 4, shapes)
    overload = mode.overloads[torch.ops.aten.index_add.default._op]
    assert overload is not None
    assert any(overload.plans._variants.values())
    assert len(overload.plans._variants) <= plans._FORMS
    # As many as the plans of a quarter of the forms, which may be there or not.
    assert objects < 200 * plans._FORMS
    assert peak < 64 * MEBIBYTE
