"""Cost of ``detmode.check_ranks``, in training steps of two ranks over gloo.

Both ranks train on this machine's CPU, one thread each. Steps with a check and steps without one
take turns in one run, and the check's own time is the difference of their medians. Prints a table
and writes it with its provenance as JSON into ``benchmarks/results/rank_checks/``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import results
import torch
from compiled import Encoder
from provenance import Measured, provenance
from tabulate import tabulate
from timing import Spread
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import detmode

FOLDER = results.FOLDER / "rank_checks"
RANKS = 2
BETWEEN = 10
"""The steps from one check to the next while it is timed."""
EVERY = (100, 10, 1)
TARGET = 0.02
"""The share of a step that checks may add at ``every=100``."""
HEADS = ("model", "parameters", "tensors", "step", "check", *(f"every={n}" for n in EVERY))


class Deep(nn.Sequential):
    """Many small layers: little to digest, and many tensors."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(*(nn.Linear(width, width) for _ in range(depth)))

    def forward(self, input: Tensor) -> Tensor:
        for layer in self:
            input = layer(input).tanh()
        return input.square().mean()


def _transformer(tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    vocabulary, width, depth, shape = (30, 16, 1, (2, 4)) if tiny else (1000, 256, 2, (8, 64))
    tokens, targets = torch.randint(vocabulary, (2, *shape))
    return Encoder(vocabulary, width, depth), (tokens, targets)


def _deep(tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Deep(16, 2 if tiny else 100), (torch.randn(256, 16),)


MODELS = {"transformer": _transformer, "100 small layers": _deep}


@dataclass
class RankChecks(Measured):
    """Steps with and without a check.

    Args:
        provenance: as in :class:`Measured`.
        rows: by model, the numbers of elements and of tensors of its parameters, and the medians
            of a step without a check and of one with it, in seconds.
    """

    rows: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The CPU, on which everything runs."""
        return str(self.provenance["cpu"])

    @classmethod
    def read(cls, path: Path) -> RankChecks:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def table(self) -> str:
        """The figures, and the shares that they make of steps."""
        found = []
        for name, row in self.rows.items():
            check = row["checked"] - row["plain"]
            found.append(
                (
                    *(name, f"{row['parameters']:,.0f}", f"{row['tensors']:.0f}"),
                    *(f"{row['plain'] * 1e3:.1f} ms", f"{check * 1e3:.1f} ms"),
                    *(f"{100 * check / row['plain'] / every:.2f} %" for every in EVERY),
                )
            )
        return tabulate(found, headers=HEADS, tablefmt="github", disable_numparse=True)


def train(rank: int, name: str, tiny: bool, rounds: int, address: str, output: str) -> None:
    """Time the steps of one rank; the first one writes what it found."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    made, inputs = MODELS[name](tiny)
    model = DistributedDataParallel(made)
    optimizer = torch.optim.AdamW(model.parameters())
    times: dict[bool, list[float]] = {False: [], True: []}
    with detmode.check_ranks(model, every=BETWEEN):
        for step in range(1, (rounds + 2) * BETWEEN + 1):
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(*inputs).backward()
            optimizer.step()
            # The first checks build caches, and the state of the optimizer.
            if step > 2 * BETWEEN:
                times[step % BETWEEN == 0].append(time.perf_counter() - begin)
    parameters = list(model.parameters())
    if rank == 0:
        row = {
            "parameters": sum(parameter.numel() for parameter in parameters),
            "tensors": len(parameters),
            "plain": Spread.of(times[False]).median,
            "checked": Spread.of(times[True]).median,
        }
        torch.save(row, output)
    distributed.destroy_process_group()


def measure(name: str, rounds: int, *, tiny: bool) -> dict[str, float]:
    """Time one model in processes of its own."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        output = os.path.join(folder, "row")
        multiprocessing.spawn(train, (name, tiny, rounds, address, output), RANKS)
        found: dict[str, float] = torch.load(output)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="checks that are timed")
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the JSON")
    parser.add_argument("--commit", help="of detmode, in a copy without its repository")
    options = parser.parse_args(arguments)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    measured = RankChecks(provenance(options.commit))
    for name in MODELS:
        measured.rows[name] = measure(name, options.rounds, tiny=options.quick)
        measured.write(options.output)
    print(measured.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
