"""A small training with Lightning, in which data, model and loss draw random numbers.

As a program, one rank of it: ``python lightning_training.py RANK FOLDER``.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

import detmode
from detmode.integrations.lightning import DeterministicCallback


class Noisy(Dataset[torch.Tensor]):
    """Samples that are augmented with every kind of random number."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + float(numpy.random.rand())
        return torch.full((8,), index / 22) + noise * torch.rand(8)


class Net(pl.LightningModule):
    """Raises an error at a step, if one is given."""

    def __init__(self, fails_at: int = -1, error: type[BaseException] = KeyError) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )
        self.fails_at, self.error = fails_at, error

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        if self.trainer.global_step == self.fails_at:
            raise self.error("the training stops")
        return (self.net(batch) - random.random()).square().mean()

    def validation_step(self, batch: torch.Tensor, number: int) -> None:
        self.log("value", self.net(batch).sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def train(
    folder: Path,
    saves: dict[str, Any],
    *callbacks: pl.Callback,
    resume: int | None = None,
    workers: int = 0,
    own_generator: bool = True,
    validates: bool = False,
    make: Callable[[], Net] = Net,
    **trainer: Any,
) -> list[torch.Tensor]:
    """Train for three epochs of six steps; return the parameters.

    Args:
        folder: of the checkpoints.
        saves: when they are saved.
        callbacks: of the trainer.
        resume: the step of the checkpoint to continue from.
        workers: of the loader.
        own_generator: the loader has a generator of its own, and does not use the global one.
        validates: there is a validation after each epoch, which draws random numbers.
        make: makes the module.
        trainer: arguments of the trainer.
    """
    detmode.seed_everything(3)
    module = make()
    seeded = detmode.dataloader_kwargs(3) if own_generator else {}
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers, **seeded)
    pl.Trainer(
        accelerator="cpu",
        callbacks=[*callbacks, ModelCheckpoint(folder, "{step}", save_top_k=-1, **saves)],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"devices": 1, "max_epochs": 3, "logger": False, **trainer},
    ).fit(
        module,
        loader,
        DataLoader(Noisy(), batch_size=11) if validates else None,
        ckpt_path=folder / f"step={resume}.ckpt" if resume is not None else None,
    )
    return [each.detach() for each in module.parameters()]


def main(rank: str, folder: Path) -> None:
    """Train on all ranks, whole and resumed; write whether the weights are the same."""
    results: dict[str, bool] = {}
    # Lightning removes it from the environment after each training.
    options = {"strategy": "ddp", "devices": int(os.environ["WORLD_SIZE"]), "max_epochs": 2}
    for name, make in (
        ("with", lambda: [DeterministicCallback(seed=3)]),
        ("without", list),
    ):
        saves = {"every_n_train_steps": 1}
        whole = train(folder / name, saves, *make(), **options)
        resumed = train(folder / name, saves, *make(), resume=1, **options)
        results[name] = all(map(torch.equal, whole, resumed))
    (folder / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = sys.argv[1]
    main(sys.argv[1], Path(sys.argv[2]))
