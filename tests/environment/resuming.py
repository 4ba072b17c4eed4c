"""A training that saves in the middle of an epoch, and goes on from there in another process.

``python resuming.py FOLDER WORKERS PART...``: the part ``whole`` saves on its way to the end,
``second`` goes on from there, and ``forgetful`` too, but without the global generators' state.
"""

import random
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

import detmode

EPOCHS = 3
SAVED = (1, 3)  # the epoch, and the batches that are done of it


class Noisy(Dataset[torch.Tensor]):
    """Samples that are augmented with every kind of random number."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + float(numpy.random.rand())
        return torch.full((8,), float(index)) + noise * torch.rand(8)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    jitter = random.random() + float(numpy.random.rand())
    loss = (model(batch / 22) - jitter).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(folder: Path, workers: int, part: str) -> None:
    detmode.seed_everything(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(
        Noisy(), batch_size=4, shuffle=True, num_workers=workers, **detmode.dataloader_kwargs(3)
    )
    losses: list[float] = []
    start, skipped = 0, 0
    checkpoint: dict[str, Any] = {}
    if part in ("second", "forgetful"):
        checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.generator.set_state(checkpoint["order"])
        start, skipped, losses = checkpoint["epoch"], checkpoint["done"], checkpoint["losses"]
    for epoch in range(start, EPOCHS):
        order = loader.generator.get_state()
        batches = iter(loader)
        for _ in range(skipped):
            next(batches)
        if skipped and part == "second":
            detmode.set_rng_state(checkpoint["rng"])
        for done, batch in enumerate(batches, start=skipped + 1):
            losses.append(step(model, optimizer, batch))
            if part == "whole" and (epoch, done) == SAVED:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                    "done": done,
                    "order": order,
                    "losses": losses,
                    "rng": detmode.rng_state(),
                }
                torch.save(checkpoint, folder / "checkpoint.pt")
        skipped = 0
    drawn = [random.random(), float(numpy.random.rand()), torch.rand(()).item()]
    result = {"model": model.state_dict(), "losses": losses, "drawn": drawn}
    torch.save(result, folder / f"{part}.pt")


if __name__ == "__main__":
    # The claim is about random numbers, not about how the CPU splits a sum.
    torch.set_num_threads(1)
    for each in sys.argv[3:]:
        main(Path(sys.argv[1]), int(sys.argv[2]), each)
