"""The backward of embeddings and of bags of maxima, over shapes, indices, layouts and dtypes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.cuda.rows.ways import Way
from detmode.rules.embedding import launch
from detmode.rules.embedding_bag import launch as bag
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.exact_sums import assert_exact
from tests.shared.strategies import FLOATS, LAYOUTS, SEEDS, in_schedules, tensors

pytestmark = needs.compiler

NOTHING = torch.zeros(0, dtype=torch.int64)
INTEGERS = st.sampled_from([torch.int64, torch.int32])
WAYS = st.sampled_from([None, Way.FEW, Way.SORTED, Way.SINGLY])
positions = st.one_of(
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.sampled_from([63, 64, 65, 300]), max_size=1),
)


@given(data=st.data(), dtype=FLOATS, scale=st.booleans())
def test_embedding_dense_backward(data: st.DataObject, dtype: torch.dtype, scale: bool) -> None:
    """Each row is the sum or mean of its positions, rounded once; the padding's row is zero."""
    draw, seed = data.draw, data.draw(SEEDS)
    shape, width = draw(positions), draw(st.sampled_from([0, 1, 2, 5, 16, 33]))
    num_weights = draw(st.sampled_from([1, 2, 7, 300]))
    padding_idx = draw(st.integers(-2, num_weights + 1))
    indices = Maker(dtype, seed=seed).integers(0, draw(st.integers(1, num_weights)), *shape)
    grad_output = draw(tensors([*shape, width], dtype))
    arguments = (draw(LAYOUTS)(indices).to(draw(INTEGERS)), num_weights, padding_idx, scale)
    got = in_schedules(lambda: launch.embedding_dense_backward(grad_output, *arguments), seed)
    assert got.shape == (num_weights, width)
    assert got.is_contiguous()
    kept = (indices != padding_idx).flatten()
    to = (indices.reshape(-1, 1) * width + torch.arange(width))[kept]
    grad = grad_output.reshape(math.prod(shape), width)[kept]
    zeros = torch.zeros(num_weights, width, dtype=dtype)
    assert_exact(got, zeros, to, grad, include_self=False, mean=scale)


def of_bags(grad: Tensor, bag_size: Tensor, rows: Tensor, num_weights: int, padding: int) -> Tensor:
    return bag.embedding_bag_dense_backward(
        grad, NOTHING, NOTHING, bag_size, rows, num_weights, False, 2, None, padding
    )


@given(
    data=st.data(),
    dtype=FLOATS,
    way=WAYS,
    # An empty bag as ATen's CUDA forward says it, as its CPU forward does, or none.
    empty=st.sampled_from(["marked", "counted", "none"]),
)
def test_bags_dense_backward(
    data: st.DataObject, dtype: torch.dtype, way: Way | None, empty: str
) -> None:
    """Each element is the sum of the bags that took it, rounded once, in any schedule."""
    draw, seed = data.draw, data.draw(SEEDS)
    bags, width = (
        draw(st.sampled_from([0, 1, 3, 64, 65, 150])),
        draw(st.sampled_from([0, 1, 2, 5, 33])),
    )
    num_weights = draw(st.sampled_from([1, 2, 7, 300]))
    m = Maker(dtype, seed=seed)
    rows = m.integers(0, draw(st.integers(1, num_weights)), bags, width)
    bag_size = m.integers(0 if empty == "counted" else 1, 4, bags)
    if empty == "marked":
        rows[m.integers(0, 3, bags) == 0] = -1
    padding_idx = draw(st.integers(-1, num_weights))
    grad = draw(tensors([bags, width], dtype))
    given_rows, given_size = draw(LAYOUTS)(rows).to(draw(INTEGERS)), bag_size.to(draw(INTEGERS))
    arguments = grad, given_size, given_rows, num_weights, padding_idx
    got = in_schedules(lambda: bag.add_bags(*arguments, way=way), seed)
    assert got.shape == (num_weights, width)
    assert got.is_contiguous()
    adds = (rows >= 0) & (rows != padding_idx) & (bag_size > 0).view(-1, 1)
    to, zeros = rows * width + torch.arange(width), torch.zeros(num_weights, width, dtype=dtype)
    assert_exact(got, zeros, to[adds], grad[adds], include_self=False)


def test_sparse_gradient_is_left_alone() -> None:
    """With ``sparse=True`` nothing is added, and nothing substituted."""
    weight = torch.randn(6, 5, requires_grad=True)
    with DeterministicMode(simulate="cuda") as mode:
        torch.nn.functional.embedding(torch.tensor([1, 1, 2]), weight, sparse=True).sum().backward()
    assert weight.grad.is_sparse
    assert "substitute" not in [record.action for record in mode.records]


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
def test_bags_that_are_empty(padding_idx: int | None, last: bool, integer: torch.dtype) -> None:
    """Through ``nn.EmbeddingBag`` with bags that are empty or hold the padding only."""
    weight = torch.randn(6, 5, dtype=torch.float64)
    indices = torch.tensor([0, 1, 2, 2, 2, 5, 1, 0, 5], dtype=integer)
    offsets = torch.tensor([0, 2, 2, 4, 9 if last else 7], dtype=integer)
    factor = torch.randn(4 if last else 5, 5, dtype=torch.float64)
    options: dict[str, Any] = {"padding_idx": padding_idx, "include_last_offset": last}

    def gradient() -> Tensor:
        module = torch.nn.EmbeddingBag(6, 5, mode="max", _weight=weight.clone(), **options)
        (module(indices, offsets) * factor).sum().backward()
        return module.weight.grad

    expected = gradient()
    with DeterministicMode(simulate="cuda") as mode:
        got = gradient()
    assert "substitute" in [record.action for record in mode.records]
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("position", [-1, 5, 2**32, 2**16])
@pytest.mark.parametrize("way", [None, Way.SORTED, Way.SINGLY])
def test_an_index_out_of_range(
    way: Way | None, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index out of range raises on the host; on a GPU the kernels trap. -1 is an empty bag.

    ``way``: of bags; None for an embedding.
    """
    of, indices = bag if way else launch, torch.tensor([[0, 1], [position, 0]])

    def run() -> Tensor:
        if way is None:
            return launch.embedding_dense_backward(torch.ones(2, 2, 4), indices, 5, -2, False)
        sizes = torch.ones(2, dtype=torch.int64)
        return bag.add_bags(torch.ones(2, 2), sizes, indices, 5, -2, way)

    if way and position == -1:
        assert run().sum() == 3
        return
    with pytest.raises(IndexError, match="out of bounds"):
        run()
    monkeypatch.setattr(of, "check_on_host", lambda *arguments, **wraps: None)
    with pytest.raises(host.DeviceAssert):
        run()


def test_what_does_not_go_together_is_rejected() -> None:
    """Calls that would read beyond a tensor on CUDA, or raise what ATen on the CPU does not."""
    rows, bag_size = torch.tensor([[0, 1], [4, 1], [0, 0]]), torch.tensor([2, 1, 0])
    grad = torch.randn(3, 2)
    for arguments in (
        (grad[:2], bag_size, rows),
        (grad, bag_size, rows[:2]),
        (grad, bag_size[:2], rows),
        (grad, bag_size.float(), rows),
    ):
        with pytest.raises(RuntimeError, match="Expected"):
            of_bags(*arguments, 5, -1)
    with pytest.raises(IndexError):
        of_bags(grad[0], bag_size, rows, 5, -1)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        of_bags(grad.int(), bag_size, rows, 5, -1)
    with pytest.raises(RuntimeError, match="per_sample_weights"):
        bag.embedding_bag_dense_backward(
            grad, NOTHING, NOTHING, bag_size, rows, 5, False, 2, torch.ones(3)
        )
