"""In-place and out variants get the substitute's result as ATen delivers its own."""

import warnings
from collections import namedtuple

import pytest
import torch

from detmode import DeterministicMode, RuleTable, Substitute
from tests.shared.programs import rule, table_of

aten = torch.ops.aten


@pytest.fixture
def mode_with(monkeypatch):
    """Makes modes that run functions instead of the aten operators of their names."""
    monkeypatch.setattr("detmode.cuda.unavailable", lambda device: None)

    def make(**functions):
        rules = [rule(f"aten::{name}", Substitute(each)) for name, each in functions.items()]
        return DeterministicMode(rules=RuleTable(rules))

    return make


def cumsum(self, dim, dtype=None):
    return aten.cumsum.default(self, dim, dtype=dtype) + 100


x = torch.tensor([1.0, 2.0, 3.0])
expected = [101.0, 103.0, 106.0]


def test_functional(mode_with):
    """The functional variant gives what the substitute returns, and leaves its inputs alone."""
    with mode_with(cumsum=cumsum):
        assert torch.cumsum(x, 0).tolist() == expected
        assert torch.cumsum(x, dim=0, dtype=torch.float64).dtype is torch.float64
    assert x.tolist() == [1, 2, 3]


def test_inplace_returns_self(mode_with):
    """The in-place variant writes ``self``, through any strides, and returns it."""
    with mode_with(cumsum=cumsum) as mode:
        target = torch.stack([x, x], 1)[:, 0]
        result = target.cumsum_(0)
    assert result is target
    assert target.tolist() == expected
    assert mode.records[0].overload == "aten::cumsum_.default"


def test_a_pointwise_operator_casts_to_a_wider_out(mode_with):
    """It may write what it reads, and an ``out`` of a wider kind; of a narrower one it may not."""
    with mode_with(sin=lambda self: aten.sin.default(self) + 100):
        wide = torch.sin(x, out=torch.empty(3, dtype=torch.complex128))
        same = x.clone()
        torch.sin(same, out=same)
        with pytest.raises(RuntimeError, match="dtype"):
            torch.sin(x, out=torch.empty(3, dtype=torch.int64))
    assert torch.equal(wide, (x.sin() + 100).to(torch.complex128))
    assert torch.equal(same, x.sin() + 100)


def test_inplace_hands_self_to_a_substitute_that_takes_out(mode_with):
    """A substitute with a keyword ``out`` writes there itself."""
    given = []

    def index_add(self, dim, index, source, *, alpha=1, out=None):
        given.append(out)
        result = aten.index_add.default(self, dim, index, source, alpha=alpha)
        return result if out is None else out.copy_(result)

    target = torch.zeros(3)
    with mode_with(index_add=index_add):
        result = target.index_add_(0, torch.tensor([0, 0]), torch.ones(2))
        target.index_add(0, torch.tensor([0]), torch.ones(1))
    assert result is target
    assert target.tolist() == [2, 0, 0]
    assert given[0] is target
    assert given[1] is None


def test_inplace_under_autograd(mode_with):
    """The version counter moves and gradients flow as for ATen's own in-place operator."""
    with mode_with(cumsum=aten.cumsum.default):
        leaf = torch.ones(3, requires_grad=True)
        y = leaf * 2
        version = y._version
        y.cumsum_(0)
        assert y._version > version
        y.sum().backward()
    assert leaf.grad.tolist() == [6, 4, 2]


@pytest.mark.parametrize("shape", [(3,), (0,)])
def test_out_is_resized_and_returned(mode_with, shape):
    """``out=`` is resized where it must be, written and returned."""
    out = torch.empty(shape)
    with mode_with(cumsum=cumsum) as mode:
        result = torch.cumsum(x, 0, out=out)
    assert result is out
    assert out.tolist() == expected
    assert mode.records[0].overload == "aten::cumsum.out"


def warned(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message).partition(" (Triggered")[0] for w in caught]


def test_resizing_out_warns_as_aten_does(mode_with):
    """Resizing an ``out`` that has elements gives ATen's warning, once for each call."""
    native = warned(lambda: torch.cumsum(x, 0, out=torch.empty(2)))
    assert len(native) == 1
    with mode_with(cumsum=cumsum):
        for _ in range(2):
            assert warned(lambda: torch.cumsum(x, 0, out=torch.empty(2))) == native


BAD_CALLS = {
    "out on another device": lambda: torch.cumsum(x, 0, out=torch.empty(3, device="meta")),
    "dim out of range": lambda: torch.cumsum(x, 2),
    "in place into integers": lambda: torch.ones(3, dtype=torch.int64).cumsum_(
        0, dtype=torch.float32
    ),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_arguments_raise_what_aten_raises(mode_with, call):
    """Arguments that ATen rejects are rejected by the mode with the same type of error."""
    with pytest.raises(Exception) as native:  # noqa: PT011 (any that ATen raises)
        call()
    mode = mode_with(cumsum=lambda self, dim, dtype=None: torch.zeros(3))
    with mode, pytest.raises(native.type) as ours:
        call()
    assert ours.type is native.type


def test_a_result_of_another_dtype(mode_with):
    """A result of another dtype than the tensor that is written is stopped, as by ATen."""
    message = "Expected out tensor to have dtype torch.float32, but got torch.int64"
    wrong = mode_with(cumsum=lambda self, dim, dtype=None: torch.ones(3))
    target = torch.zeros(3, dtype=torch.int64)
    with wrong:
        with pytest.raises(RuntimeError, match=message):
            target.cumsum_(0)
        for out in (target, torch.empty(0, dtype=torch.int64)):
            with pytest.raises(RuntimeError, match=message):
                torch.cumsum(torch.ones(3, dtype=torch.int64), 0, out=out)
    assert target.tolist() == [0, 0, 0]


def test_several_outs(mode_with):
    """Operators with several results write each to its own ``out``."""
    pair = namedtuple("pair", "values indices")

    def median(self, dim, keepdim=False):
        return pair(torch.tensor([5.0]), torch.tensor([1]))

    values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
    with mode_with(**{"median.dim": median}) as mode:
        result = torch.median(torch.ones(1, 3), 1, out=(values, indices))
    assert result.values.tolist() == values.tolist() == [5]
    assert result.indices.tolist() == indices.tolist() == [1]
    assert mode.records[0].overload == "aten::median.dim_values"


def test_grad_input(mode_with):
    """A backward's ``grad_input`` variant gets the functional substitute's result."""

    def substitute(**arguments):
        return aten.upsample_bilinear2d_backward.default(**arguments) + 1

    grad, out = torch.ones(1, 1, 4, 4), torch.empty(0)
    with mode_with(upsample_bilinear2d_backward=substitute) as mode:
        aten.upsample_bilinear2d_backward.grad_input(
            grad, [4, 4], [1, 1, 2, 2], False, None, None, grad_input=out
        )
    assert out.tolist() == [[[[5, 5], [5, 5]]]]
    assert mode.records[0].overload == "aten::upsample_bilinear2d_backward.grad_input"


def test_elements_that_share_memory_are_not_written(mode_with):
    """Two results at one address are refused, as on expanded tensors: either might stay."""
    takes_out = table_of(
        "aten::cumprod", Substitute(lambda self, dim, dtype=None, *, out=None: out.copy_(self))
    )
    with mode_with(cumsum=cumsum), DeterministicMode(rules=takes_out) as inner:
        overlapping = torch.ones(8).as_strided((3, 3), (1, 2))
        with pytest.raises(RuntimeError, match="single memory location"):
            overlapping.cumprod_(0)
    assert [record.action for record in inner.records] == ["substitute"]
    with mode_with(cumsum=cumsum):
        for shared in (overlapping, torch.ones(1).expand(3)):
            with pytest.raises(RuntimeError, match="single memory location"):
                shared.cumsum_(0)
            with pytest.raises(RuntimeError, match="single memory location"):
                torch.cumsum(torch.ones(shared.shape), 0, out=shared)


@pytest.mark.parametrize(("read", "written"), [(0, 1), (1, 0), (0, 0), (0, 3), (3, 0)])
def test_out_may_not_share_memory_with_an_input(mode_with, read, written):
    """It may not begin inside of an input, nor end in it; it may be all of it, or lie beside it."""
    values = torch.ones(8)
    given, out = values[read : read + 3], values[written : written + 3]
    with mode_with(cumsum=cumsum):
        if abs(read - written) == 1:
            with pytest.raises(RuntimeError, match="single memory location"):
                torch.cumsum(given, 0, out=out)
        else:
            assert torch.cumsum(given, 0, out=out).tolist() == [101, 102, 103]


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3,), (2,)), ((2, 3), (3, 2)), ((2, 1, 2), (2, 7, 1)), ((1, 3), (0, 1)), ((3, 0), (0, 0))],
)
def test_unusual_strides_are_written(mode_with, shape, strides):
    """Strides that interleave without sharing memory are written as others are."""
    target = torch.zeros(16).as_strided(shape, strides)
    with mode_with(cumsum=cumsum):
        target.cumsum_(0)
    assert torch.equal(target, torch.full(shape, 100.0))
