"""Training in every kind of parallelism, recorded twice by each rank of one world.

    python parallel.py FOLDER RENDEZVOUS RANK WORLD NAME...

writes ``FOLDER/NAME/first/rankN`` and ``FOLDER/NAME/second/rankN``; a NAME such as ``ddp+mode`` is
recorded under ``DeterministicMode``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from detmode import DeterministicMode, record

STEPS = 3


class Block(nn.Module):
    """Two layers, between which tensor parallelism cuts."""

    def __init__(self, size: int = 8, inner: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.one = nn.Linear(size, inner)
        self.two = nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(torch.relu(self.one(self.norm(x))))


def network(layers: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(layers)))


def train(model: nn.Module, *, clip: bool = False, same: bool = False) -> None:
    """Train on data of the rank's own, or on the same for all ranks."""
    rank = 0 if same else distributed.get_rank()
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not same)
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def ddp(mesh: DeviceMesh) -> None:
    train(DistributedDataParallel(network()), clip=True)


def powersgd(mesh: DeviceMesh) -> None:
    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model)


def fsdp1(mesh: DeviceMesh) -> None:
    inner = network()
    for number, block in enumerate(inner):
        inner[number] = FullyShardedDataParallel(
            block, device_mesh=mesh, device_id=torch.device("cpu")
        )
    train(FullyShardedDataParallel(inner, device_mesh=mesh, device_id=torch.device("cpu")))


def hsdp1(mesh: DeviceMesh) -> None:
    strategy = ShardingStrategy.HYBRID_SHARD
    train(
        FullyShardedDataParallel(
            network(), device_mesh=mesh, sharding_strategy=strategy, device_id=torch.device("cpu")
        )
    )


def fsdp2(mesh: DeviceMesh) -> None:
    model = network()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, clip=True)


def tp(mesh: DeviceMesh) -> None:
    model = network()
    for block in model:
        parallelize_module(block, mesh, {"one": ColwiseParallel(), "two": RowwiseParallel()})
    train(model, same=True)


def sp(mesh: DeviceMesh) -> None:
    model = network()
    for block in model:
        plan = {
            "norm": SequenceParallel(sequence_dim=0, use_local_output=False),
            "one": ColwiseParallel(input_layouts=Shard(0)),
            "two": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
        parallelize_module(block, mesh, plan)
        whole = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),), use_local_output=False
        )
        parallelize_module(block, mesh, whole)
    train(model, same=True)


def pp(mesh: DeviceMesh) -> None:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    stage = network(world)[rank]
    piped = PipelineStage(stage, rank, world, torch.device("cpu"))
    # PyTorch's greeting receives from both neighbours into one tensor: the later one stays in it.
    piped._get_init_p2p_neighbors_ops = list  # type: ignore[method-assign]  # of this object alone
    schedule = ScheduleGPipe(piped, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(stage.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(4, 8, generator=generator)
        optimizer.zero_grad()
        schedule.step(*([x] if rank == 0 else []), **({"target": -x} if rank == world - 1 else {}))
        optimizer.step()


KINDS: dict[str, Callable[[DeviceMesh], None]] = {
    each.__name__: each for each in (ddp, powersgd, fsdp1, hsdp1, fsdp2, tp, sp, pp)
} | {"hsdp2": fsdp2}
"""The kinds of parallelism, by name."""


def scramble(byte: int) -> None:
    """Leave other bytes in memory that is given out again."""
    blocks = [torch.full((1 << power,), byte, dtype=torch.uint8) for power in range(4, 18)] * 8
    del blocks
    more = [torch.full((size,), byte, dtype=torch.uint8) for size in range(16, 4096, 16)]
    del more


def main(folder: Path, rendezvous: str, rank: int, world: int, names: list[str]) -> None:
    distributed.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    flat = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicas", "shards"))
    for name in names:
        kind, _, mode = name.partition("+")
        for number, run in enumerate(("first", "second")):
            torch.manual_seed(0)
            scramble(0x3B + number)
            recording = record(folder / name / run / f"rank{rank}")
            with recording, DeterministicMode() if mode else nullcontext():
                KINDS[kind](grid if kind.startswith("hsdp") else flat)
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    given: Any = sys.argv[1:]
    main(Path(given[0]), given[1], int(given[2]), int(given[3]), given[4:])
