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
from dataclasses import dataclass
from pathlib import Path

import overhead
import torch
from provenance import cpu
from tabulate import tabulate
from timing import Clock, Rotation, Spread, Timed, copy_bandwidth, interleaved
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


@dataclass(frozen=True)
class Digested:
    """What the digest of one kind of tensor takes.

    Args:
        n_bytes: of the tensor.
        dtype: its dtype.
        layout: one of :data:`LAYOUTS`.
        time: of the digest.
        copy: of a copy of it to memory of the same layout.
        share: bytes digested a second over bytes that the largest copy moves.
        beyond_cache: whether the tensor came from memory.
    """

    n_bytes: int
    dtype: torch.dtype
    layout: str
    time: Spread
    copy: Spread
    share: float
    beyond_cache: bool

    def cells(self, on_gpu: bool) -> tuple[str, ...]:
        """A row of the table; the target is one of GPUs, beyond their cache."""
        verdict = "" if self.beyond_cache else "in cache"
        if on_gpu and self.beyond_cache:
            verdict = "met" if self.share >= TARGET else "missed"
        return (
            _size(self.n_bytes),
            str(self.dtype).removeprefix("torch."),
            self.layout,
            str(self.time),
            str(self.copy),
            f"{self.n_bytes / self.time.median / 1e9:.2f}",
            f"{100 * self.share:.1f} %",
            verdict,
        )


HEADS = ("bytes", "dtype", "layout", "digest, us", "copy, us", "GB/s", "of the copy", "")


def digests(clock: Clock, sizes: Sequence[int], rounds: int, bandwidth: float) -> list[Digested]:
    """Time the digest of tensors of every size, dtype and layout.

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
        share = n_bytes / spreads["digest"].median / bandwidth
        found.append(
            Digested(
                n_bytes,
                dtype,
                layout,
                spreads["digest"],
                spreads["copy"],
                share,
                tensors.beyond_cache,
            )
        )
    return found


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
    print(tabulate([each.cells(on_gpu) for each in found], headers=HEADS, disable_numparse=True))
    print(
        f"{name}, medians and quartiles of {options.rounds} rounds; a copy of "
        f"{_size(max(sizes))} reads and writes {bandwidth / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()
