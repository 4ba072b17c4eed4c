"""The backward of embeddings on the host runner, over shapes, indices, layouts and dtypes."""

from __future__ import annotations

import math
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
from detmode.rules.embedding import launch
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

positions = st.one_of(
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.sampled_from([63, 64, 65, 300]), max_size=1),
)


@given(
    data=st.data(),
    shape=positions,
    width=st.sampled_from([0, 1, 2, 5, 16, 33]),
    dtype=st.sampled_from(FLOATING),
    sorts=WAYS,
    seed=SEEDS,
    scale=st.booleans(),
)
def test_embedding_dense_backward(
    data: st.DataObject,
    shape: list[int],
    width: int,
    dtype: torch.dtype,
    sorts: bool | None,
    seed: int,
    scale: bool,
) -> None:
    """Each row is the sum or mean of its positions, rounded once; the padding's row is zero."""
    num_weights = data.draw(st.sampled_from([1, 2, 7, 300]))
    padding_idx = data.draw(st.integers(-2, num_weights + 1))
    spread = data.draw(st.integers(1, num_weights))
    indices = Maker(dtype, seed=seed).integers(0, spread, *shape)
    grad_output = data.draw(tensors([*shape, width], dtype))
    given_indices = laid_out(indices, data.draw(st.sampled_from(LAYOUTS[:3])))
    given_indices = given_indices.to(data.draw(st.sampled_from([torch.int64, torch.int32])))
    choice = shapes.sorts_rows if sorts is None else lambda *args: sorts
    with mock.patch.object(sums, "sorts_rows", choice):
        got = assert_same_bits_in_any_schedule(
            lambda: launch.embedding_dense_backward(
                grad_output, given_indices, num_weights, padding_idx, scale
            ),
            seed,
        )
    assert got.shape == (num_weights, width)
    assert got.is_contiguous()
    kept = (indices != padding_idx).flatten()
    destinations = indices.reshape(-1, 1) * width + torch.arange(width)
    assert_exact(
        got,
        torch.zeros(num_weights, width, dtype=dtype),
        destinations[kept],
        grad_output.reshape(math.prod(shape), width)[kept],
        include_self=False,
        mean=scale,
    )


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_module(scale: bool, padding_idx: int | None, max_norm: float | None) -> None:
    """Through ``nn.Embedding``, whose negative padding counts from the end: ATen's gradient."""
    weight = torch.randn(6, 5, dtype=torch.float64)
    indices = torch.randint(0, 6, (4, 30))
    factor = torch.randn(4, 30, 5, dtype=torch.float64)

    def gradient() -> torch.Tensor:
        module = torch.nn.Embedding(
            6,
            5,
            padding_idx=padding_idx,
            max_norm=max_norm,
            scale_grad_by_freq=scale,
            _weight=weight.clone(),
        )
        (module(indices) * factor).sum().backward()
        assert module.weight.grad is not None
        return module.weight.grad

    expected = gradient()
    with DeterministicMode(simulate="cuda") as mode:
        got = gradient()
    assert "substitute" in [record.action for record in mode.records]
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_sparse_gradient_is_left_alone() -> None:
    """With ``sparse=True`` nothing is added, and nothing substituted."""
    weight = torch.randn(6, 5, requires_grad=True)
    with DeterministicMode(simulate="cuda") as mode:
        torch.nn.functional.embedding(torch.tensor([1, 1, 2]), weight, sparse=True).sum().backward()
    assert weight.grad is not None
    assert weight.grad.is_sparse
    assert "substitute" not in [record.action for record in mode.records]


def test_out_variant() -> None:
    """``embedding_dense_backward.out`` writes what the functional operator returns."""
    grad_output, indices = torch.randn(9, 4), torch.randint(0, 5, (9,))
    arguments = (grad_output, indices, 5, -1, False)
    out = torch.empty(5, 4)
    with DeterministicMode(simulate="cuda"):
        expected = torch.ops.aten.embedding_dense_backward(*arguments)
        assert torch.ops.aten.embedding_dense_backward.out(*arguments, out=out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("position", [-1, 5, 2**32, 2**16])
@pytest.mark.parametrize("sorts", [True, False])
def test_an_index_out_of_range(position: int, sorts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index out of range raises on the host; on a GPU the kernels trap."""
    monkeypatch.setattr(sums, "sorts_rows", lambda *args: sorts)
    grad_output, indices = torch.ones(3, 4), torch.tensor([0, position, 2])
    with pytest.raises(IndexError, match="out of bounds"):
        launch.embedding_dense_backward(grad_output, indices, 5, -1, False)
    monkeypatch.setattr(launch, "check_on_host", lambda *args: None)
    with pytest.raises(host.DeviceAssert):
        launch.embedding_dense_backward(grad_output, indices, 5, -1, False)
