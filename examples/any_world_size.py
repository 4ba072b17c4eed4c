"""Train a classifier of handwritten digits, to the same weights on any number of processes.

Each step takes 8 microbatches of scikit-learn's digits, however many processes share them. The
training saves a checkpoint after every epoch, and goes on from the last one that it finds, so it
can be stopped and started again with another number of processes:

    torchrun --nproc-per-node 4 examples/any_world_size.py --epochs 2 --checkpoints digits-weights
    torchrun --nproc-per-node 3 examples/any_world_size.py --epochs 4 --checkpoints digits-weights
"""

import argparse
import hashlib
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F

from detmode.distributed import MicrobatchReducer

MICROBATCHES = 8
SAMPLES = 16
"""Of a microbatch."""


def classifier() -> nn.Module:
    """Map images (N, 1, 8, 8) to logits (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 9, 10),
    )


def order_of(epoch: int, size: int) -> torch.Tensor:
    """Shuffle the samples: indices (steps, MICROBATCHES, SAMPLES), the same in every process."""
    shuffle = torch.Generator().manual_seed(epoch)
    steps = size // (MICROBATCHES * SAMPLES)
    order = torch.randperm(size, generator=shuffle)[: steps * MICROBATCHES * SAMPLES]
    return order.view(steps, MICROBATCHES, SAMPLES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoints", type=Path, help="a folder, to save in and to go on from")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = load_digits()
    images = torch.as_tensor(data.images, dtype=torch.float32)[:, None] / 16
    digits = torch.as_tensor(data.target)

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    reducer = MicrobatchReducer(model, MICROBATCHES)
    begin = load(model, optimizer, options.checkpoints) if options.checkpoints else 0
    say = print if distributed.get_rank() == 0 else lambda _: None
    say(f"{distributed.get_world_size()} processes, epochs {begin + 1} to {options.epochs}")
    for epoch in range(begin, options.epochs):
        order = order_of(epoch, len(images))
        for number, samples in enumerate(order):
            step = epoch * len(order) + number
            losses, right = [], []
            for index in reducer.microbatches(step):
                chosen = samples[index]
                logits = model(images[chosen])
                losses.append(F.cross_entropy(logits, digits[chosen]))
                losses[-1].backward()
                right.append((logits.argmax(1) == digits[chosen]).sum())
            reducer.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        loss, accuracy = reducer.mean(losses), reducer.sum(right) / samples.numel()
        say(f"epoch {epoch + 1}  loss {loss:.9f}  accuracy of the last step {accuracy:.4f}")
        if options.checkpoints:
            save(model, optimizer, options.checkpoints / f"epoch{epoch + 1}")
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.numpy().tobytes())
    say(f"weights sha256 {weights.hexdigest()}")
    distributed.destroy_process_group()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=path)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Load the last checkpoint, if there is one; the number of epochs that it has seen."""
    saved = sorted(folder.glob("epoch*"), key=lambda path: int(path.name[5:]))
    if not saved:
        return 0
    weights, state = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=saved[-1])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return int(saved[-1].name[5:])


if __name__ == "__main__":
    main()
