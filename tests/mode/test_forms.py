"""A plan of a call holds for calls of its form alone: other arguments are other calls."""

from functools import partial

import pytest
import torch

import detmode
from detmode import Refuse, RuleTable
from detmode.bits.difference import same_bits
from detmode.mode import plans
from detmode.table.conditions import on, requires_grad
from tests.mode.planned import added, example, expected, launcher_of_index_add, simulated
from tests.shared import needs
from tests.shared.programs import rule
from tests.shared.sparse_matrices import sparse_matrices

pytestmark = [needs.compiler, pytest.mark.usefixtures("without_player")]


def test_other_arguments_are_other_calls(played):
    """Numbers, dtypes, strides, alignment and gradients are told apart, -0.0 from 0.0 included."""
    x, index, source = example()
    shifted = torch.empty(16)[1:].view(5, 3).copy_(x)
    calls = [
        lambda: added(x, index, source),
        lambda: added(x, index, source, alpha=2),
        lambda: added(x, index, source, alpha=2.5),
        lambda: added(x, index, source * 0 + 1, alpha=0.0),
        lambda: added(x * -0.0, index, source * 0 + 1, alpha=-0.0),
        lambda: added(x.double(), index, source.double()),
        lambda: added(x, index.int(), source),
        lambda: added(x.t().contiguous().t(), index, source),
        lambda: added(x, index, source.t().contiguous().t()),
        lambda: added(shifted, index, source),
        lambda: added(x[:, :2], index, source[:, :2]),
        lambda: added(x.clone().requires_grad_(), index, source),
    ]
    wanted = [expected(make) for make in calls]
    with simulated():
        for _ in range(4):
            for make, result in zip(calls, wanted):
                got = make()
                assert same_bits(got.detach(), result.detach())
                assert got.requires_grad == result.requires_grad
    assert played.count >= len(calls)


def test_equal_numbers_are_not_one_form(played):
    """0.0 and -0.0 are equal, and what is added with them is not."""
    _, index, source = example()

    def sums(alpha):
        return added(torch.full((5, 3), -0.0), index, source.abs(), alpha=alpha)

    for alpha in (0.0, -0.0):
        wanted = expected(partial(sums, alpha))
        with simulated():
            for _ in range(4):
                assert same_bits(sums(alpha), wanted)
    assert played.count == 4


def test_sparse_matrices_are_told_apart(played):
    """By layout, entries, order, dtypes, strides and alignment of what they consist of."""
    matrices, dense = sparse_matrices(), torch.arange(12.0).view(4, 3)

    def multiplied(matrix, factor):
        """All products are made from one line."""
        return (matrix @ dense.to(matrix.dtype).mul(factor)).detach()

    wanted = {name: expected(partial(multiplied, matrix, 3)) for name, matrix in matrices.items()}
    assert len({tuple(result.flatten().tolist()) for result in wanted.values()}) == 6
    for intercept in ("all", "listed"):
        with simulated(intercept=intercept):
            for factor in (1, 2, 4, 3):
                before = played.count
                got = {name: multiplied(matrix, factor) for name, matrix in matrices.items()}
            assert played.count == before + len(matrices)
        assert all(same_bits(got[name], wanted[name]) for name in matrices)


def test_inputs_that_share_memory(played):
    """Inputs that are read may share memory; one that is written may not, with ATen's error."""
    x, index, source = example()
    with simulated():
        for _ in range(4):
            x.clone().index_add_(0, index, source)
        assert played.count > 0
        both = torch.zeros(12, 3)
        # Both begin at multiples of 16, as what the plan was recorded with.
        words = "some elements of the input tensor and the written"
        with pytest.raises(RuntimeError, match=words):
            both[:5].index_add_(0, index, both[4:11])
        for _ in range(4):
            added(x, index, source, out=torch.empty(5, 3))
        with pytest.raises(RuntimeError, match=words):
            added(x, index, both[4:11], out=both[:5])
        for _ in range(3):
            assert same_bits(both[:5].index_add_(0, index, both[5:]), torch.zeros(5, 3))
        for _ in range(4):
            got = added(both[:5], index, both[:7])
        assert same_bits(got, expected(lambda: added(both[:5], index, both[:7])))
        assert same_bits(
            x.clone().index_add_(0, index, source),
            expected(lambda: x.clone().index_add_(0, index, source)),
        )


def test_errors_are_atens_after_a_plan_is_there():
    """An index out of range and shapes that do not fit raise as before, and nothing is lost."""
    x, index, source = example()
    with simulated():
        for _ in range(4):
            added(x, index, source)
        with pytest.raises(RuntimeError, match="index 99 is out of bounds"):
            added(x, index * 0 + 99, source)
        with pytest.raises((RuntimeError, IndexError), match="Number of indices"):
            added(x, index[:3], source)
        assert same_bits(added(x, index, source), expected(lambda: added(x, index, source)))


def test_out_is_written_and_returned(played):
    """A plan writes an ``out=`` of the right size; another one is resized, with ATen's words."""
    x, index, source = example()
    wanted = expected(lambda: added(x, index, source))
    with simulated():
        for _ in range(4):
            out = torch.full((5, 3), 9.0)
            assert added(x, index, source, out=out) is out
            assert same_bits(out, wanted)
        assert played.count > 0
        with pytest.warns(UserWarning, match="resized"):
            out = added(x, index, source, out=torch.ones(1))
    assert same_bits(out, wanted)


def test_a_plan_is_for_one_alignment(played):
    """A launcher may have chosen wide loads, which memory at other addresses does not allow."""
    x, index, source = example()
    shifted = torch.cat([torch.zeros(1), source.flatten()])[1:].view(7, 3)
    assert (source.data_ptr() % 16, shifted.data_ptr() % 16) == (0, 4)
    with simulated():
        for memory in (source, shifted):
            count = played.count
            for calls in range(4):
                added(x, index, memory)
                # The first call of a form is remembered without its alignment.
                assert played.count == count + max(calls - (memory is source), 0)


def test_a_plan_is_for_one_mode_of_gradients():
    """A plan is not replayed for calls without gradients where a row asks for gradients."""
    rules = [
        rule("aten::index_add", launcher_of_index_add(), when=on("cuda") & requires_grad("self")),
        rule("aten::index_add", Refuse(), because="it has no gradients"),
    ]
    x, index, source = example()
    x.requires_grad_()
    with simulated(rules=RuleTable(rules)):
        for _ in range(4):
            added(x, index, source)
        with torch.no_grad(), pytest.warns(detmode.DeterminismWarning, match="no gradients"):
            added(x, index, source)


def test_variants_of_a_form_are_bounded(played):
    """Of a form that comes in ever other strides some have plans, and all have the right bits."""
    _, index, source = example()
    with simulated():
        for gap in range(2 * plans._VARIANTS):
            x = torch.zeros(5, 3 + gap)[:, :3]
            for _ in range(3):
                got = added(x, index, source)
            assert same_bits(got, expected(lambda: added(torch.zeros(5, 3), index, source)))
    assert played.count > plans._VARIANTS
