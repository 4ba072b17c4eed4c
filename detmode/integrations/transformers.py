"""A callback with which transformers' ``Trainer`` trains under a mode, and resumes bit by bit.

``Trainer`` calls no hook where a training fails or is interrupted. Importing this module therefore
wraps ``Trainer.train``: if the trainer has the callback, the block of the mode is around it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import wrapt

from detmode.environment.seeding import rng_state, seed_everything, set_rng_state
from detmode.integrations import training
from detmode.mode.deterministic_mode import DeterminismWarning, DeterministicMode

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
    from transformers import TrainingArguments as Arguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ImportError as error:
    raise ImportError(
        f"detmode.integrations.transformers needs transformers and accelerate ({error}); "
        "run pip install transformers accelerate"
    ) from error


class DeterministicCallback(TrainerCallback):  # type: ignore[misc]  # read without its types
    """Train under a mode with transformers' ``Trainer``, and resume bit by bit.

    The mode is entered when ``Trainer.train`` is called and left when it ends, also by an error or
    an interrupt. Then the report of all ranks is printed on stderr. Its numbers are in the last
    record that the trainer logs, and in ``TrainOutput.metrics``. Beside the other files of a
    checkpoint lies ``detmode_RANK.pt``, with the seeds and the states of the global generators.
    ``TrainingArguments(seed=..., data_seed=...)`` seeds, as it does without the callback.

    Args:
        mode: the mode; ``DeterministicMode()`` if left out. Its report counts all trainings.

    Raises:
        ValueError: in ``Trainer.train``: ``full_determinism`` contradicts the mode, the checkpoint
            is that of a training with other seeds or another number of ranks, or
            ``ignore_data_skip`` would continue with other batches.

    Attributes:
        mode: the mode, for its ``report()``.
    """

    def __init__(self, mode: DeterministicMode | None = None) -> None:
        self.mode = training.mode_of(mode)
        self._trainer: Trainer | None = None  # while it trains
        # From a checkpoint, until the first step.
        self._loaded: dict[str, Any] | None = None
        # Of the epoch: the states at its begin, those for loading, the batches loaded so far.
        self._begin: dict[str, Any] = {}
        self._loading: dict[str, Any] = {}
        self._done = 0
        self._replayed: Iterator[Any] | None = None

    def on_train_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Fix DDP's buckets, right after the trainer has wrapped the model."""
        if self._trainer is not None:
            training.fix_buckets_of(self._trainer.model_wrapped)

    def on_epoch_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Note the generators' states; of a resumed epoch, restore those that it began with."""
        self._done, self._replayed = 0, None
        if self._loaded is not None:
            is_over = float(state.epoch).is_integer()
            set_rng_state(self._loaded["now" if is_over else "begin"])
            if is_over:
                self._loaded = None
        self._begin = rng_state()
        self._loading = _seeded_from(self._begin)

    def load(self, load: Callable[..., Any], batches: Iterator[Any], *args: Any) -> Any:
        """Load the batches of a step, as ``Trainer.get_batch_samples`` does.

        What loading draws, of a collator or for the seeds of workers, comes from generators of its
        own: a resumed training loads the finished batches of its epoch again without the steps
        between them. The trainer itself would skip their indices, but not what they draw.
        """
        outside = rng_state()
        set_rng_state(self._loading)
        try:
            if self._loaded is not None and self._trainer is not None:
                loader = self._trainer.callback_handler.train_dataloader
                if hasattr(loader, "set_epoch"):
                    loader.set_epoch(int(self._trainer.state.epoch))
                self._replayed, self._done = iter(loader), self._loaded["done"]
                for _ in range(self._done):
                    next(self._replayed)
            loaded = load(self._replayed or batches, *args)
            self._done += len(loaded[0])
            return loaded
        finally:
            self._loading = rng_state()
            set_rng_state(outside)

    def on_step_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Restore the states of the checkpoint, once the finished batches have been loaded."""
        if self._loaded is not None:
            set_rng_state(self._loaded["now"])
            self._loaded = None

    def on_save(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write this rank's file beside the other files of the checkpoint."""
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        if args.save_only_model or state.is_hyper_param_search:
            return  # no training resumes from it
        folder.mkdir(parents=True, exist_ok=True)
        place = {"begin": self._begin, "now": rng_state(), "done": self._done}
        torch.save({**_settings(args), **place}, folder / _file(args))

    def on_log(
        self,
        args: Arguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Add the report's numbers to the last record, which has the loss of the training."""
        if self._trainer is not None and logs is not None and "train_loss" in logs:
            report = training.report_of_all(self.mode)
            logs.update(training.numbers(report))
            state.log_history[-1].update(logs)
            if state.is_world_process_zero:
                training.show(report)
            self._trainer = None


@wrapt.patch_function_wrapper(Trainer, "train")
def _train(train: Any, trainer: Trainer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    callbacks = trainer.callback_handler.callbacks
    callback = next(
        (candidate for candidate in callbacks if isinstance(candidate, DeterministicCallback)), None
    )
    if callback is None:
        return train(*args, **kwargs)
    training.check_flag(callback.mode, "full_determinism=True", "warn_only=True")
    bound = inspect.signature(train).bind(*args, **kwargs).arguments
    callback._loaded = _load(trainer.args, bound.get("resume_from_checkpoint"))
    callback._trainer = trainer
    # First, so that what it adds to a record reaches the callbacks that write the record.
    callbacks.remove(callback)
    callbacks.insert(0, callback)
    trainer.get_batch_samples = functools.partial(callback.load, trainer.get_batch_samples)
    try:
        with callback.mode:
            return train(*args, **kwargs)
    finally:
        del trainer.get_batch_samples
        if callback._trainer is not None:
            callback._trainer = None
            training.show(training.own_report(callback.mode))


def _load(args: Arguments, checkpoint: str | bool | None) -> dict[str, Any] | None:
    """Return what this rank's file in a checkpoint holds; warn if there is none."""
    folder = get_last_checkpoint(args.output_dir) if checkpoint is True else checkpoint
    if not folder:
        return None
    if args.ignore_data_skip:
        raise ValueError(
            "ignore_data_skip=True starts the epoch anew, with batches that are done already; "
            "leave it out to resume with the same bits, or train without DeterministicCallback"
        )
    path = Path(folder, _file(args))
    if not path.exists():
        warnings.warn(
            f"{path} is missing, because DeterministicCallback did not save this checkpoint, or on "
            "fewer ranks: the bits may differ from those of a training without a stop",
            DeterminismWarning,
            stacklevel=2,
        )
        return None
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    for name, here in _settings(args).items():
        if saved[name] != here:
            raise ValueError(
                f"the training of {folder} cannot be resumed with the same bits: its {name} is "
                f"{saved[name]}, here it is {here}; make them equal, or delete its detmode_*.pt"
            )
    return saved


def _settings(args: Arguments) -> dict[str, Any]:
    return {"seed": args.seed, "data_seed": args.data_seed, "world_size": args.world_size}


def _file(args: Arguments) -> str:
    return f"detmode_{args.process_index}.pt"


def _seeded_from(states: dict[str, Any]) -> dict[str, Any]:
    """Return other states of the global generators, which follow from these; keep these."""
    generator = torch.Generator()
    generator.set_state(states["torch"])
    seed_everything(int(torch.randint(2**32, (), generator=generator, device="cpu")))
    seeded = rng_state()
    set_rng_state(states)
    return seeded
