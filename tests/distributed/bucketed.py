"""DDP resumed from its weights, with fixed buckets and without: whether its bits go on.

Arguments: the rank, the folder of the rendezvous and of the results.
"""

import copy
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed import fix_buckets

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


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
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
    (folder / f"rank{rank}.json").write_text(json.dumps({**found, "refusals": refusals}))
    distributed.barrier()
    os._exit(0)  # to take the process apart takes longer than the trainings


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
