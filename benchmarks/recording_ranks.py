"""Cost of recording a run of many ranks at each level: time of a step, and bytes on disk.

Processes that train a small transformer with DistributedDataParallel and gloo; each makes the same
steps plainly and at each level, in turns, so that other load on the machine concerns all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from provenance import cpu
from tabulate import tabulate
from torch import distributed, multiprocessing, nn

from detmode import record

PLAIN = "plain"
LEVELS = (PLAIN, "step", "module", "call")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


def train(rank: int, steps: int, path: Path | None, level: str) -> float:
    """Train; the seconds of the steps alone."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    data = torch.Generator().manual_seed(rank)
    recorded = contextlib.nullcontext() if path is None else record(path, level=level)
    distributed.barrier()
    begin = time.perf_counter()
    with recorded:
        for _ in range(steps):
            x = torch.randn(16, 32, 64, generator=data)
            y = torch.randint(10, (16,), generator=data)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return time.perf_counter() - begin


def work(rank: int, ranks: int, steps: int, rounds: int, folder: Path) -> None:
    results: list[tuple[str, float, int]] = []
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    train(rank, 3, None, PLAIN)
    for number in range(rounds):
        for level in LEVELS:
            path = None if level == PLAIN else folder / f"{level}{number}" / f"rank{rank}"
            seconds = train(rank, steps, path, level)
            n_bytes = sum(file.stat().st_size for file in path.iterdir()) if path else 0
            if rank == 0:
                results.append((level, seconds / steps, n_bytes))
    distributed.destroy_process_group()
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        given = (options.ranks, options.steps, options.rounds, Path(folder))
        multiprocessing.spawn(work, given, nprocs=options.ranks)
        found = json.loads(Path(folder, "results.json").read_text())
    seconds = {name: median(s for level, s, _ in found if level == name) for name in LEVELS}
    rows = [
        (
            name,
            f"{seconds[name] * 1e3:.2f}",
            f"{100 * (seconds[name] / seconds[PLAIN] - 1):+.1f} %",
            f"{next(n for level, _, n in found if level == name) / options.steps:.0f}",
        )
        for name in LEVELS
    ]
    print(tabulate(rows, ("level", "ms a step", "more", "bytes a step"), disable_numparse=True))
    print(
        f"{options.ranks} ranks, {options.steps} steps, medians of {options.rounds} rounds; "
        f"PyTorch {torch.__version__}, {cpu()}"
    )


if __name__ == "__main__":
    main()
