"""Sums of what comes to a place, whichever family brings it, over shapes, strides and dtypes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.rules.index import launch
from detmode.rules.put.launch import put
from detmode.rules.scatter.launch import scatter
from detmode.rules.scatter_reduce.launch import scatter_reduce
from tests.shared import destinations, exact_sums, needs
from tests.shared.strategies import LAYOUTS, SEEDS, in_place_and_not, same_bits, tensors

pytestmark = needs.compiler

SUMS: dict[str, tuple[Any, Any, dict[str, list[Any]]]] = {
    "index_add": (launch.index_add, destinations.rows, {"alpha": [1, 1, 1, -1, 0.3, 3]}),
    "index_put": (partial(launch.index_put, accumulate=True), destinations.indexed, {}),
    "put": (partial(put, accumulate=True), destinations.placed, {}),
    "scatter": (scatter, destinations.scattered, {}),
    "scatter_reduce": (
        scatter_reduce,
        destinations.scattered,
        {"reduce": ["sum", "mean"], "include_self": [True, False]},
    ),
}
"""Functions that add, with what they take, and other arguments."""


@pytest.mark.parametrize("family", SUMS)
@given(data=st.data(), dtype=exact_sums.DTYPES, seed=SEEDS)
def test_sums_are_exact(family: str, data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """But for one rounding, a mean's but for two, in any schedule, in place and not."""
    function, calls, options = SUMS[family]
    call = data.draw(calls(tensors, dtype))
    how = {name: data.draw(st.sampled_from(values)) for name, values in options.items()}
    layout = data.draw(LAYOUTS)
    got = in_place_and_not(function, *call.arguments, **how, seed=seed, layout=layout)
    alpha, include_self = how.get("alpha", 1), how.get("include_self", True)
    addends = call.values if alpha == 1 else call.values * alpha
    mean = how.get("reduce") == "mean"
    exact_sums.assert_exact(
        got, call.arguments[0], call.to, addends, include_self=include_self, mean=mean
    )


NOTHING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add_": lambda x, index, rows: x.index_add_(0, index, rows),
    "index_copy_": lambda x, index, rows: x.index_copy_(0, index, rows),
    "index_reduce_": lambda x, index, rows: x.index_reduce_(0, index, rows, "prod"),
    "index_put_": lambda x, index, rows: x.index_put_((index,), rows),
    "accumulating": lambda x, index, rows: x.index_put_((index,), rows, accumulate=True),
    "broadcasting": lambda x, index, rows: x.index_put_((index,), x[0].clone(), accumulate=True),
    "put_": lambda x, index, rows: x.put_(index, rows[:, 0]),
    "put_ accumulating": lambda x, index, rows: x.put_(index, rows[:, 0], accumulate=True),
    "scatter_": lambda x, index, rows: x.scatter_(0, index[:, None], x.clone()),
    "scatter_add_": lambda x, index, rows: x.scatter_add_(0, index[:, None], x.clone()),
    "scatter_reduce_": lambda x, index, rows: x.scatter_reduce_(
        0, index[:, None], x.clone(), "mean", include_self=False
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_an_empty_index_changes_nothing(name: str) -> None:
    """Nor where the source or the values have elements: each keeps its bits, NaNs' too."""
    before = torch.tensor([[1.0, -0.0], [torch.nan, 2.0]])
    x, index = before.clone(), torch.zeros(0, dtype=torch.int64)
    with DeterministicMode(simulate="cuda") as mode:
        assert NOTHING[name](x, index, torch.zeros(0, 2)) is x
    assert same_bits(x, before)
    assert {record.action for record in mode.records} == {"substitute"}
