"""Products, means and extrema by index through PyTorch's own functions, forward and backward."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from detmode import DeterministicMode
from tests.shared import needs

pytestmark = needs.compiler

Reduction = Callable[[Tensor, Tensor], Tensor]
GENERATOR = torch.Generator().manual_seed(0)
INDEX = torch.randint(0, 5, (30, 4), generator=GENERATOR)
SELF = 0.5 + torch.rand(6, 4, generator=GENERATOR, dtype=torch.float64)
SOURCE = 0.5 + torch.rand(30, 4, generator=GENERATOR, dtype=torch.float64)
# One zero a column: with two in one product PyTorch has no double backward.
ZEROS = SOURCE.clone()
ZEROS[range(4), range(4)] = 0


def derivatives(function: Reduction, self: Tensor, source: Tensor) -> list[Tensor]:
    """The result, its gradients, and theirs."""
    inputs = [self.clone().requires_grad_(), source.clone().requires_grad_()]
    result = function(*inputs)
    first = torch.autograd.grad(result.square().sum(), inputs, create_graph=True)
    total = torch.stack([each.square().sum() for each in first]).sum()
    return [result, *first, *torch.autograd.grad(total, inputs)]


@pytest.mark.parametrize("source", [SOURCE, ZEROS], ids=["nonzero", "zeros"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(
    ("operator", "reduce"),
    [
        *(("scatter_reduce", reduce) for reduce in ("sum", "prod", "mean", "amax", "amin")),
        *(("index_reduce", reduce) for reduce in ("prod", "mean", "amax", "amin")),
    ],
)
def test_derivatives(operator: str, reduce: str, include_self: bool, source: Tensor) -> None:
    """Backward and double backward run in strict mode and give what PyTorch gives."""
    index = INDEX if operator == "scatter_reduce" else INDEX[:, 0]

    def function(self: Tensor, source: Tensor) -> Tensor:
        return getattr(self, operator)(0, index, source, reduce, include_self=include_self)

    expected = derivatives(function, SELF, source)
    with DeterministicMode(simulate="cuda", schedule_seed=1) as mode:
        got = derivatives(function, SELF, source)
    assert {record.action for record in mode.records} == {"substitute"}
    for mine, theirs in zip(got, expected):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scatter": lambda x, index: x.scatter_(0, index, torch.full_like(x, 3), reduce="multiply"),
    "scatter_reduce": lambda x, index: x.scatter_reduce_(0, index, torch.full_like(x, 3), "prod"),
    "index_reduce": lambda x, index: x.index_reduce_(0, index, torch.full_like(x, 3), "prod"),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_indices_in_the_memory_that_is_written(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Indices that the call itself overwrites are refused as by ATen; interleaved ones are read."""
    start = torch.randint(0, 300, (600,), generator=GENERATOR)
    whole, copy_if_overlapping = start[:300].clone(), start.clone()
    expected = product(copy_if_overlapping[::2], start[1::2].clone())
    with DeterministicMode(simulate="cuda", schedule_seed=1):
        with pytest.raises(RuntimeError, match="single memory location"):
            product(whole, whole)
        given = product(start[::2], start[1::2])
    assert torch.equal(given, expected)
