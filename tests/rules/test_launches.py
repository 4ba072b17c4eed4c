"""The launches of a call, which cost more than the work of a small one."""

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.profiler import profile

from detmode import DeterministicMode
from detmode.rules.embedding_bag.launch import embedding_bag_dense_backward
from detmode.rules.index.launch import index_add, index_put
from detmode.rules.index_copy.launch import index_copy
from detmode.rules.matmul.launch import mm
from detmode.rules.put.launch import put
from detmode.table.inputs import sparse_matrix
from detmode.table.samples import Maker
from detmode.verify.cases import Case, call
from tests.shared import needs
from tests.shared.selection import Group, cases, check_each, grouped, once, todays_forms

launching = sys.modules["detmode.cuda.launch"]  # the function of this name hides its module

ONCE = grouped(once(cases()))
X, ROWS = torch.zeros(500), torch.zeros(40, 256, dtype=torch.bfloat16)
NONE, ONES = torch.empty(0, dtype=torch.int64), torch.ones(300, dtype=torch.int64)


def places(n: int, size: int = 30) -> torch.Tensor:
    """Positions with duplicates, some counted from the end."""
    return torch.arange(n) % size - size // 2


CALLS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "elements": (
        lambda: put(X, places(200), torch.ones(200)),
        ["assign_mark", "assign_elect_marked", "assign_last<int32_t>"],
    ),
    "narrow_elements": (
        lambda: put(X.half(), places(200), torch.ones(200).half()),
        ["assign_elect<int32_t>", "assign_owned<int16_t, int32_t>"],
    ),
    "sums_of_elements": (
        lambda: put(X[:50], places(200), torch.ones(200), accumulate=True),
        [f"bins_{step}<float>" for step in ("extent", "begin", "add", "finish")],
    ),
    "few_elements": (lambda: put(X, places(20, 6), torch.ones(20)), ["assign_few<int32_t>"]),
    "few_rows": (
        lambda: index_copy(ROWS, 0, places(9, 4) % 4, ROWS[:9]),
        ["assign_few<complex<double>>"],
    ),
    "few_rows_of_two_indices": (
        lambda: index_put(X.view(50, 10), [places(9), places(9, 4)], torch.ones(9)),
        ["index_put_linearize", "index_put_linearize", "assign_few<int32_t>"],
    ),
    "rows_from_the_end": (
        lambda: index_put(ROWS, [places(100)], ROWS.repeat(3, 1)[:100], accumulate=True),
        [
            "sort_tiles<int32_t>",
            "wide_rows<row_sum<bfloat16>, 8, int32_t>",
            "sorted_carries<row_sum<bfloat16>, 4, int32_t, true>",
        ],
    ),
    "bags": (
        lambda: embedding_bag_dense_backward(
            torch.ones(300, 4), NONE, NONE, ONES, ONES.view(-1, 1).expand(-1, 4), 9, False, 2, None
        ),
        [*["embedding_bag_sums<float, int64_t>"] * 2, "finish_sums<float>"],
    ),
    "sparse_product": (
        lambda: mm(sparse_matrix(Maker(torch.float32), 9, 40, 300, "csr"), torch.ones(40, 6)),
        ["sparse_rows<float, 2, int64_t>", "sorted_carries<row_sum<float>, 2, int64_t>"],
    ),
    "wide_rows": (
        lambda: index_add(ROWS, 0, places(100) % 40, ROWS.repeat(3, 1)[:100]),
        [
            "sort_tiles<int32_t>",
            "wide_rows<row_sum<bfloat16>, 8, int32_t>",
            "sorted_carries<row_sum<bfloat16>, 4, int32_t, true>",
        ],
    ),
}


@needs.compiler
@pytest.mark.parametrize("name", CALLS)
def test_launches(name: str) -> None:
    """So many launches beside PyTorch's fills, copies and sorts, and no more."""
    call, expected = CALLS[name]
    with patch.object(launching, "_start", wraps=launching._start) as start:
        call()
    assert [given.args[0][1] for given in start.call_args_list] == expected


# Operators of PyTorch's that a launcher calls, and that allocate by themselves.
OF_PYTORCH = {
    "aten::aminmax",  # an index on the CPU is checked before the launch
    "aten::index",  # the same
    "aten::nonzero",  # a mask becomes an index
    "aten::masked_fill",  # of values
}
SPARSE = {"matmul", "sparse"}
"""Families whose operators convert the layout of a sparse matrix, by PyTorch's own."""
DELIVERS = "aten::adaptive_avg_pool3d_backward.grad_input"
"""An operator whose result PyTorch copies to the tensor that is given for it."""


@needs.compiler
@pytest.mark.parametrize("group", todays_forms(g for g in ONCE if g.family not in SPARSE), ids=str)
def test_memory_is_not_filled(group: Group) -> None:
    """PyTorch's flag has no memory filled that a launcher writes, or copies a tensor to."""

    def check(case: Case) -> None:
        if case.sample.op == DELIVERS:
            return
        arguments = case.sample.arguments(case.dtype, "cpu")
        with DeterministicMode(simulate="cuda"), profile() as profiler:
            call(case.sample, arguments)
        fills = [above(event) for event in profiler.events() if event.name == "aten::fill_"]
        assert all(each[0] not in ALLOCATE or OF_PYTORCH & set(each) for each in fills), fills

    check_each(group, check)


ALLOCATE = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::resize_"}


def above(event: Any) -> list[str]:
    """The operators that an event happened in, innermost first."""
    caller = event.cpu_parent
    return [] if caller is None else [caller.name, *above(caller)]
