"""Training steps of whole models: none raises, and no schedule changes a bit."""

import pytest
import torch

from detmode import DeterministicMode
from tests.models.steps import TRAININGS
from tests.shared import needs

pytestmark = [needs.compiler, pytest.mark.usefixtures("cublas_workspace")]


def train(name: str, steps: int = 2) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the final state of a model, from one seed."""
    torch.manual_seed(0)
    training = TRAININGS[name][0]()
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = training.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, training.model.state_dict()


@pytest.mark.parametrize("name", TRAININGS)
def test_step_is_reproducible(name: str) -> None:
    """In strict mode two training steps give the same weights for program order and 5 schedules.

    They train as ATen's CPU kernels do, up to roundings.
    """
    found = set()
    for seed in (None, 1, 2, 3, 4, 5):
        with DeterministicMode(simulate="cuda", schedule_seed=seed) as mode:
            losses, state = train(name)
        assert {record.action for record in mode.records} <= {"substitute", "native"}
        met = {record.family for record in mode.records if record.action == "substitute"}
        assert met >= TRAININGS[name][1]
        found.add((*(tensor.numpy().tobytes() for tensor in state.values()), *losses))
    assert len(found) == 1
    expected, _ = train(name)
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", TRAININGS)
def test_step_raises_without_substitutes(name: str) -> None:
    """With PyTorch alone, the same step cannot be run under the flag."""
    with (
        DeterministicMode(simulate="cuda", substitute=False),
        pytest.raises(RuntimeError, match="does not have a deterministic implementation"),
    ):
        train(name, steps=1)
