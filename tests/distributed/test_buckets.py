"""DDP that goes on from its weights: the buckets of gradients, and the bits that hang on them."""

import copy
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed import fix_buckets

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this PyTorch is built without torch.distributed"
)

RANKS = 3  # with two, each sum has two addends, and no order
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "several_buckets": {"bucket_cap_mb": 0.001},
    "static_graph": {"static_graph": True},
    "unused_parameters": {"find_unused_parameters": True},
}
SAVED, END = 3, 6


def start(fix: bool, checkpoint: Any, way: dict[str, Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    layers = [nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 17), nn.Dropout(0.2), nn.Linear(17, 5)]
    model = DistributedDataParallel(nn.Sequential(*layers), **way)
    before = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    if fix:
        fix_buckets(model)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert all(map(torch.equal, model.state_dict().values(), before[1].values()))
        assert all(parameter.grad is None for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    if checkpoint is not None:
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(checkpoint[1])
    return model, optimizer


def train(model: Any, optimizer: Any, begin: int, end: int) -> None:
    for step in range(begin, end):
        torch.manual_seed(RANKS * step + distributed.get_rank())
        optimizer.zero_grad()
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()


def is_resumed_exactly(fix: bool, way: dict[str, Any], *, warm: bool = False) -> bool:
    model, optimizer = start(fix, None, way)
    train(model, optimizer, 0, SAVED)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, SAVED, END)
    again, optimizer = start(fix, saved, way)
    if warm:
        again(torch.ones(2, 7)).sum().backward()
        again.load_state_dict(saved[0])
    train(again, optimizer, SAVED, END)
    return all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))


def refusal_after(act: Callable[[Any], Any]) -> str:
    model, _ = start(False, None, {})
    act(model)
    try:
        fix_buckets(model)
    except RuntimeError as error:
        return str(error).partition(";")[0]
    return ""


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = distributed.FileStore(str(folder / "store"), RANKS)
    patience = timedelta(seconds=30)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=RANKS, timeout=patience
    )
    found = {f"plain {name}": is_resumed_exactly(False, way) for name, way in WAYS.items()}
    found |= {f"fixed {name}": is_resumed_exactly(True, way) for name, way in WAYS.items()}
    found["warmed"] = is_resumed_exactly(False, {}, warm=True)
    refusals = {
        "twice": refusal_after(fix_buckets),
        "gradients": refusal_after(lambda model: model(torch.ones(2, 7)).sum().backward()),
        "hook": refusal_after(
            lambda model: model.module[0].weight.register_post_accumulate_grad_hook(print)
        ),
        "communication": refusal_after(
            lambda model: model.register_comm_hook(None, allreduce_hook)
        ),
    }
    if rank == 0:
        (folder / "found.json").write_text(json.dumps([found, refusals]))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (folder,), nprocs=RANKS)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("way", WAYS)
def test_resumed_run_is_the_one_without_a_stop(way: str, found: Any) -> None:
    """Bit for bit, with fixed buckets; DDP's own differ after a resume, unless they never change.

    If DDP's own no longer differ, the function has nothing left to do.
    """
    assert found[0][f"fixed {way}"]
    assert found[0][f"plain {way}"] == (way == "unused_parameters")


def test_resumed_without_fixed_buckets(found: Any) -> None:
    """A backward pass before the first step gives DDP the buckets of the run that went on."""
    assert found[0]["warmed"]


def test_too_late(found: Any) -> None:
    """Buckets in use, or whose warm-up somebody would notice, are refused with the reason."""
    assert found[1] == {
        "twice": "fix_buckets: the buckets are fixed already",
        "gradients": "fix_buckets: it has gradients",
        "hook": "fix_buckets: its parameters have hooks",
        "communication": "fix_buckets: it has a communication hook",
    }
    with pytest.raises(TypeError, match="expects a DistributedDataParallel model, got Linear"):
        fix_buckets(nn.Linear(2, 2))
