"""What the ranks of the tests of ``MicrobatchReducer`` do: trainings, whose bits they digest.

Four processes are started once. A training on fewer ranks runs in a group of the first of them.
"""

import functools
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed import MicrobatchReducer

RANKS = 4
MICROBATCHES = 6
SAMPLES = 3
STEPS = 6
TOKENS, CLASSES, LENGTH = 19, 7, 5


class Transformer(nn.Module):
    """Maps tokens (N, LENGTH) to logits (N, CLASSES), with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Convolutions(nn.Module):
    """Maps tokens, as if they were images (N, 1, LENGTH, LENGTH), to logits (N, CLASSES)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        images = (tokens[:, None, :, None] * tokens[:, None, None, :]).float() / TOKENS**2
        return self.head(self.body(images).mean((2, 3)))


def microbatch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a microbatch."""
    data = torch.Generator().manual_seed(1000 * step + index)
    tokens = torch.randint(0, TOKENS, (SAMPLES, LENGTH), generator=data)
    return tokens, torch.randint(0, CLASSES, (SAMPLES,), generator=data)


@dataclass
class Training:
    """A model in training on the ranks of a group.

    Args:
        group: the ranks.
        model: makes the model.
        dtype: of its parameters.
        wrap: the module that is called and given to the reducer.
        reducer: arguments of the reducer.
    """

    group: distributed.ProcessGroup
    model: Callable[[], nn.Module] = Transformer
    dtype: torch.dtype = torch.float32
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    reducer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(distributed.get_rank())  # the reducer gives all ranks the first's weights
        self.net = self.model().to(self.dtype)
        self.module = self.wrap(self.net)
        self.reducer = MicrobatchReducer(
            self.module, MICROBATCHES, **{"group": self.group, **self.reducer}
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.history: list[float] = []

    def train(self, steps: range) -> None:
        for step in steps:
            losses = []
            for index in self.reducer.microbatches(step):
                tokens, targets = microbatch(step, index)
                losses.append(F.cross_entropy(self.module(tokens).float(), targets))
                losses[-1].backward()
            norm = self.reducer.clip_grad_norm_(0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.history += [self.reducer.mean(losses).item(), norm.item()]

    def digest(self) -> str:
        states = [self.optimizer.state[each] for each in self.net.parameters()]
        tensors = [*self.net.state_dict().values(), *(v for state in states for v in state.values())]
        return digest(tensors + [torch.tensor(self.history)])

    def save(self, path: Path) -> None:
        weights, optimizer = get_state_dict(self.net, self.optimizer)
        dcp.save({"weights": weights, "optimizer": optimizer}, checkpoint_id=path,
                 process_group=self.group)  # fmt: skip

    def load(self, path: Path) -> None:
        weights, optimizer = get_state_dict(self.net, self.optimizer)
        state = {"weights": weights, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=path, process_group=self.group)
        set_state_dict(
            self.net, self.optimizer,
            model_state_dict=weights, optim_state_dict=optimizer,
        )  # fmt: skip


def digest(tensors: list[Tensor]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]
