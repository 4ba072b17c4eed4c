"""Products of a sparse matrix and a dense one, over layouts, sizes, factors and schedules."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode, Substitute, default_rules
from detmode.rules.matmul import launch
from detmode.rules.sparse.launch import sparse_addmm
from detmode.table.inputs import sparse_matrix
from detmode.table.samples import Maker
from detmode.verify.cases import stored
from tests.shared import exact_sums, needs
from tests.shared.strategies import COUNTS, LAYOUTS, SEEDS, SIZES, in_schedules

pytestmark = needs.compiler

MATRICES = ("coo", "coalesced", "csr", "csc", "csr_int32")
FACTORS = st.sampled_from([1, 0, -2, 0.5])


def wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128).to_dense()


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    return (exact if dtype.is_complex else exact.real).to(dtype)


@st.composite
def matrices(draw: st.DrawFn, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
    """A sparse matrix of small integers; some rows have most of the entries."""
    entries = draw(st.one_of(COUNTS, st.sampled_from([65, 300]))) if rows and columns else 0
    make, spread = Maker(dtype, seed=draw(SEEDS)), draw(st.sampled_from([1, min(2, rows), rows]))
    matrix = sparse_matrix(make, rows, columns, entries, draw(st.sampled_from(MATRICES)), spread)
    stored(matrix).copy_(make.integers(-3, 4, len(stored(matrix))))
    return matrix


@given(data=st.data(), dtype=exact_sums.DTYPES, seed=SEEDS)
def test_products(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """Integers are multiplied exactly and rounded once, either factor sparse, in any schedule."""
    m, k, n = (data.draw(SIZES) for _ in range(3))
    alpha, beta, make = data.draw(FACTORS), data.draw(FACTORS), Maker(dtype, seed=seed)

    def dense(*shape: int) -> Tensor:
        return data.draw(LAYOUTS)(make.integers(-3, 4, *shape).to(dtype))

    sparse, other, self = data.draw(matrices(dtype, m, k)), dense(k, n), dense(m, n)
    product = wide(sparse) @ wide(other)
    both = beta * wide(self) + alpha * product
    calls: list[tuple[Callable[[], Tensor], Tensor]] = [
        (lambda: launch.mm(sparse, other), product),
        (lambda: launch.mm(other.t(), sparse.t()), product.t()),
        (lambda: launch.addmm(self, sparse, other, beta=beta, alpha=alpha), both),
        (lambda: sparse_addmm(self, sparse, other, beta=beta, alpha=alpha), both),
    ]
    if n:
        own, vector = self[:, 0], other[:, 0]
        calls.append((lambda: launch.mv(sparse, vector), product[:, 0]))
    if n and sparse.layout is not torch.sparse_coo:
        calls += (
            (lambda: launch.addmv(own, sparse, vector, beta=beta, alpha=alpha), both[:, 0]),
            (
                lambda: launch.addmm(self.t(), other.t(), sparse.t(), beta=beta, alpha=alpha),
                both.t(),
            ),
        )
    for call, exact in calls:
        assert torch.equal(in_schedules(call, seed), rounded(exact, dtype))


@pytest.mark.parametrize("layout", ["coo", "coalesced", "csr", "csc"])
@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_gradients(layout: str, intercept: str) -> None:
    """Forward and backward of products are substituted, and the gradients are those of ATen."""
    make = Maker(torch.float64)
    matrix, dense = sparse_matrix(make, 9, 7, 40, layout), make.normal(7, 3)

    def gradients() -> list[Tensor]:
        second = dense.clone().requires_grad_()
        products = [torch.sparse.mm(matrix, second), matrix @ second, matrix @ second[:, 0]]
        torch.cat([each.flatten() for each in products]).square().sum().backward()
        assert second.grad is not None
        return [*(each.detach() for each in products), second.grad]

    # Nothing but the substitutes asks for the calls to be intercepted.
    rules = default_rules().only(lambda row: isinstance(row.rule.action, Substitute))
    options = {"strict": True, "intercept": intercept, "rules": rules}
    with DeterministicMode(simulate="cuda", **options) as mode:
        found = gradients()
    torch.testing.assert_close(found, gradients())
    substituted = {
        each.overload: each.count for each in mode.records if each.action == "substitute"
    }
    wanted = {"_sparse_addmm": 1, "mm": 3, "mv": 2}
    assert substituted == {f"aten::{name}.default": count for name, count in wanted.items()}


def conjugate(values: Tensor) -> Tensor:
    """Values whose memory holds other numbers: their conjugates."""
    return values.conj().resolve_conj().conj()


def negative(values: Tensor) -> Tensor:
    """Values whose memory holds other numbers: their negatives."""
    return torch.complex(torch.zeros_like(values), -values).conj().imag


@pytest.mark.parametrize(
    ("lazily", "dtype"), [(conjugate, torch.complex64), (negative, torch.float32)]
)
def test_values_whose_memory_holds_others(
    lazily: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """The dispatcher leaves conjugate factors to the kernels, and looks into no sparse matrix."""
    make = Maker(dtype)
    matrix, dense, self = make.normal(3, 4).to_sparse_csr(), make.normal(4, 5), make.normal(3, 5)
    values = lazily(matrix.values().clone())
    places = matrix.crow_indices(), matrix.col_indices()
    lazy = torch.sparse_csr_tensor(*places, values, matrix.shape, check_invariants=True)
    calls: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
        lambda sparse, dense, self: torch.mm(sparse, dense),
        lambda sparse, dense, self: torch.mm(dense.t(), sparse.t()),
        lambda sparse, dense, self: torch.mv(sparse, dense[:, 0].contiguous()),
        lambda sparse, dense, self: torch.addmm(self, sparse, dense),
        lambda sparse, dense, self: torch.addmv(self[:, 0], sparse, dense[:, 0]),
        lambda sparse, dense, self: torch.sparse.addmm(self, sparse.to_sparse_coo(), dense),
    ]
    for call in calls:
        with DeterministicMode(simulate="cuda") as mode:
            expected = call(matrix, dense, self)
            assert torch.equal(call(lazy, dense, self), expected)
            assert torch.equal(call(matrix, lazily(dense), lazily(self)), expected)
        assert "substitute" in {each.action for each in mode.records}


def test_products_of_doubles_keep_what_rounding_takes() -> None:
    """(1 + e)(1 - e) - 1 is -e^2, which is lost where each product is rounded."""
    e = 2.0**-30
    matrix = torch.tensor([[1 + e, -1.0]], dtype=torch.float64).to_sparse()
    found = launch.mm(matrix, torch.tensor([[1 - e], [1.0]], dtype=torch.float64))
    assert found.item() == -(e**2)
