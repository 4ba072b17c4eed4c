"""Prints how many CUDA threads a second the host runner runs.

Each figure is the best of five launches, in program order, in shuffled order, and in program order
while data races are looked for. `simple` never blocks; `barriers` meets nine `__syncthreads()`;
`atomics` does one integer atomicAdd.
"""

import platform
import timeit
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from tabulate import tabulate

from detmode.cuda import Source, host, launch_blocks

SOURCE = Source(__file__, "host_runner.cu", entries=("simple", "barriers", "atomics"))
BLOCK = 256


def best(threads: int, how: AbstractContextManager[None], run: Callable[[], None]) -> float:
    """Threads a second of the quickest of five launches after a first one."""
    with how:
        run()
        return threads / min(timeit.repeat(run, number=1, repeat=5))


def main() -> None:
    """Checks each result, then prints the table."""
    n = 1 << 20
    blocks = n // BLOCK
    values = torch.arange(n, dtype=torch.float32) % 7
    doubled, sums = torch.empty(n), torch.empty(blocks)
    index = torch.arange(n) * 7919 % 1000
    counts = torch.zeros(1000, dtype=torch.int64)
    tensors = {
        "simple": {"input": values, "output": doubled},
        "barriers": {"input": values, "output": sums},
        "atomics": {"index": index, "output": counts},
    }
    launches = {
        name: partial(launch_blocks, SOURCE, name, blocks, BLOCK, n=n, **given)
        for name, given in tensors.items()
    }
    for run in launches.values():
        run()
    assert torch.equal(doubled, values * 2)
    assert torch.equal(sums, values.view(blocks, BLOCK).sum(1))
    assert torch.equal(counts, index.bincount(minlength=1000))
    rows = []
    for name, run in launches.items():
        ways = (host.schedule(None), host.schedule(1), host.check_races())
        rows.append((name, *(f"{best(n, how, run) / 1e6:.3g}" for how in ways)))
    print(f"{platform.machine()}, {host.compiler()}, {n} threads in blocks of {BLOCK}")
    print(tabulate(rows, headers=("kernel", "program order, M/s", "shuffled, M/s", "races")))


if __name__ == "__main__":
    main()
