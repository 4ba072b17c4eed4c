"""DDP that goes on from its weights: the buckets of gradients, and the bits that hang on them."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed import fix_buckets
from detmode.integrations import training
from tests.distributed import bucketed
from tests.distributed.bucketed import RANKS, WAYS
from tests.shared import needs
from tests.shared.processes import run_ranks

pytestmark = needs.distributed


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The findings of the first rank."""
    of_ranks = run_ranks(Path(bucketed.__file__), RANKS, tmp_path_factory.mktemp("ranks"))
    return {name: each[0] for name, each in of_ranks.items()}


@pytest.mark.parametrize("way", WAYS)
def test_resumed_run_is_the_one_without_a_stop(way: str, found: dict[str, Any]) -> None:
    """Bit for bit, with fixed buckets; DDP's own differ after a resume, unless they never change.

    If DDP's own no longer differ, the function has nothing left to do.
    """
    assert found[f"fixed {way}"]
    assert found[f"plain {way}"] == (way == "unused_parameters")


def test_resumed_without_fixed_buckets(found: dict[str, Any]) -> None:
    """A backward pass before the first step gives DDP the buckets of the run that went on."""
    assert found["warmed"]


def test_too_late(found: dict[str, Any]) -> None:
    """Buckets in use, or whose warm-up somebody would notice, are refused with the reason."""
    assert found["refusals"] == {
        "twice": "fix_buckets: the buckets are fixed already",
        "gradients": "fix_buckets: it has gradients",
        "hook": "fix_buckets: its parameters have hooks",
        "communication": "fix_buckets: it has a communication hook",
    }
    with pytest.raises(TypeError, match="expects a DistributedDataParallel model, got Linear"):
        fix_buckets(nn.Linear(2, 2))


@pytest.mark.parametrize(("ranks", "fixed"), [(1, False), (2, False), (3, True), (4, True)])
def test_an_integration_fixes_them_where_their_order_counts(
    ranks: int, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From three ranks on: a sum of two has no order. A model without DDP has no buckets."""
    called: list[nn.Module] = []
    monkeypatch.setattr(training, "world", lambda: (0, ranks))
    monkeypatch.setattr(training, "fix_buckets", called.append)
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    for each in (model, nn.Linear(2, 2)):
        training.fix_buckets_of(each)
    assert [id(each) for each in called] == [id(model)] * fixed
