"""A small training with transformers' ``Trainer``, in which data and model draw random numbers.

As a program, one rank of it: ``python transformers_training.py RANK FOLDER``.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import detmode
from detmode.integrations.transformers import DeterministicCallback


class Noisy(Dataset[dict[str, torch.Tensor]]):
    """Sentences of which some are reversed, by every kind of random number."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.arange(index, index + 8) % 16
        if random.random() + float(numpy.random.rand()) + torch.rand(()).item() > 1.5:
            words = words.flip(0)
        return {"input_ids": words, "labels": words}


class Failing(Trainer):
    """Raises an error at a step; notes PyTorch's flag at each, and draws as many numbers as ranks.

    No two ranks therefore have the same generators.
    """

    fails_at: int | None = None
    error: type[BaseException] = KeyError

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.flags = [*getattr(self, "flags", ()), torch.are_deterministic_algorithms_enabled()]
        if self.state.global_step == self.fails_at:
            raise self.error("the training stops")
        torch.rand(self.args.process_index)
        return super().training_step(*args, **kwargs)


def trainer(folder: Path, *callbacks: Any, seed: int = 5, **arguments: Any) -> Failing:
    """A trainer of an epoch of six steps, with random weights."""
    detmode.seed_everything(seed)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    options = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "save_steps": 4,
        "logging_steps": 100,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": seed,
    }
    return Failing(
        GPT2LMHeadModel(config),
        TrainingArguments(str(folder), **{**options, **arguments}),
        train_dataset=Noisy(),
        callbacks=list(callbacks),
    )


def same(first: Trainer, second: Trainer) -> bool:
    return all(map(torch.equal, first.model.parameters(), second.model.parameters()))


def is_resumed(folder: Path, *, callback: bool, stops_after: int, **options: Any) -> bool:
    """Return whether a training that fails and goes on ends with the weights of one unstopped."""

    def make(name: str) -> Failing:
        callbacks = [DeterministicCallback()] if callback else []
        return trainer(folder / name, *callbacks, **options)

    whole = make("whole")
    whole.train()
    stopped = make("stopped")
    stopped.fails_at = stops_after + 1
    with pytest.raises(KeyError, match="the training stops"):
        stopped.train()
    resumed = make("stopped")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == whole.state.global_step > stops_after
    return same(whole, resumed)


def main(rank: str, folder: Path) -> None:
    """Train on all ranks; write whether this rank's weights are those of a training unstopped."""
    options = {"ddp_backend": "gloo", "num_train_epochs": 2, "save_steps": 1, "stops_after": 4}
    results = {
        name: is_resumed(folder / name, callback=name == "with", **options)
        for name in ("with", "without")
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = sys.argv[1]
    main(sys.argv[1], Path(sys.argv[2]))
