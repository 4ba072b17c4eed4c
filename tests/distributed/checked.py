"""Programs of four ranks that are checked; each rank writes what each of them gave.

Arguments: the rank, the folder of the rendezvous and of the results.
"""

import ctypes
import json
import os
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.optim.optimizer import _global_optimizer_post_hooks

import detmode
from detmode import RankError, check_ranks
from detmode.distributed import check as check_module
from detmode.runs.trace_file import Reader

RANKS = 4
rank = int(sys.argv[1])
folder = Path(sys.argv[2])
found = {}


def network(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *more, nn.ReLU(), nn.Linear(8, 2))


def train(model, steps, *, check=None, fault=lambda step: None, optimizer=None):
    """Train with data of the rank's own; return the number of the step that raised."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 4, generator=generator)).square().mean().backward()
        fault(step)
        try:
            optimizer.step()
        except RankError as error:
            note(error, stopped=step)
            return
    found[scenario] = None


def note(error, **more):
    found[scenario] = {
        "text": str(error),
        "ranks": error.ranks,
        "tensor": error.tensor,
        "step": error.step,
        **more,
    }


@contextmanager
def noted():
    """Note what the block raises."""
    try:
        yield
    except RankError as error:
        note(error)
    else:
        found.setdefault(scenario, None)


def spoil(tensor, byte=0):
    """Change a byte of the first element, as faulty memory does."""
    ctypes.memset(tensor.data_ptr() + byte, 1, 1)


def group(*ranks):
    """Make a group for one scenario, which its end may leave with calls that never end."""
    made = [distributed.new_group(each) for each in ranks or [range(RANKS)]]
    return next(each for each in made if each is not distributed.GroupMember.NON_GROUP_MEMBER)


def ddp(model, of=None):
    return nn.parallel.DistributedDataParallel(model, process_group=of)


def agree():
    of = group()
    model = ddp(network(nn.Dropout()), of)
    scaled, generator = {"mean": torch.ones(3)}, torch.Generator().manual_seed(7)
    also = {"average": lambda: scaled, "generator": generator, "name": "x", "array": [1, 2.5]}
    hooks = len(_global_optimizer_post_hooks)
    with check_ranks(model, group=of, also=also) as check:
        train(model, 5, check=check)
        others = torch.optim.SGD(network().parameters())
        for _ in range(rank):
            others.step()
        assert check._checks == 5
    assert len(_global_optimizer_post_hooks) == hooks
    train(model, 2)
    assert check._checks == 5


def weight():
    of = group()
    model = ddp(network(), of)
    optimizer = torch.optim.AdamW(model.parameters())

    def fault(step):
        if step == 7 and rank == 2:
            # A byte that this step's rounding does not hide.
            spoil(optimizer.state[model.module[2].weight]["exp_avg"], byte=2)

    with check_ranks(model, group=of):
        train(model, 20, fault=fault, optimizer=optimizer)


def every():
    of = group()
    model = ddp(network(), of)
    with noted(), check_ranks(model, every=10, group=of):
        train(
            model, 25, fault=lambda step: step == 13 and rank == 1 and spoil(model.module[0].bias)
        )


def pairs():
    of = group([0, 1], [2, 3])
    model = ddp(network(), of)

    def fault(step):
        if step == 3 and rank == 1:
            spoil(model.module[0].weight)
        if step == 5 and rank > 1:
            time.sleep(0.3)

    with check_ranks(model, group=of):
        train(model, 9, fault=fault)


def hybrid():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(network(), mesh=mesh)
    with check_ranks(model) as check:
        train(model, 3)
        assert check._checks == 3
    assert found.pop(scenario) is None
    optimizer = torch.optim.AdamW(model.parameters())

    def fault(step):
        if step == 2 and rank == 3:
            spoil(model[2].weight.to_local())

    with check_ranks(model):
        train(model, 5, fault=fault, optimizer=optimizer)


def sharded():
    model = fully_shard(network(), mesh=init_device_mesh("cpu", (RANKS,)))
    with noted(), check_ranks(model):
        train(model, 3, fault=lambda step: rank == 3 and spoil(model[0].weight.to_local()))


def fsdp1():
    mesh = init_device_mesh("cpu", (2, 2))
    model = FullyShardedDataParallel(
        network(),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
    )

    def fault(step):
        if step == 2 and rank == 0:
            spoil(next(model.parameters()))

    with check_ranks(model):
        train(model, 5, fault=fault)


def statistics():
    of = group()
    model = ddp(network(nn.BatchNorm1d(8)), of)
    with check_ranks(model, group=of, ignore=["*.running_mean", "*.running_var"]):
        train(model, 3)
    assert found.pop(scenario) is None
    with check_ranks(model, group=of):
        train(model, 3)


def rate():
    of = group()
    optimizer = torch.optim.SGD((model := ddp(network(), of)).parameters())
    if rank == 1:
        optimizer.param_groups[0]["lr"] = 0.5
    check = check_ranks(model, group=of)
    with noted(), check:
        optimizer.step()


def named():
    of = group()
    model, generator = ddp(network(), of), torch.Generator().manual_seed(int(rank == 0))
    with noted():
        check_ranks(model, group=of, also={"sampler": generator}).compare()


def steps():
    of = group()
    check = check_ranks(ddp(network(), of), every=10, group=of)
    for _ in range(3 + (rank == 1)):
        check.step()
    with noted():
        check.compare()


def names():
    of = group()
    model = network()
    if rank == 0:
        model.register_buffer("mask", torch.ones(2))
    with noted():
        check_ranks(model, group=of).compare()


def unseen():
    """A check is no call of the program: it is neither recorded nor counted."""
    of = group()
    model = network()
    with detmode.record(folder / f"recording{rank}"), detmode.DeterministicMode() as mode:
        check_ranks(model, group=of).compare()
        torch.ones(2).neg()
    names = [call.overload for call in Reader(folder / f"recording{rank}").calls()]
    found[scenario] = [names, [row.overload for row in mode.records]]


def fails():
    """A rank whose program fails with a check pending waits for no result of it."""
    of = group()
    check = check_ranks(network(), group=of)
    failed = folder / "failed"
    if rank == 1:
        try:
            with check:
                check.step()
                raise RuntimeError("out of memory")
        except RuntimeError as error:
            found[scenario] = str(error)
            failed.touch()
    else:
        # So long the others have not begun theirs.
        wait_for(failed.exists)
        with noted(), check:
            check.step()


def wait_for(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def compare_without(missing, check):
    """Compare, and wait for the missing rank from when all others have begun."""
    until_arrived = check._until_arrived

    def wait(begun):
        wait_for(lambda: check._behind(begun) == [missing])
        until_arrived(begun)

    check._until_arrived = wait
    begin = time.monotonic()
    with noted():
        check.compare()
    found[scenario]["seconds"] = time.monotonic() - begin


def hangs():
    check = check_ranks(network(), group=group(), timeout=0.3)
    if rank == 1:
        found[scenario] = None
    else:
        compare_without(1, check)


def ends():
    check_module._GRACE = 0.3  # all others have begun
    check = check_ranks(network(), group=group())
    check.compare()
    if rank == 3:
        found[scenario] = None
    else:
        compare_without(3, check)


torch.set_num_threads(1)
distributed.init_process_group(
    "gloo",
    init_method=f"file://{folder / 'rendezvous'}",
    rank=rank,
    world_size=RANKS,
    timeout=timedelta(seconds=30),
)
for program in (
    *(agree, weight, every, pairs, hybrid, sharded, fsdp1, statistics, rate, named, steps, names),
    *(unseen, fails, hangs, ends),
):
    scenario = program.__name__
    program()
(folder / f"rank{rank}.json").write_text(json.dumps(found))
# Others may wait for what this process never sends.
os._exit(0)
