"""The backward of ``EmbeddingBag(mode="max")`` on the host runner: bags, layouts, dtypes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from exact_sums import (
    LAYOUTS,
    SEEDS,
    WAYS,
    assert_exact,
    assert_same_bits_in_any_schedule,
    laid_out,
    tensors,
)
from hypothesis import given
from hypothesis import strategies as st

from detmode import DeterministicMode
from detmode.cuda import host, unavailable
from detmode.cuda.rows import shapes, sums
from detmode.rules.embedding_bag import launch
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

NOTHING = torch.zeros(0, dtype=torch.int64)


def dense(
    grad: torch.Tensor, bag_size: torch.Tensor, rows: torch.Tensor, num_weights: int, padding: int
) -> torch.Tensor:
    return launch.embedding_bag_dense_backward(
        grad, NOTHING, NOTHING, bag_size, rows, num_weights, False, 2, None, padding
    )


@given(
    data=st.data(),
    bags=st.sampled_from([0, 1, 3, 64, 65, 150]),
    width=st.sampled_from([0, 1, 2, 5, 33]),
    num_weights=st.sampled_from([1, 2, 7, 300]),
    dtype=st.sampled_from(FLOATING),
    sorts=WAYS,
    seed=SEEDS,
    # An empty bag as ATen's CUDA forward says it, as its CPU forward does, or none.
    empty=st.sampled_from(["marked", "counted", "none"]),
)
def test_dense_backward(
    data: st.DataObject,
    bags: int,
    width: int,
    num_weights: int,
    dtype: torch.dtype,
    sorts: bool | None,
    seed: int,
    empty: str,
) -> None:
    """Each element is the sum of the bags that took it, rounded once, in any schedule."""
    m = Maker(dtype, seed=seed)
    rows = m.integers(0, data.draw(st.integers(1, num_weights)), bags, width)
    bag_size = m.integers(0 if empty == "counted" else 1, 4, bags)
    if empty == "marked":
        rows[m.integers(0, 3, bags) == 0] = -1
    padding_idx = data.draw(st.integers(-1, num_weights))
    grad = data.draw(tensors([bags, width], dtype))
    given_rows = laid_out(rows, data.draw(st.sampled_from(LAYOUTS[:3])))
    integer = data.draw(st.sampled_from([torch.int64, torch.int32]))
    given_size = bag_size.to(data.draw(st.sampled_from([torch.int64, torch.int32])))
    choice = shapes.sorts_rows if sorts is None else lambda *args: sorts
    with mock.patch.object(sums, "sorts_rows", choice):
        got = assert_same_bits_in_any_schedule(
            lambda: dense(grad, given_size, given_rows.to(integer), num_weights, padding_idx), seed
        )
    assert got.shape == (num_weights, width)
    assert got.is_contiguous()
    adds = (rows >= 0) & (rows != padding_idx) & (bag_size > 0).view(-1, 1)
    assert_exact(
        got,
        torch.zeros(num_weights, width, dtype=dtype),
        (rows * width + torch.arange(width))[adds],
        grad[adds],
        include_self=False,
    )


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
def test_module(padding_idx: int | None, last: bool, integer: torch.dtype) -> None:
    """Through ``nn.EmbeddingBag`` with bags that are empty or hold the padding only."""
    weight = torch.randn(6, 5, dtype=torch.float64)
    indices = torch.tensor([0, 1, 2, 2, 2, 5, 1, 0, 5], dtype=integer)
    offsets = torch.tensor([0, 2, 2, 4, 9 if last else 7], dtype=integer)
    factor = torch.randn(4 if last else 5, 5, dtype=torch.float64)

    def gradient() -> torch.Tensor:
        module = torch.nn.EmbeddingBag(
            6,
            5,
            mode="max",
            padding_idx=padding_idx,
            include_last_offset=last,
            _weight=weight.clone(),
        )
        (module(indices, offsets) * factor).sum().backward()
        assert module.weight.grad is not None
        return module.weight.grad

    expected = gradient()
    with DeterministicMode(simulate="cuda") as mode:
        got = gradient()
    assert "substitute" in [record.action for record in mode.records]
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_bags_of_one_length() -> None:
    """Two-dimensional indices need no offsets: each row is a bag."""
    weight, indices = torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 6, (8, 3))
    factor = torch.randn(8, 5, dtype=torch.float64)

    def gradient() -> torch.Tensor:
        leaf = weight.clone().requires_grad_()
        (torch.nn.functional.embedding_bag(indices, leaf, mode="max") * factor).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    expected = gradient()
    with DeterministicMode(simulate="cuda"):
        torch.testing.assert_close(gradient(), expected, rtol=1e-13, atol=1e-13)


def backward_arguments() -> tuple[Any, ...]:
    rows, bag_size = torch.tensor([[0, 1], [4, 1], [0, 0]]), torch.tensor([2, 1, 0])
    grad = torch.randn(3, 2)
    return grad, NOTHING, NOTHING, bag_size, rows, 5, False, 2, None


def test_out_variant() -> None:
    """``_embedding_bag_dense_backward.out`` writes what the functional operator returns."""
    arguments, out = backward_arguments(), torch.empty(5, 2)
    with DeterministicMode(simulate="cuda") as mode:
        expected = torch.ops.aten._embedding_bag_dense_backward(*arguments)
        assert torch.ops.aten._embedding_bag_dense_backward.out(*arguments, out=out) is out
    assert {record.action for record in mode.records} == {"substitute"}
    assert torch.equal(out, expected)


@pytest.mark.parametrize("row", [5, 2**32])
@pytest.mark.parametrize("sorts", [True, False])
def test_a_row_out_of_range(row: int, sorts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row out of range raises on the host; on a GPU the kernels trap."""
    monkeypatch.setattr(sums, "sorts_rows", lambda *args: sorts)
    grad, bag_size = torch.ones(2, 2), torch.ones(2, dtype=torch.int64)
    rows = torch.tensor([[0, 1], [row, 0]])
    with pytest.raises(IndexError, match="out of bounds"):
        dense(grad, bag_size, rows, 5, -1)
    monkeypatch.setattr(launch, "check_on_host", lambda *args: None)
    with pytest.raises(host.DeviceAssert):
        dense(grad, bag_size, rows, 5, -1)


def test_what_does_not_go_together_is_rejected() -> None:
    """Where ATen on CUDA would read beyond a tensor, or raises what ATen on the CPU does not."""
    grad, *_, bag_size, rows, _, _, _, _ = backward_arguments()
    for arguments in (
        (grad[:2], bag_size, rows),
        (grad, bag_size, rows[:2]),
        (grad, bag_size[:2], rows),
        (grad, bag_size.float(), rows),
    ):
        with pytest.raises(RuntimeError, match="Expected"):
            dense(*arguments, 5, -1)
    with pytest.raises(IndexError):
        dense(grad[0], bag_size, rows, 5, -1)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        dense(grad.int(), bag_size, rows, 5, -1)
    with pytest.raises(RuntimeError, match="per_sample_weights"):
        launch.embedding_bag_dense_backward(
            grad, NOTHING, NOTHING, bag_size, rows, 5, False, 2, torch.ones(3)
        )
