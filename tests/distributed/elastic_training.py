"""Trainings on four ranks for the tests of ``MicrobatchReducer``, and digests of their bits.

Four processes are started once. A training on fewer ranks runs in a group of the first of them.
Arguments: the rank, the folder of the rendezvous and of the results, and the trainings' names.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed import MicrobatchReducer

RANKS = 4
MICROBATCHES = 6
SAMPLES = 3
STEPS = 3
TOKENS, CLASSES, LENGTH = 19, 7, 5


class Transformer(nn.Module):
    """Maps tokens (N, LENGTH) to logits (N, CLASSES), with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Convolutions(nn.Module):
    """Maps tokens, made into images (N, 1, LENGTH, LENGTH), to logits (N, CLASSES)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8, momentum=None),
            nn.ReLU(),
        )
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("flags", torch.tensor([True, False]))
        self.to(memory_format=torch.channels_last)

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
        wrap: makes the module that is trained of the model and the group.
        arguments: of the reducer.
    """

    group: distributed.ProcessGroup
    model: Callable[[], nn.Module] = Transformer
    dtype: torch.dtype = torch.float32
    wrap: Callable[[nn.Module, distributed.ProcessGroup], nn.Module] = lambda model, _: model
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(distributed.get_rank())  # all ranks get the first one's weights
        self.net = self.model().to(self.dtype)
        self.module = self.wrap(self.net, self.group)
        group = None if isinstance(self.module, FSDPModule) else self.group
        arguments = {"microbatches": MICROBATCHES, "group": group, **self.arguments}
        self.reducer = MicrobatchReducer(self.module, **arguments)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.history: list[float] = []

    def train(self, steps: range) -> "Training":
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
        return self

    def digest(self) -> str:
        """Of weights, buffers, the optimizer's state, losses and norms."""
        states = (self.optimizer.state[each] for each in self.net.parameters())
        state = [value for each in states for value in each.values()]
        return digest([*self.net.state_dict().values(), *state, torch.tensor(self.history)])

    def save(self, path: Path) -> None:
        weights, optimizer = get_state_dict(self.net, self.optimizer)
        state = {"weights": weights, "optimizer": optimizer}
        dcp.save(state, checkpoint_id=path, process_group=self.group)

    def load(self, path: Path) -> None:
        weights, optimizer = get_state_dict(self.net, self.optimizer)
        state = {"weights": weights, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=path, process_group=self.group)
        set_state_dict(
            self.net,
            self.optimizer,
            model_state_dict=state["weights"],
            optim_state_dict=state["optimizer"],
        )


class FloatTraining(Training):
    """The same microbatches and seeds, whose gradients DDP adds and averages in floating point."""

    def train(self, steps: range) -> Training:
        size = self.group.size()
        for step in steps:
            for index in self.reducer.local_indices:
                torch.manual_seed(1000 * step + index)
                tokens, targets = microbatch(step, index)
                last = index == self.reducer.local_indices[-1]
                with contextlib.nullcontext() if last else self.module.no_sync():
                    loss = F.cross_entropy(self.module(tokens), targets)
                    (loss * size / MICROBATCHES).backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def digest(tensors: list[Tensor]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        flat = plain.detach().contiguous().view(-1).view(torch.uint8)
        whole.update(flat.numpy().tobytes())
    return whole.hexdigest()[:16]


def in_ddp(model: nn.Module, group: distributed.ProcessGroup) -> nn.Module:
    return DistributedDataParallel(model, process_group=group)


def in_fsdp(model: nn.Module, group: distributed.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            distributed.broadcast(parameter, 0, group=group)
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


TRAININGS: dict[str, Callable[[distributed.ProcessGroup], Training]] = {
    "transformer": Training,
    "small buckets, no overlap, in DDP": lambda group: Training(
        group, wrap=in_ddp, arguments={"bucket_cap_mb": 0.001, "overlap": False}
    ),
    "in FSDP2": lambda group: Training(group, wrap=in_fsdp),
    "another seed": lambda group: Training(group, arguments={"seed": 1}),
    "convolutions": lambda group: Training(group, Convolutions),
    "convolutions in DDP": lambda group: Training(group, Convolutions, wrap=in_ddp),
    "bfloat16 in int32": lambda group: Training(
        group, dtype=torch.bfloat16, arguments={"sum_dtype": torch.int32, "bucket_cap_mb": 0.001}
    ),
    "added by DDP": lambda group: FloatTraining(group, wrap=in_ddp),
}
if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
    del TRAININGS["in FSDP2"]  # PyTorch 2.8, where it is refused

QUICK = {"transformer", "convolutions", "in FSDP2", "added by DDP"}
"""The trainings of the quick profile."""

EVEN = ("in FSDP2", "added by DDP")
"""Trainings in which each rank has as many microbatches."""


def resumed(groups: dict[int, distributed.ProcessGroup], folder: Path) -> str | None:
    """Train a step on four ranks, one on two of them, and one on one."""
    rank, found = distributed.get_rank(), None
    history: list[float] = []
    for begin, size in enumerate((4, 2, 1)):
        if rank < size:
            training = Training(groups[size])
            training.history = history
            if begin:
                training.load(folder / f"step{begin}")
            found = training.train(range(begin, begin + 1)).digest()
            training.save(folder / f"step{begin + 1}")
        distributed.barrier()
    return found if rank == 0 else None


class Given(nn.Module):
    """A module whose gradient is what it is given."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=dtype))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def addends(dtype: torch.dtype) -> list[Tensor]:
    """A gradient for each of the ranks, with a wide range, cancellation, and equal exponents."""
    data = torch.Generator().manual_seed(0)
    size = 2048
    exponents = torch.randint(-8, 5, (RANKS, size), generator=data)
    exponents[:, size // 2 :] = exponents[0, size // 2 :]
    values = torch.randn(RANKS, size, generator=data) * 2.0**exponents
    values[1, ::4] = -values[0, ::4]
    return list(values.to(dtype))


def errors(dtype: torch.dtype, sum_dtype: torch.dtype) -> dict[str, list[float]]:
    """Errors of gradients against float64, ours and DDP's, and what they are measured by."""
    given = addends(dtype)
    own, model = given[distributed.get_rank()], Given(len(given[0]), dtype)
    exact = torch.stack(given).double().mean(0)
    DistributedDataParallel(model)(own).backward()
    found = {"ddp": (model.weight.grad.double() - exact).abs().tolist()}
    model.weight.grad = None
    for _ in MicrobatchReducer(model, RANKS, sum_dtype=sum_dtype).microbatches(0):
        model(own).backward()
    found["exact"] = (model.weight.grad.double() - exact).abs().tolist()
    found["mean"] = exact.abs().tolist()
    found["largest"] = torch.stack(given).double().abs().amax(0).tolist()
    return found


def special_values(sum_dtype: torch.dtype) -> list[str]:
    """The gradients of elements that are not finite in the microbatches of some ranks."""
    inf, nan = float("inf"), float("nan")
    rows = [[1.0, 1.0, 1.0, 1.0, 1.0], [nan, inf, -inf, inf, 1.0], [2.0, 2.0, -inf, -inf, 2.0]]
    rows.append([3.0] * 5)
    model = Given(64 * 5, torch.bfloat16)
    own = torch.tensor(rows[distributed.get_rank()]).repeat_interleave(64).bfloat16()
    for _ in MicrobatchReducer(model, RANKS, sum_dtype=sum_dtype).microbatches(0):
        model(own).backward()
    return [str(each.item()) for each in model.weight.grad[::64]]


def message(action: Callable[[], object]) -> str:
    """The error that an action ends with."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def one_step(
    model: nn.Module,
    body: Callable[[MicrobatchReducer, int], object],
    step: int = 0,
    **arguments: Any,
) -> MicrobatchReducer:
    reducer = MicrobatchReducer(model, **{"microbatches": MICROBATCHES, **arguments})
    for index in reducer.microbatches(step):
        body(reducer, index)
    return reducer


def refusals() -> dict[str, str]:
    """The messages of wrong arguments and steps, each of which all ranks make."""
    rank = distributed.get_rank()
    ones = torch.ones(8)

    def net() -> Given:
        return Given(8, torch.float32)

    def twice(model: nn.Module, **arguments: Any) -> Tensor:
        def body(*_: object) -> None:
            model(ones).backward()
            model(2 * ones).backward()

        one_step(model, body, **arguments)
        return model.weight.grad

    def with_gradients() -> None:
        model = net()
        model(ones).backward()
        one_step(model, lambda *_: None)

    def of_some(model: Given) -> None:
        one_step(model, lambda _, index: model.steps.fill_(index))

    sparse = nn.Embedding(5, 2, sparse=True)
    found = {
        "SyncBatchNorm": lambda: one_step(nn.SyncBatchNorm(3), lambda *_: None),
        "float64": lambda: one_step(net().double(), lambda *_: None),
        "too few": lambda: one_step(net(), lambda *_: None, microbatches=3),
        "too many": lambda: one_step(
            net().bfloat16(), lambda *_: None, microbatches=129, sum_dtype=torch.int32
        ),
        "arguments differ": lambda: one_step(net(), lambda *_: None, seed=rank),
        "steps differ": lambda: one_step(net(), lambda *_: None, step=rank // 3),
        "gradients before": with_gradients,
        "backward twice": lambda: twice(net()),
        "sparse": lambda: one_step(sparse, lambda *_: sparse(torch.tensor([1])).sum().backward()),
        "integer buffer": lambda: of_some(net()),
        "values": lambda: one_step(net(), lambda *_: None).mean([0.0] * MICROBATCHES),
    }
    messages = {name: message(action) for name, action in found.items()}
    messages["backward twice, no overlap"] = str(twice(net(), overlap=False).unique().tolist())
    return messages


def of_one_microbatch() -> dict[str, Any]:
    """A gradient that one microbatch has; the generators in the loop and after it."""
    model, drawn = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]), []

    def body(_: object, index: int) -> None:
        drawn.append((index, torch.rand(()).item()))
        if index == 4:
            model[0](torch.ones(1)).backward()

    torch.manual_seed(7)
    reducer = one_step(model, body)
    after = torch.rand(()).item()
    torch.manual_seed(7)
    return {
        "used": model[0].bias.grad.item(),
        "unused": model[1].bias.grad,
        "drawn": drawn,
        "restored": after == torch.rand(()).item(),
        "sum": reducer.sum([index for index, _ in drawn]).item(),
    }


def main(rank: int, folder: Path, trainings: list[str]) -> None:
    """Do all of it as one of the ranks, with some trainings, and write what was found as JSON."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=30),
    )
    groups = {size: distributed.new_group(list(range(size))) for size in range(1, RANKS + 1)}
    found: dict[str, Any] = {}
    for name in trainings:
        for size, group in groups.items():
            if rank < size and (name not in EVEN or MICROBATCHES % size == 0):
                found[f"{name} on {size}"] = TRAININGS[name](group).train(range(STEPS)).digest()
            distributed.barrier()
    found["resumed"] = resumed(groups, folder)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for sum_dtype in (torch.int64, torch.int32):
            found[f"errors of {dtype} in {sum_dtype}"] = errors(dtype, sum_dtype)
    for sum_dtype in (torch.int64, torch.int32):
        found[f"special values in {sum_dtype}"] = special_values(sum_dtype)
    found["refusals"] = refusals()
    found["of one microbatch"] = of_one_microbatch()
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    os._exit(0)  # to take the process apart takes longer than the trainings


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
