"""DDP with communication hooks in Python, two ranks; each writes what was counted and recorded.

Arguments: the rank, the folder of the rendezvous and of the results.
"""

import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from detmode import DeterministicMode, record
from detmode.runs.trace_file import Reader

rank = int(sys.argv[1])
folder = Path(sys.argv[2])
threads = set()
COUNTED = {f"aten::{name}": "allow" for name in ("sinh", "copy_", "bmm", "div_")}


def own(_, bucket):
    """Sum, and divide in a callback of a callback."""
    future = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()

    def scale(done):
        threads.add(threading.get_ident())
        return done.value()[0].sinh()

    return future.then(scale).then(lambda done: done.value() / 2)


def both(_, bucket):
    """Sum the halves, each by a collective of its own, and join them."""
    half = len(bucket.buffer()) // 2
    futures = [
        distributed.all_reduce(part, async_op=True).get_future()
        for part in bucket.buffer().split([half, len(bucket.buffer()) - half])
    ]
    return torch.futures.collect_all(futures).then(
        lambda done: torch.cat([each.value()[0] for each in done.value()]).sinh()
    )


def compress(_, bucket):
    return default_hooks.fp16_compress_hook(None, bucket)


def power(state, bucket):
    return powerSGD_hook.powerSGD_hook(state, bucket)


def train(hook):
    """Train for a few steps, with several buckets of gradients."""
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    model = DistributedDataParallel(inner, bucket_cap_mb=0.02)
    state = None
    if hook is power:
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=generator)).square().mean().backward()
        optimizer.step()


def counted(hook):
    """Return the calls that a mode counts, by operator."""
    with DeterministicMode(overrides=COUNTED) as mode:
        train(hook)
    counts = {}
    for row in mode.records:
        counts[row.overload] = counts.get(row.overload, 0) + row.count
    return counts


def recorded(hook, name):
    """Return the calls that a recording has, in their order."""
    with record(folder / name):
        train(hook)
    return [call.overload for call in Reader(folder / name).calls()]


torch.set_num_threads(1)
distributed.init_process_group(
    "gloo",
    init_method=f"file://{folder / 'rendezvous'}",
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=30),
)
found = {}
work = torch._C._distributed_c10d.Work
plain = work.get_future
for hook in (own, both, compress, power):
    found[hook.__name__] = {
        "counted": counted(hook),
        "recorded": [recorded(hook, f"{hook.__name__}{run}.rank{rank}") for run in range(2)],
    }
assert work.get_future is plain
found["threads"] = len(threads)
with DeterministicMode(intercept="listed"), DeterministicMode():
    assert work.get_future is not plain
assert work.get_future is plain
(folder / f"rank{rank}.json").write_text(json.dumps(found))
os._exit(0)
