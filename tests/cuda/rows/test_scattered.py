"""Products and extrema of what comes to a place, over shapes, strides and dtypes."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detmode.cuda.rows.positions import result_of
from detmode.rules.index_reduce.launch import index_reduce, mean_of_integers
from detmode.rules.scatter.launch import scatter
from detmode.rules.scatter_reduce.launch import scatter_reduce
from tests.shared import destinations, exact_reductions, exact_sums, needs
from tests.shared.strategies import LAYOUTS, SEEDS, in_place_and_not, same_bits

pytestmark = needs.compiler

REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "index_reduce": (index_reduce, destinations.rows),
    "scatter_reduce": (scatter_reduce, destinations.scattered),
}


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
@pytest.mark.parametrize("op", REDUCTIONS)
@given(data=st.data(), dtype=exact_reductions.DTYPES, seed=SEEDS)
def test_reductions_are_exact(
    op: str, reduce: str, include_self: bool, data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """But for their roundings, in any schedule, in place and not."""
    function, calls = REDUCTIONS[op]
    call = data.draw(calls(exact_reductions.values, dtype))
    # Extrema of integers are ATen's own for scatter_reduce: their row of the table lets them pass.
    if function is scatter_reduce and not dtype.is_floating_point:
        reduce = "prod"
    arguments, how = (*call.arguments, reduce), {"include_self": include_self}
    got = in_place_and_not(function, *arguments, layout=data.draw(LAYOUTS), seed=seed, **how)
    exact_reductions.assert_reduced(got, arguments[0], call.to, call.values, reduce, **how)
    if function is index_reduce:
        assert got.is_contiguous()
    elif reduce == "prod" and include_self:
        assert same_bits(scatter(*call.arguments, "multiply"), got)


@pytest.mark.parametrize("include_self", [True, False])
@given(data=st.data(), dtype=exact_reductions.DTYPES, seed=SEEDS)
def test_means_by_index(
    include_self: bool, data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """The same of ``index_reduce``'s means; those of integers are ATen's, whose are as exact."""
    call = data.draw(destinations.rows(exact_reductions.values, dtype))
    function = index_reduce if dtype.is_floating_point else mean_of_integers
    arguments, how = (*call.arguments, "mean"), {"include_self": include_self}
    got = in_place_and_not(function, *arguments, layout=data.draw(LAYOUTS), seed=seed, **how)
    assert got.is_contiguous()
    if dtype.is_floating_point:
        exact_sums.assert_exact(got, arguments[0], call.to, call.values, mean=True, **how)
    elif call.values.numel():
        assert torch.equal(got, torch.ops.aten.index_reduce(*arguments, **how))


def test_inputs_in_the_memory_of_the_result_are_copied() -> None:
    """A result that may overwrite an input before it is read gets a copy; a new one does not."""
    memory, index = torch.arange(8.0), torch.tensor([0, 1])
    out, source = memory[:4], memory[2:6]
    result, same_index, copy = result_of(out, out, index, source)
    assert result is out
    assert same_index is index
    assert torch.equal(copy, source)
    assert copy.untyped_storage().data_ptr() != memory.data_ptr()
    new, *inputs = result_of(out, None, index, source)
    assert torch.equal(new, out)
    assert new.untyped_storage().data_ptr() != memory.data_ptr()
    assert inputs[0] is index
    assert inputs[1] is source
