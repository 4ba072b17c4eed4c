"""Price of one gradient for any world size: a step with ``MicrobatchReducer`` beside DDP's.

Ranks train a transformer over gloo, one thread each. In every round each side makes a step on the
same microbatches, one side after the other. The table has the medians, beside that of DDP in the
same dtype, and the bytes a parameter that a rank hands to all-reduce in a step. DDP reduces after
the last microbatch of a rank (``no_sync``).
"""

import argparse
import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from provenance import cpu
from tabulate import tabulate
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed import MicrobatchReducer

WIDTH, LAYERS, LENGTH = 192, 4, 64
SAMPLES = 4
"""Of a microbatch."""
SIDES = {
    "DDP, float32": (torch.float32, None),
    "reducer, float32": (torch.float32, torch.int64),
    "DDP, bfloat16": (torch.bfloat16, None),
    "reducer, bfloat16 in int64": (torch.bfloat16, torch.int64),
    "reducer, bfloat16 in int32": (torch.bfloat16, torch.int32),
}
"""The dtype of the parameters, and in which their gradients are added."""

HEADS = ("microbatches a rank", "side", "step, ms", "beside DDP", "bytes a parameter")


class Payload:
    """Counts the bytes that this process hands to all-reduce."""

    def __init__(self) -> None:
        self.bytes = 0
        self._all_reduce = distributed.all_reduce

    def __call__(self, tensor: Tensor, *arguments: object, **named: object) -> object:
        self.bytes += tensor.nbytes
        return self._all_reduce(tensor, *arguments, **named)


def model(dtype: torch.dtype) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(dtype)


def step_of(
    dtype: torch.dtype, sum_dtype: torch.dtype | None, microbatches: int
) -> Callable[[int], None]:
    """Make a training, and return the function that makes a step of it."""
    torch.manual_seed(0)
    net = model(dtype)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    batch = torch.randn(SAMPLES, LENGTH, WIDTH, dtype=dtype)
    if sum_dtype is None:
        ddp = DistributedDataParallel(net)
        local = range(microbatches // distributed.get_world_size())

        def indices(_: int) -> Iterator[int]:
            for index in local:
                with contextlib.nullcontext() if index == local[-1] else ddp.no_sync():
                    yield index

        called: nn.Module = ddp
    else:
        indices = MicrobatchReducer(net, microbatches, sum_dtype=sum_dtype).microbatches
        called = net

    def step(number: int) -> None:
        for _ in indices(number):
            called(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def rank_main(rank: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks
    )
    payload = distributed.all_reduce = Payload()
    parameters = sum(each.numel() for each in model(torch.float32).parameters())
    rows = []
    for local in options.microbatches_a_rank:
        steps = {name: step_of(*side, local * options.ranks) for name, side in SIDES.items()}
        seconds: dict[str, list[float]] = {name: [] for name in SIDES}
        sent = {}
        for number in range(options.rounds + 1):
            for name, step in steps.items():
                distributed.barrier()
                payload.bytes, begin = 0, time.perf_counter()
                step(number)
                seconds[name].append(time.perf_counter() - begin)
                sent[name] = payload.bytes / parameters
        # The first round makes buckets and memory.
        medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
        for name, (dtype, sum_dtype) in SIDES.items():
            ddp = next(other for other in SIDES if SIDES[other] == (dtype, None))
            size = dtype.itemsize if sum_dtype is None else sent[name]
            times = f"{1e3 * medians[name]:.0f}", f"{medians[name] / medians[ddp]:.2f}"
            rows.append((str(local), name, *times, f"{size:.2f}"))
    if rank == 0:
        about = f"{options.ranks} ranks, {parameters:,} parameters, {options.rounds} rounds"
        print(f"{cpu()}, PyTorch {torch.__version__}, {about}")
        print(tabulate(rows, HEADS, tablefmt="github", disable_numparse=True))
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--microbatches-a-rank", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(rank_main, (port, options), options.ranks)


if __name__ == "__main__":
    main()
