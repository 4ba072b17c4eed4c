"""Lightning's ``Trainer`` with the callback: resumed bit by bit, settings put back, one report."""

import csv
import importlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from detmode import DeterminismWarning, DeterministicMode
from tests.shared import needs
from tests.shared.processes import launched, run_ranks

pytestmark = [
    needs.package("lightning"),
    # Of Lightning, on what is deliberate here: no workers, few batches, loaders that do not resume.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    # Of PyTorch, about what Lightning imports.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("error::detmode.DeterminismWarning"),
]


@pytest.fixture(scope="module")
def training() -> Any:
    """The training's module. Collection does not import Lightning, which takes seconds."""
    return importlib.import_module("tests.integrations.lightning_training")


MIDDLE = {"every_n_train_steps": 4}
EPOCH = {"every_n_epochs": 1, "save_on_train_epoch_end": True}


def settings() -> tuple[object, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


@pytest.mark.parametrize(
    ("saves", "step", "options"),
    [
        pytest.param(MIDDLE, 8, {"own_generator": True}, id="middle"),
        pytest.param(EPOCH, 6, {"own_generator": False, "validates": True}, id="epoch"),
        *(
            pytest.param(saves, step, options, id=name, marks=pytest.mark.thorough)
            for name, saves, step, options in [
                ("middle-workers", MIDDLE, 8, {"workers": 2, "own_generator": False}),
                ("middle-validates", MIDDLE, 8, {"validates": True}),
                ("last-step", {"every_n_train_steps": 6}, 6, {}),
                ("epoch-workers", EPOCH, 12, {"workers": 2}),
                ("validation", {**EPOCH, "save_on_train_epoch_end": False}, 6, {"validates": True}),
            ]
        ),
    ],
)
def test_interrupted_and_resumed(
    training: Any, saves: dict[str, Any], step: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """A training that fails and is resumed ends with the weights of one without a stop.

    The process draws random numbers before it resumes, as another program would.
    """
    whole = training.train(
        tmp_path / "whole", saves, training.DeterministicCallback(seed=3), **options
    )
    fails = partial(training.Net, fails_at=step + 1)
    with pytest.raises(KeyError, match="the training stops"):
        training.train(
            tmp_path, saves, training.DeterministicCallback(seed=3), make=fails, **options
        )
    resumed = training.train(
        tmp_path, saves, training.DeterministicCallback(seed=3), resume=step, **options
    )
    assert all(map(torch.equal, whole, resumed))


def test_without_the_callback(training: Any, tmp_path: Path) -> None:
    """The same training resumes to other weights without it: the comparison can tell."""
    whole = training.train(tmp_path, MIDDLE)
    assert not all(map(torch.equal, whole, training.train(tmp_path, MIDDLE, resume=8)))


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_settings_are_put_back(
    training: Any, error: type[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mode acts in each step, and no setting stays when one fails; the report is printed."""
    inside = []

    class Watched(training.Net):
        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            inside.append(settings())
            return super().training_step(batch, number)

    callback = training.DeterministicCallback(DeterministicMode(warn_only=True))
    before = settings()
    # Lightning turns an interrupt into the end of the program.
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        training.train(tmp_path, MIDDLE, callback, make=partial(Watched, fails_at=2, error=error))
    assert before == settings()
    assert inside == [(True, True, True, False)] * 3
    assert not callback.mode.is_entered
    assert callback.mode.report().verdict.startswith(f"not finished: {error.__name__}")
    assert callback.mode.report().interface.name == "trainer"
    assert callback.mode.report().verdict in capsys.readouterr().err


def test_report_in_the_logger(
    training: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of the report are logged after the last step, and the report is printed once."""
    from lightning.pytorch.loggers import CSVLogger

    callback = training.DeterministicCallback()
    logger = CSVLogger(tmp_path, "logs", "1")
    training.train(tmp_path, EPOCH, callback, logger=logger)
    with open(tmp_path / "logs" / "1" / "metrics.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    report = callback.mode.report()
    assert int(last["step"]) == 18
    assert int(last["detmode/rows"]) == len(report) > 0
    natives = sum(row.count for row in report.where(action="native"))
    assert int(last["detmode/calls_native"]) == natives > 0
    assert int(last["detmode/calls_that_may_vary"]) == 0
    assert capsys.readouterr().err.count(f"\n{report.verdict}\n") == 1


@pytest.mark.parametrize(
    ("deterministic", "warn_only"), [("warn", False), (True, True)], ids=["warn", "error"]
)
def test_contradiction(training: Any, deterministic: Any, warn_only: bool, tmp_path: Path) -> None:
    """`Trainer(deterministic=...)` that asks for the other of warnings and errors is refused."""
    before = settings()
    callback = training.DeterministicCallback(DeterministicMode(warn_only=warn_only))
    try:
        with pytest.raises(ValueError, match=rf"warn_only={not warn_only}\)\), or leave"):
            training.train(tmp_path, MIDDLE, callback, deterministic=deterministic)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[3]


def test_checkpoints_of_other_trainings(training: Any, tmp_path: Path) -> None:
    """A checkpoint of another seed, of more ranks or with other loaders is refused, in words."""
    training.train(tmp_path, MIDDLE, training.DeterministicCallback(seed=3), max_epochs=1)
    with pytest.raises(ValueError, match="its seed is 3, here it is 4"):
        training.train(tmp_path, MIDDLE, training.DeterministicCallback(seed=4), resume=4)
    with pytest.raises(ValueError, match="number of loaders' generators is 1, here it is 0"):
        training.train(
            tmp_path, MIDDLE, training.DeterministicCallback(seed=3), resume=4, own_generator=False
        )
    path = tmp_path / "step=4.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["callbacks"]["DeterministicCallback"]["ranks"] *= 2
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match="its number of ranks is 2, here it is 1"):
        training.train(tmp_path, MIDDLE, training.DeterministicCallback(seed=3), resume=4)


@pytest.mark.thorough
def test_checkpoint_before_a_validation(training: Any, tmp_path: Path) -> None:
    """Lightning skips the validation after such a checkpoint, and what it draws: a warning."""
    saves = {"every_n_train_steps": 6}
    training.train(tmp_path, saves, training.DeterministicCallback(), validates=True)
    with pytest.warns(DeterminismWarning, match="right before a validation"):
        training.train(tmp_path, saves, training.DeterministicCallback(), resume=6, validates=True)


@pytest.mark.parametrize("rank", [0, 2])
def test_each_rank_has_a_seed_of_its_own(training: Any, rank: int) -> None:
    """It is ``seed`` plus the rank: ranks with one seed would draw the same dropout masks."""
    trainer: Any = SimpleNamespace(global_rank=rank)
    training.DeterministicCallback(seed=3).setup(trainer, training.Net(), "fit")
    assert torch.initial_seed() == 3 + rank


@pytest.mark.thorough
def test_three_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks over gloo resume bit by bit, each with its own generators and DDP's buckets.

    Without the callback they do not.
    """
    for name, value in {**launched(3), "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    results = run_ranks(Path(__file__).with_name("lightning_training.py"), 3, tmp_path)
    assert results["with"] == [True] * 3
    assert results["without"] == [False] * 3
