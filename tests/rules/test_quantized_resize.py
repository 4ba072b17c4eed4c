"""resize_ of quantized tensors: new memory is filled as that of other tensors is."""

import pytest
import torch

from detmode import DeterministicMode

LARGEST = {torch.quint8: 255, torch.qint8: 127, torch.qint32: 2**31 - 1}


def quantized(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Zeros with a scale and a zero point."""
    return torch.quantize_per_tensor(torch.zeros(shape), 0.5, 3, dtype)


@pytest.mark.parametrize("simulate", [None, "cuda"])
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_new_elements_are_filled(dtype: torch.dtype, simulate: str | None) -> None:
    """Old elements stay, new ones are the largest integer, and nothing is raised."""
    x = quantized(dtype, 2, 2)
    with DeterministicMode(simulate=simulate) as mode:
        assert x.resize_(3, 3) is x
        functional = torch.ops.aten.resize(quantized(dtype, 2, 2), [3, 3])
    expected = [3] * 4 + [LARGEST[dtype]] * 5
    assert x.int_repr().flatten().tolist() == expected
    assert functional.int_repr().flatten().tolist() == expected
    assert (x.q_scale(), x.q_zero_point()) == (0.5, 3)
    assert {record.action for record in mode.records if "resize" in record.overload} == {
        "substitute"
    }


def test_memory_that_was_there_stays() -> None:
    """As in ATen, growing back into memory that a tensor kept shows what it held."""
    x = quantized(torch.quint8, 4)
    with DeterministicMode():
        x.resize_(2).resize_(6)
    assert x.int_repr().tolist() == [3, 3, 3, 3, 255, 255]


def test_filling_can_be_turned_off() -> None:
    """Then new memory is as it was found, and nothing is raised."""
    x = quantized(torch.quint8, 4)
    with DeterministicMode(fill_uninitialized_memory=False) as mode:
        x.resize_(6)
    assert x.int_repr()[:4].tolist() == [3] * 4
    assert [record.action for record in mode.records] == ["substitute"]


def test_memory_format_reaches_aten() -> None:
    """ATen resizes quantized tensors to contiguous ones only."""
    x = quantized(torch.quint8, 1, 2, 3, 1)
    with DeterministicMode(), pytest.raises(RuntimeError, match="memory format"):
        x.resize_(2, 3, 4, 5, memory_format=torch.channels_last)


def test_per_channel_is_rejected_as_by_aten() -> None:
    """ATen resizes only what is quantized per tensor."""
    x = torch.quantize_per_channel(
        torch.zeros(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint8
    )
    with DeterministicMode(), pytest.raises(RuntimeError, match="per-tensor"):
        x.resize_(9)
