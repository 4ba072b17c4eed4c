"""Cost of recordings: the digest of a tensor beside a copy of it, and ``detmode diff``.

The digest is timed on the GPU where there is one, else on the CPU: the bytes that are digested in a
second, and their share of the bytes that the largest copy reads and writes in a second. What a
recorded call costs the host is in ``overhead.py``.

With ``--calls`` a small network is trained and recorded twice instead, the second time with another
weight from the middle on; what the comparison takes is seconds, and memory at its peak.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from overhead import EmptyMode
from provenance import cpu
from tabulate import tabulate
from timing import Clock, Timed, copy_bandwidth, interleaved
from torch import nn

from detmode import record
from detmode.bits.digest import add_digest

TARGET = 0.5
"""The share of the copy's bandwidth that the digest is to have of more than a GPU's cache."""
DTYPES = (torch.float32, torch.bfloat16)
LAYOUTS = ("contiguous", "transposed")
SIZES = tuple(1 << power for power in (10, 14, 18, 22, 26, 30))
HEADS = ("bytes", "dtype", "layout", "digest, us", "copy, us", "GB/s", "of the copy", "")


def digests(
    clock: Clock, sizes: Sequence[int], rounds: int, bandwidth: float
) -> list[tuple[str, ...]]:
    """Time the digest of tensors of every size in bytes, dtype and layout: a row for each.

    ``bandwidth`` is the bytes that a copy reads and writes in a second.
    """
    found = []
    for n_bytes, dtype, layout in itertools.product(sizes, DTYPES, LAYOUTS):
        made = torch.ones(16, n_bytes // dtype.itemsize // 16, dtype=dtype, device=clock.device)
        tensor = made.T if layout == "transposed" else made
        target = torch.empty_like(tensor)
        sums = torch.zeros(2, dtype=torch.int64, device=clock.device)
        timed = {
            "digest": Timed(partial(add_digest, sums, tensor)),
            "copy": Timed(partial(target.copy_, tensor)),
        }
        spreads = interleaved(timed, clock, rounds)
        speed = n_bytes / spreads["digest"].median
        found.append(
            (
                *(_size(n_bytes), str(dtype).removeprefix("torch."), layout),
                *map(str, spreads.values()),
                f"{speed / 1e9:.2f}",
                f"{100 * speed / bandwidth:.1f} %",
                verdict(speed / bandwidth, n_bytes, clock),
            )
        )
    return found


def verdict(share: float, n_bytes: int, clock: Clock) -> str:
    """Compare with the target, which is one of GPUs, for tensors that the cache does not hold."""
    if clock.device.type != "cuda" or n_bytes <= clock.cache_bytes:
        return ""
    return "met" if share >= TARGET else "missed"


def _size(n_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1 << 10:
            return f"{n_bytes} {unit}"
        n_bytes >>= 10
    return f"{n_bytes} GiB"


def train(path: Path, calls: int, other: bool) -> int:
    """Record ``calls`` calls of ATen's operators or a few more; how many.

    ``other`` has a weight changed in the middle.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    counter = Counter()
    with record(path), counter:
        while counter.calls < calls:
            batch, classes = torch.randn(8, 8), torch.randint(0, 4, (8,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), classes).backward()
            if other and counter.calls >= calls // 2:
                other = False
                with torch.no_grad():
                    model[0].weight[0, 0] *= 1 + 1e-6
            optimizer.step()
    return counter.calls


class Counter(EmptyMode):
    """Counts the calls that a recording outside it sees too."""

    calls = 0

    def __torch_dispatch__(self, *call: Any) -> Any:
        self.calls += 1
        return super().__torch_dispatch__(*call)


def compare(first: Path, second: Path) -> tuple[float, int, str]:
    """Seconds and bytes at the peak of ``detmode diff`` in a process of its own; what it prints.

    Raises:
        RuntimeError: it found no difference, or failed.
    """
    command = [sys.executable, "-m", "detmode", "diff", str(first), str(second)]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if process.returncode != 1:
        raise RuntimeError(f"detmode diff ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024, printed


def time_digests(rounds: int, largest: int | None) -> None:
    """Print the table of digests."""
    clock = Clock()
    if clock.device.type == "cuda":
        name, largest = torch.cuda.get_device_name(), largest or 1 << 30
    else:
        print("No GPU here: the digest is timed on the CPU, on one thread, beside memcpy.")
        torch.set_num_threads(1)
        name, largest = cpu(), largest or 1 << 26
    sizes = [size for size in SIZES if size <= largest]
    bandwidth = copy_bandwidth(clock, max(sizes), rounds)
    found = digests(clock, sizes, rounds, bandwidth)
    print(tabulate(found, headers=HEADS, disable_numparse=True))
    print(
        f"{name}, medians and quartiles of {rounds} rounds; a copy of "
        f"{_size(max(sizes))} reads and writes {bandwidth / 1e9:.1f} GB/s"
    )


def time_comparison(calls: int) -> None:
    """Print what recording two runs takes, and ``detmode diff`` of them."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "first"), Path(folder, "second")
        begin = time.perf_counter()
        counts = [train(path, calls, path is paths[1]) for path in paths]
        recorded = (time.perf_counter() - begin) / sum(counts)
        on_disk = sum(file.stat().st_size for file in paths[0].iterdir())
        seconds, peak, printed = compare(*paths)
    print(next(line for line in printed.splitlines() if "calls are the same" in line))
    print(
        f"{counts[0]:,} and {counts[1]:,} calls: recorded in {recorded * 1e6:.0f} us a call, the "
        f"training itself included, to {on_disk / counts[0]:.0f} bytes a call; compared in "
        f"{seconds:.1f} s with {peak / 1e6:.0f} MB at the peak"
    )
    print(f"PyTorch {torch.__version__}, {cpu()}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--largest", type=int, help="bytes; 1 GiB on a GPU, 64 MiB on the CPU")
    parser.add_argument("--calls", type=int, help="only compare two recordings of so many calls")
    options = parser.parse_args(arguments)
    if options.calls:
        time_comparison(options.calls)
    else:
        time_digests(options.rounds, options.largest)


if __name__ == "__main__":
    main()
