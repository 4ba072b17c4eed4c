"""transformers' ``Trainer`` with the callback, and a loop of accelerate's under the mode."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import detmode
from detmode import DeterminismWarning, DeterministicMode
from tests.shared import needs
from tests.shared.processes import launched, run_ranks

# Warnings of transformers and accelerate.
pytestmark = [
    needs.package("accelerate"),
    needs.package("transformers"),
    # Of settings that need a GPU.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    # Of what they call in each other.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("error::detmode.DeterminismWarning"),
]


@pytest.fixture(scope="module")
def training() -> Any:
    """The training's module. Collection does not import transformers, which takes seconds."""
    return importlib.import_module("tests.integrations.transformers_training")


@pytest.mark.parametrize(
    ("options", "step"),
    [
        pytest.param({}, 4, id="middle"),
        *(
            pytest.param(
                {**options, "num_train_epochs": 3}, step, id=name, marks=pytest.mark.thorough
            )
            for name, options, step in [
                ("middle-workers", {"dataloader_num_workers": 2}, 16),
                ("middle-accumulated", {"gradient_accumulation_steps": 2, "save_steps": 1}, 4),
                ("epoch", {"save_strategy": "epoch"}, 12),
                ("epoch-workers", {"save_strategy": "epoch", "dataloader_num_workers": 2}, 6),
            ]
        ),
    ],
)
def test_interrupted_and_resumed(
    training: Any, options: dict[str, Any], step: int, tmp_path: Path
) -> None:
    """A training that fails and is resumed ends with the weights of one without a stop."""
    assert training.is_resumed(tmp_path, callback=True, stops_after=step, **options)


@pytest.mark.thorough
def test_without_the_callback(training: Any, tmp_path: Path) -> None:
    """The same training resumes to other weights without it: the comparison can tell."""
    assert not training.is_resumed(tmp_path, callback=False, stops_after=4)


@pytest.mark.thorough
def test_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks over gloo, both stopped, resume bit by bit, each with its own generators.

    Without the callback they do not.
    """
    for name, value in launched(2).items():
        monkeypatch.setenv(name, value)
    results = run_ranks(Path(__file__).with_name("transformers_training.py"), 2, tmp_path)
    assert results["with"] == [True] * 2
    assert results["without"] == [False] * 2


@pytest.mark.parametrize(
    "error", [pytest.param(KeyError, marks=pytest.mark.thorough), KeyboardInterrupt]
)
def test_settings_are_put_back(
    training: Any, error: type[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mode acts in each step, and leaves with the error; the report so far is printed."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    callback = training.DeterministicCallback()
    stopped = training.trainer(tmp_path, callback)
    stopped.fails_at, stopped.error = 2, error
    with pytest.raises(error):
        stopped.train()
    assert before == (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
    )
    assert stopped.flags == [True] * 3
    assert not callback.mode.is_entered
    assert capsys.readouterr().err.count(f"\n{callback.mode.report().verdict}\n") == 1


def test_report_in_the_record(
    training: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of the training has the report's numbers, and the report is printed once."""
    callback = training.DeterministicCallback()
    trained = training.trainer(tmp_path, callback)
    metrics = trained.train().metrics
    record = trained.state.log_history[-1]
    report = callback.mode.report()
    assert record["train_loss"] == metrics["train_loss"]
    assert metrics["detmode/rows"] == record["detmode/rows"] == len(report) > 0
    assert record["detmode/calls_native"] == sum(row.count for row in report)
    assert record["detmode/calls_that_may_vary"] == 0
    assert capsys.readouterr().err.count(f"\n{report.verdict}\n") == 1


@pytest.mark.thorough
def test_refused(training: Any, tmp_path: Path) -> None:
    """Arguments and checkpoints that contradict a bit-exact resume are refused, in words."""
    training.trainer(tmp_path, training.DeterministicCallback()).train()
    for words, arguments in (
        ("its seed is 5, here it is 6", {"seed": 6}),
        ("its data_seed is None, here it is 1", {"data_seed": 1}),
        ("ignore_data_skip=True starts the epoch anew", {"ignore_data_skip": True}),
    ):
        with pytest.raises(ValueError, match=words):
            training.trainer(tmp_path, training.DeterministicCallback(), **arguments).train(
                resume_from_checkpoint=True
            )
    (tmp_path / "checkpoint-4" / "detmode_0.pt").unlink()
    with pytest.warns(DeterminismWarning, match=r"detmode_0\.pt is missing"):
        training.trainer(tmp_path, training.DeterministicCallback()).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-4")
        )


def test_contradiction(training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`full_determinism` asks for errors: a mode that warns is refused."""
    for name in (
        "CUDA_LAUNCH_BLOCKING",
        "CUBLAS_WORKSPACE_CONFIG",
        "FLASH_ATTENTION_DETERMINISTIC",
    ):
        monkeypatch.setenv(name, "")  # put back afterwards
    warning = training.DeterministicCallback(DeterministicMode(warn_only=True))
    try:
        with pytest.raises(ValueError, match=r"\(full_determinism=True\).*warn_only=False"):
            training.trainer(tmp_path, warning, full_determinism=True).train()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def test_loop_of_accelerate(tmp_path: Path) -> None:
    """The loop that the documentation shows resumes bit by bit, in the middle of an epoch."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def train(resume: bool) -> list[torch.Tensor]:
        detmode.seed_everything(0)
        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5))
        data, seeded = torch.randn(24, 8), detmode.dataloader_kwargs(0)
        loader = DataLoader(data, batch_size=4, shuffle=True, **seeded)
        optimizer = torch.optim.Adam(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        first, done = (1, 3) if resume else (0, 0)
        if resume:
            accelerator.load_state(str(tmp_path))
        with DeterministicMode():
            for epoch in range(first, 2):
                batches = accelerator.skip_first_batches(loader, done)
                batches.set_epoch(epoch)
                for done, batch in enumerate(batches, done + 1):  # noqa: B020  # of this epoch
                    accelerator.backward(model(batch).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                    if (epoch, done) == (1, 3) and not resume:
                        accelerator.save_state(str(tmp_path))
                done = 0
        return [each.detach().clone() for each in model.parameters()]

    assert all(map(torch.equal, train(False), train(True)))
