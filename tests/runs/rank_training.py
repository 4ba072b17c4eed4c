"""A training of four ranks that is recorded, with faults on one of them; run as a program.

``python rank_training.py FOLDER RANK`` makes all runs one after the other, as one of the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import detmode
from detmode import record
from tests.shared.training import Fault, bits

WORLD = 4
STEPS = 2
FAULTY = {
    "none": None,
    "again": None,
    "bit_flip": 2,
    "operator": 1,
    "data_order": 3,
    "seed": 1,
    "bucket_size": 1,
    "transport": 0,
    "buckets": None,
    "drift": None,
}
"""The runs, and the rank that has the fault; ``None`` for all of them."""


class Net(nn.Module):
    def __init__(self, fault: str | None) -> None:
        super().__init__()
        self.fault = fault
        self.first = nn.Linear(6, 64)  # the first layer
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(64, 2)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.first(x))
        changed = self.fault == "operator" and self.step == 1
        x = nn.functional.silu(x) if changed else nn.functional.relu(x)  # the activation
        return self.last(x)  # the last layer


def flip(args: tuple[Any, ...], result: torch.Tensor) -> None:
    bits(result).view(-1)[0] ^= 1 << 20


def train(rank: int, fault: str | None, checkpoint: Path | None = None) -> None:
    torch.manual_seed(9 if fault == "seed" else 0)
    net = Net(fault)
    cap = 0.0001 if fault in ("bucket_size", "buckets") else 25
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    order = torch.Generator().manual_seed(50 if fault == "data_order" else rank)
    data = torch.arange(192.0).sin().view(32, 6)
    for step in range(STEPS):
        net.step = step
        places = torch.randperm(32, generator=order)  # the order of data
        loss = model(data[places[:8]]).square().mean()  # the forward pass
        optimizer.zero_grad()
        loss.backward()
        if fault == "drift" and step == 1:
            torch._foreach_mul_([each.grad for each in model.parameters()], 1.0 + rank / 8)
        optimizer.step()
        total = loss.detach().clone()
        distributed.all_reduce(total)  # the loss of all ranks
        if fault == "transport" and step == 1:
            ctypes.memset(total.data_ptr(), 0, 4)
        total.neg()
    if checkpoint is not None:
        state = {"model": model.state_dict()}
        planner = detmode.RecordedSavePlanner()
        torch.distributed.checkpoint.save(state, checkpoint_id=checkpoint, planner=planner)
        digest = detmode.run_digest()
        (checkpoint.parent / f"{checkpoint.name}.rank{rank}").write_text(digest)


def train_sharded(rank: int) -> None:
    """Train with parameters that two pairs of ranks replicate, and each pair shards."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.arange(24.0).view(4, 6) + rank
    for _ in range(2):
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@contextlib.contextmanager
def group(folder: Path, name: str, rank: int) -> Iterator[None]:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / name}.store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=30),
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    for name, faulty in FAULTY.items():
        fault = name if faulty in (None, rank) else None
        flips = Fault("aten::mm.default", 4, flip) if fault == "bit_flip" else None
        recorded = record(folder / name / f"rank{rank}")
        with group(folder, name, rank), flips or contextlib.nullcontext(), recorded:
            train(rank, fault)
    for name in ("none", "again", "bit_flip"):
        fault = name if rank == FAULTY[name] else None
        flips = Fault("aten::mm.default", 4, flip) if fault else None
        recorded = record(folder / f"coarse_{name}" / f"rank{rank}", level="step")
        path = folder / f"checkpoint_{name}"
        with group(folder, path.name, rank), flips or contextlib.nullcontext(), recorded:
            train(rank, fault, path)
    with group(folder, "sharded", rank), record(folder / "sharded" / f"rank{rank}"):
        train_sharded(rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
