"""A callback with which Lightning's ``Trainer`` trains under a mode, and resumes bit by bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from detmode.distributed.rank_group import gathered
from detmode.environment.seeding import rng_state, seed_everything, set_rng_state
from detmode.integrations import training
from detmode.mode.deterministic_mode import DeterminismWarning, DeterministicMode

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise ImportError(
        f"detmode.integrations.lightning needs Lightning ({error}); run pip install lightning"
    ) from error


class DeterministicCallback(Callback):  # type: ignore[misc]  # Lightning is read without types
    """Train under a mode with Lightning's ``Trainer``, and resume bit by bit.

    The mode is entered when training starts and left when it ends, also by an error or an
    interrupt. Then the report of all ranks is printed on stderr, and its numbers go to the
    trainer's loggers. Checkpoints hold the states of all generators of all ranks: the global ones
    and those of the training's loaders. A training that resumes loads the finished batches of its
    epoch again, drops them, and continues with the bits of one without a stop.

    Args:
        mode: the mode; ``DeterministicMode()`` if left out. Its report counts all trainings.
        seed: seeds the global generators of each rank with ``seed`` plus the rank before the
            training is set up; ``None`` leaves them as they are. Weights that are made earlier
            need :func:`detmode.seed_everything`.

    Raises:
        ValueError: in ``Trainer.fit``: ``Trainer(deterministic=...)`` contradicts the mode, or the
            checkpoint is that of a training with another seed, number of ranks or loaders.

    Attributes:
        mode: the mode, for its ``report()``.
        seed: the seed.
    """

    def __init__(self, mode: DeterministicMode | None = None, *, seed: int | None = None) -> None:
        self.mode = training.mode_of(mode)
        self.seed = seed
        self._is_inside = False
        self._generators: list[torch.Generator] = []
        # Of the epoch: the states at its begin, and the batches that are done.
        self._begin: dict[str, Any] | None = None
        self._done = 0
        # From a checkpoint, until the first batch.
        self._loaded: dict[str, Any] | None = None

    # The block

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings and seed, before Lightning loads a checkpoint."""
        self._loaded = None
        if stage != "fit":
            return
        training.check_flag(self.mode, "Trainer(deterministic=True)", 'deterministic="warn"')
        if self.seed is not None:
            seed_everything(self.seed + trainer.global_rank)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fix DDP's buckets, right after Lightning has wrapped the module."""
        training.fix_buckets_of(trainer.model)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the mode, and begin the epoch, or continue it at the batch of the checkpoint."""
        self.mode.__enter__()
        self._is_inside = True
        self._begin_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the mode; log and print the report of all ranks."""
        self._leave()
        report = training.report_of_all(self.mode)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(training.numbers(report), step=trainer.global_step)
            training.show(report)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the mode, and print the report so far."""
        if self._leave(exception):
            training.show(training.own_report(self.mode))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the mode where Lightning has ended the training in another way."""
        self._leave()

    def _leave(self, error: BaseException | None = None) -> bool:
        was_inside, self._is_inside = self._is_inside, False
        if was_inside:
            self.mode.__exit__(error and type(error), error, error and error.__traceback__)
        return was_inside

    # Generators

    def _states(self) -> dict[str, Any]:
        return {
            "global": rng_state(),
            "loaders": [generator.get_state() for generator in self._generators],
        }

    def _set(self, states: dict[str, Any]) -> None:
        for generator, state in zip(self._generators, states["loaders"]):
            generator.set_state(state)
        set_rng_state(states["global"])

    def _begin_epoch(self, trainer: Trainer) -> None:
        """Note the generators' states and iterate; drop the batches that are done already.

        Lightning has begun to iterate before any hook, with draws that no hook has seen.
        """
        loaders = tree_leaves(trainer.train_dataloader)
        self._generators = list(_generators_of(loaders))
        state = self._loaded = self._checked(self._loaded)
        # An epoch whose batches are all done is over: the next one begins.
        self._done = state["done"] if state else 0
        if self._done >= trainer.num_training_batches:
            self._done = 0
        if state is not None:
            self._set(state["begin" if self._done else "now"])
            if _misses_validation(trainer, state["done"]):
                warnings.warn(
                    "the checkpoint was saved right before a validation, which Lightning skips as "
                    "it resumes: what validation draws is missing, and the bits may differ; save "
                    "after it, as ModelCheckpoint(save_on_train_epoch_end=False) does",
                    DeterminismWarning,
                    stacklevel=2,
                )
        self._begin = self._states()
        if any(hasattr(loader, "load_state_dict") for loader in loaders):
            return  # Lightning restores loaders that can be
        for loader in loaders:
            if hasattr(getattr(loader, "sampler", None), "set_epoch"):
                loader.sampler.set_epoch(trainer.current_epoch)
        batches = iter(trainer.fit_loop._data_fetcher)
        for _ in range(self._done):
            next(batches)
        batches.fetched -= self._done  # Lightning adds them
        if state is not None and self._done:
            self._set(state["now"])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the generators' states before Lightning iterates anew, after the first epoch."""
        loop = trainer.fit_loop
        if trainer.current_epoch == 0 or loop.restarting or loop.is_resuming:
            return
        self._generators = list(_generators_of(tree_leaves(trainer.train_dataloader)))
        if self._loaded is not None:
            # It was saved at the end of an epoch, which Lightning has ended once more.
            self._set(self._loaded["now"])
        self._begin, self._done = self._states(), 0

    def on_train_batch_start(self, *_: Any) -> None:
        """Forget the checkpoint, from which training now continues."""
        self._loaded = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch as done."""
        self._done = batch_idx + 1

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the seed, and for each rank the states of its generators and its place.

        All ranks call it, as they do where Lightning saves a checkpoint. Empty before training.
        """
        if self._begin is None:
            return {}
        states = {"begin": self._begin, "now": self._states(), "done": self._done}
        return {"seed": self.seed, "ranks": gathered(states)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what :meth:`state_dict` gave until training starts."""
        self._loaded = state_dict

    def _checked(self, saved: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return this rank's part of a checkpoint."""
        if saved is None:
            return None
        rank, size = training.world()
        states: dict[str, Any] = saved["ranks"][min(rank, len(saved["ranks"]) - 1)]
        for what, there, here in (
            ("seed", saved["seed"], self.seed),
            ("number of ranks", len(saved["ranks"]), size),
            (
                "number of loaders' generators",
                len(states["begin"]["loaders"]),
                len(self._generators),
            ),
        ):
            if there != here:
                raise ValueError(
                    f"the checkpoint's training cannot be resumed with the same bits: its {what} "
                    f"is {there}, here it is {here}; make them equal, or remove {self.state_key!r} "
                    "from checkpoint['callbacks'] to start from new seeds"
                )
        return states


def _misses_validation(trainer: Trainer, done: int) -> bool:
    """Return whether a validation follows the batch after which a checkpoint was saved."""
    if not (trainer.enable_validation and trainer.fit_loop.epoch_loop.restarted_on_train_batch_end):
        return False
    return trainer.val_check_batch is not None and done % trainer.val_check_batch == 0


def _generators_of(loaders: Iterable[Any]) -> Iterable[torch.Generator]:
    """Return the generators of loaders and of their samplers, each once."""
    holders = (item for loader in loaders for item in (loader, getattr(loader, "sampler", None)))
    generators = (getattr(holder, "generator", None) for holder in holders)
    return dict.fromkeys(item for item in generators if isinstance(item, torch.Generator))
