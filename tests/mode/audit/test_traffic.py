"""The floor of a call: every input read once, every output written once."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.mode.audit.traffic import bytes_moved, size_of


class Floors(TorchDispatchMode):
    """The floor of each call, by operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.found.append((func._schema.name, bytes_moved(func, args, kwargs or {}, result)))
        return result

    def of(self, function):
        self.found = []
        with self:
            function()
        return self.found


@pytest.fixture(params=["cpu", "meta"])
def device(request):
    return request.param


def matrix(device, *shape):
    return torch.ones(shape or (4, 6), device=device)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(lambda x, row: x + row, 96 + 24 + 96, id="functional"),
        pytest.param(lambda x, row: x.add_(row), 96 + 24 + 96, id="in_place"),
        pytest.param(lambda x, row: torch.neg(x, out=torch.empty_like(x)), 96 + 96, id="out"),
        pytest.param(lambda x, row: torch.cat([x, x]), 96 + 96 + 192, id="list_in"),
        pytest.param(lambda x, row: x.max(0), 96 + 24 + 48, id="two_results"),
        pytest.param(lambda x, row: torch._foreach_neg_([x, row]), 2 * (96 + 24), id="foreach"),
        pytest.param(lambda x, row: x.copy_(row), 24 + 96, id="copy_does_not_read"),
        pytest.param(lambda x, row: x.zero_(), 96, id="zero_does_not_read"),
        pytest.param(lambda x, row: x.uniform_(), 96, id="random_does_not_read"),
        pytest.param(lambda x, row: torch.zeros_like(x), 96, id="like_does_not_read"),
        pytest.param(lambda x, row: x.new_ones(5), 20, id="new_does_not_read"),
        pytest.param(lambda x, row: row.expand(4, 6).clone(), 24 + 96, id="expanded"),
        pytest.param(lambda x, row: x[:, :3].neg(), 48 + 48, id="part"),
        pytest.param(lambda x, row: x.bool(), 96 + 24, id="dtypes"),
        pytest.param(lambda x, row: x.new_empty(0, 6).neg(), 0, id="no_elements"),
        # Views, allocations and questions about shapes move nothing.
        pytest.param(lambda x, row: x.t(), 0, id="t"),
        pytest.param(lambda x, row: x.view(6, 4), 0, id="view"),
        pytest.param(lambda x, row: x[1:, 2], 0, id="slice"),
        pytest.param(lambda x, row: x.expand(3, 4, 6), 0, id="expand"),
        pytest.param(lambda x, row: x.detach(), 0, id="detach"),
        pytest.param(lambda x, row: x.unbind(), 0, id="list_of_views"),
        pytest.param(lambda x, row: x.t_(), 0, id="inplace_view"),
        pytest.param(lambda x, row: torch.ops.aten._unsafe_view(x, [24]), 0, id="unsafe_view"),
        pytest.param(lambda x, row: torch.empty_like(x), 0, id="empty_like"),
        pytest.param(lambda x, row: x.new_empty(9), 0, id="new_empty"),
        pytest.param(lambda x, row: x.resize_(2, 3), 0, id="resize"),
        pytest.param(lambda x, row: x.is_same_size(x), 0, id="question"),
    ],
)
def test_bytes_by_hand(call, expected, device):
    """The bytes are those that one counts by hand, on meta tensors by their shapes."""
    x, row = matrix(device), matrix(device, 6)
    calls = Floors().of(lambda: call(x, row))
    assert calls
    assert sum(found for _, found in calls) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(lambda t, i, r: t[i], 24 + 72 + 72, id="index"),
        pytest.param(lambda t, i, r: t.index_select(0, i), 24 + 72 + 72, id="index_select"),
        pytest.param(lambda t, i, r: t.index_add_(0, i, r), 24 + 72 + 2 * 72, id="index_add_"),
        pytest.param(lambda t, i, r: t.index_copy_(0, i, r), 24 + 72 + 2 * 72, id="index_copy_"),
        pytest.param(
            lambda t, i, r: t.index_add(0, i, r), 24 + 72 + 2 * 24_000, id="index_add_copies"
        ),
    ],
)
def test_what_chooses_rows(call, expected, device):
    """An operator that chooses rows of a large tensor counts these, not the whole."""
    table, index = matrix(device, 1000, 6), torch.arange(3, device=device)
    rows = matrix(device, 3, 6)
    calls = Floors().of(lambda: call(table, index, rows))
    assert sum(found for _, found in calls) == expected


def test_reading_a_number():
    """``item`` reads the element."""
    assert Floors().of(lambda: torch.ones(()).item())[-1] == ("aten::_local_scalar_dense", 4)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (torch.sparse_coo, 2 * 2 * 8 + 2 * 4),
        (torch.sparse_csr, 5 * 8 + 2 * 8 + 2 * 4),
        (torch.sparse_csc, 4 * 8 + 2 * 8 + 2 * 4),
    ],
)
def test_sparse(layout, expected):
    """A sparse tensor counts its indices and values, not its shape."""
    dense = torch.zeros(4, 3)
    dense[0, 1] = dense[2, 2] = 1
    assert size_of(dense.to_sparse(layout=layout)) == expected


def test_nested():
    """A nested tensor counts the elements of its parts."""
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    assert size_of(nested) == 18 * 4
