"""What recording costs: each small operator, and the digest of a tensor beside a copy of it.

The first is timed on the CPU like the other modes of ``overhead.py``. The second is timed on the
GPU where there is one, else on the CPU: the bytes that are digested in a second, and their share of
the bytes that the largest copy reads and writes in a second.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import overhead
import torch
from provenance import cpu
from tabulate import tabulate
from timing import Clock, Rotation, Timed, copy_bandwidth, interleaved
from torch import Tensor

from detmode import record
from detmode.cuda.digest import add_digest

TARGET = 0.5
"""The share of the copy's bandwidth that the digest is to have beyond the cache."""
DTYPES = (torch.float32, torch.bfloat16)
LAYOUTS = ("contiguous", "transposed")
SIZES = tuple(1 << power for power in (10, 14, 18, 22, 26, 30))
_BATCH = 512  # calls after which a recording writes


def call_ratios(rounds: int, batches: int) -> dict[str, tuple[float, float]]:
    """Microseconds of a small call under each mode, and how many times those of the empty one."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()
        modes: overhead.Modes = {
            "no mode": overhead.modes()["no mode"],
            overhead.EMPTY: overhead.EmptyMode,
            "detmode.record": lambda: record(Path(folder) / str(next(numbers))),
        }
        times = overhead.measure(modes, rounds, batches * _BATCH)
    return {name: overhead.summary(mine, times[overhead.EMPTY]) for name, mine in times.items()}


HEADS = ("bytes", "dtype", "layout", "digest, us", "copy, us", "GB/s", "of the copy", "")


def digests(
    clock: Clock, sizes: Sequence[int], rounds: int, bandwidth: float
) -> list[tuple[str, ...]]:
    """Time the digest of tensors of every size, dtype and layout: a row of the table for each.

    Args:
        clock: what times them, and where they are.
        sizes: in bytes.
        rounds: how often each is timed.
        bandwidth: bytes that a copy reads and writes in a second.
    """
    found = []
    for n_bytes, dtype, layout in itertools.product(sizes, DTYPES, LAYOUTS):
        tensors = Rotation.of(_tensor(n_bytes, dtype, layout, clock), clock)
        target = torch.empty_like(tensors[0])
        sums = torch.zeros(2, dtype=torch.int64, device=clock.device)
        timed = {
            "digest": Timed(lambda n, sums=sums, of=tensors: add_digest(sums, of[n])),
            "copy": Timed(lambda n, target=target, of=tensors: target.copy_(of[n])),
        }
        spreads = interleaved(timed, clock, rounds)
        speed = n_bytes / spreads["digest"].median
        found.append(
            (
                *(_size(n_bytes), str(dtype).removeprefix("torch."), layout),
                *map(str, spreads.values()),
                f"{speed / 1e9:.2f}",
                f"{100 * speed / bandwidth:.1f} %",
                verdict(speed / bandwidth, tensors.beyond_cache, clock.device.type == "cuda"),
            )
        )
    return found


def verdict(share: float, beyond_cache: bool, on_gpu: bool) -> str:
    """Whether the target is met, which is one of GPUs, for tensors that come from memory."""
    if not beyond_cache:
        return "in cache"
    return ("met" if share >= TARGET else "missed") if on_gpu else ""


def _tensor(n_bytes: int, dtype: torch.dtype, layout: str, clock: Clock) -> Tensor:
    rows = 16
    made = torch.ones(rows, n_bytes // dtype.itemsize // rows, dtype=dtype, device=clock.device)
    return made.T if layout == "transposed" else made


def _size(n_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1 << 10:
            return f"{n_bytes} {unit}"
        n_bytes >>= 10
    return f"{n_bytes} GiB"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, default=2, help=f"of {_BATCH} calls in each round")
    parser.add_argument("--largest", type=int, help="bytes; 1 GiB on a GPU, 64 MiB on the CPU")
    options = parser.parse_args(arguments)
    ratios = call_ratios(options.rounds, options.batches)
    rows = [(name, f"{us:.2f}", f"{ratio:.2f}") for name, (us, ratio) in ratios.items()]
    heads = ("aten::neg of 4 elements under", "us a call", "over empty")
    print(tabulate(rows, headers=heads, disable_numparse=True, colalign=("left", "right", "right")))
    print(f"PyTorch {torch.__version__}, {cpu()}, {options.rounds} rounds, medians\n")
    clock = Clock()
    on_gpu = clock.device.type == "cuda"
    if on_gpu:
        name, largest = torch.cuda.get_device_name(), options.largest or 1 << 30
    else:
        print("No GPU here: the digest is timed on the CPU, on one thread, beside memcpy.")
        torch.set_num_threads(1)
        name, largest = cpu(), options.largest or 1 << 26
    sizes = [size for size in SIZES if size <= largest]
    bandwidth = copy_bandwidth(clock, max(sizes), options.rounds)
    found = digests(clock, sizes, options.rounds, bandwidth)
    print(tabulate(found, headers=HEADS, disable_numparse=True))
    print(
        f"{name}, medians and quartiles of {options.rounds} rounds; a copy of "
        f"{_size(max(sizes))} reads and writes {bandwidth / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()
