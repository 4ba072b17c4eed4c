"""A small training that is recorded, and the faults that can be put into it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from detmode import record

BATCH = 8


class Fault(TorchDispatchMode):
    """Changes one result of one operator, below what is recorded.

    Args:
        op: the overload by name: "aten::addmm.default".
        at: which of its calls, counted from 0.
        change: is given the call's arguments and its result.
    """

    def __init__(self, op: str, at: int, change: Callable[[tuple[Any, ...], Any], object]) -> None:
        super().__init__()
        self.op, self.at, self.change = op, at, change

    def __enter__(self) -> Fault:
        self.seen = 0
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if f"{func._schema.name}.{func._overloadname}" == self.op:
            if self.seen == self.at:
                self.change(args, result)
            self.seen += 1
        return result


@dataclass(frozen=True)
class Training:
    """A run.

    Args:
        seed: of the weights and of dropout.
        order: the seed of the order of data.
        again: a step that is made twice.
        unclipped: a step whose gradients are not clipped.
        reseeded: a step before which the generator is set anew.
        threads: PyTorch's threads.
        fault: the fault that is made.
    """

    seed: int = 0
    order: int = 4
    again: int | None = None
    unclipped: int | None = None
    reseeded: int | None = None
    threads: int = 1
    fault: Fault | None = None

    def record(self, path: Path) -> Path:
        """Train and record; the path."""
        self.run(record(path))
        return path

    def run(self, observer: AbstractContextManager[Any], steps: int = 4) -> None:
        """Train, with all that happens seen by ``observer``."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            torch.manual_seed(self.seed)
            with self.fault or contextlib.nullcontext(), observer:
                self._train(steps)
        finally:
            torch.set_num_threads(threads)

    def _train(self, steps: int) -> None:
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        data = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
        order = torch.Generator().manual_seed(self.order)
        places = torch.randperm(64, generator=order)
        for step in range(steps):
            if step == self.reseeded:
                torch.manual_seed(99)
            for _ in range(2 if step == self.again else 1):
                batch = data[places[step * BATCH : (step + 1) * BATCH]]
                # What a log of a step has: not a number where nothing was counted.
                torch.log(batch.new_zeros(3) - 1)
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                if step != self.unclipped:
                    for parameter in model.parameters():
                        parameter.grad.clamp_(-0.5, 0.5)
                optimizer.step()
            torch.linspace(0, 1, 1 << 18).exp().sum()


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits, as integers that can be changed."""
    return tensor.view(torch.int32)
