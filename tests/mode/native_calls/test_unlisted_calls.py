"""Calls of operators that no rule lists, which the player passes on as a dispatch mode would."""

import os
import sys

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from detmode import default_rules
from detmode.table.rule import Native
from tests.mode.native_calls.ways import again, assert_same, only_all
from tests.shared.programs import Seen, rule

pytestmark = only_all


def test_they_do_without_python(ways):
    """Nothing of detmode's runs in Python once an operator has been met."""
    x, weight = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    entered = []

    def note(frame, event, _):
        if event == "call" and "detmode" in frame.f_code.co_filename.split(os.sep)[-3:-1]:
            entered.append(frame.f_code.co_qualname)

    def step():
        torch._foreach_add_([x.neg(), x.view(2, 8) * 2], 1.0)
        # What saves its result has PyTorch ask the mode for copies of it, past the dispatcher.
        with torch.profiler.record_function("as optimizers do"):
            (x @ weight).relu().softmax(0).sum().backward()

    with ways.by_player():
        again(step, 6)
        sys.setprofile(note)
        step()
        sys.setprofile(None)
    assert entered == []


def written_and_lists():
    """Written tensors come back themselves, and a class of tensors sees its calls in lists, too."""
    x, two = torch.arange(4.0), TwoTensor(torch.ones(4), torch.zeros(4))
    assert x.add_(1) is x.sigmoid_() is x.mul_(torch.ones(4)) is x.mul_(2.0) is x
    lists = torch._foreach_sqrt([x, x.to(torch.float64)])
    torch._foreach_add_(lists, [x, x], alpha=2)
    joined = torch.stack([two, torch.ones(4)])
    chosen = torch.where(two > 0, two, torch.ones(4))
    assert type(joined) is type(chosen) is TwoTensor
    return *lists, joined.a, joined.b, chosen.a, chosen.b, *x.view(2, 2).unsafe_split(1)


def complex_inverse():
    """Conjugates a tensor in an operator, and calls another with it."""
    return torch.linalg.pinv(torch.tensor([[1 + 2j, 3 - 1j], [0 + 1j, 2 + 0j]]))


def zero_tangent():
    """Multiplies what has no memory, as a tangent of forward-mode AD may, by a number."""
    return torch.ops.aten.mul.Scalar(torch._efficientzerotensor((3,)), 2) + 1


class Saved(torch.autograd.Function):
    """Saves its result, of which its backward has a copy."""

    @staticmethod
    def forward(ctx, x):
        result = x * 2
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def saved_results():
    """Their copies have no history of their own, and what is written since is an error."""
    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(Saved.apply(first).sum(), x)
    written = x.exp()
    written.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        written.sum().backward()
    two = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    two.exp().sum().backward()
    return first.detach(), second, two.grad.a


@pytest.mark.parametrize(
    "program", [written_and_lists, complex_inverse, zero_tangent, saved_results]
)
def test_they_are_made_as_without_a_mode(program, ways):
    """Views are resolved, what has no memory is not read, and copies are those of PyTorch."""
    expected = program()
    with ways.by_player():
        results = [program() for _ in range(4)]
    assert_same(results, [expected] * 4)


def test_they_are_not_boxed(ways):
    """Operators that have been called have kernels for their own signatures."""
    with ways.by_player():
        again(written_and_lists)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = "add_.Tensor", "relu", "view", "cat", "where.self", "_foreach_add_.List"
    assert all(has_kernel(f"aten::{name}", "PythonTLSSnapshot") for name in names)


def test_an_outer_mode_receives_them(ways):
    """It sees what it sees around a mode in Python, and an inner one is asked first."""
    seen, x = [], torch.ones(3, requires_grad=True)
    for number in (0, 1):
        x.grad = None
        with Seen() as outer, ways.block(number):
            again(lambda: x.neg().abs().relu().sum().backward())
            with Seen() as inner:
                again(lambda: x.exp().sum().backward())
        seen.append((outer.names, inner.names))
    assert seen[0] == seen[1]
    assert all(seen[1])


def test_who_overrides_detach_has_copies_made_by_it(ways):
    """PyTorch asks Python for them as ever, and they count."""
    rules = default_rules() + [rule("aten::detach", action=Native())]

    def program():
        again(lambda: torch.ones(3, requires_grad=True).exp().sum().backward())

    rows = ways.same(program, rules=rules, warn_only=True)
    assert [line[0] for line, *_ in rows] == ["aten::detach.default"]
