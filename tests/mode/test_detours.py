"""The places where PyTorch's Python takes a decomposition under its flag."""

import pytest
import torch
import torch._decomp.decompositions as decompositions
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from detmode import Refuse, RuleTable, Substitute
from detmode.mode.detours import _DETOURS
from detmode.rules import default_rules
from detmode.table.rule_table import TORCH_VERSION
from tests.shared.programs import Seen, actions, enlarged, in_another_thread, table_of


def seen_in(function):
    """The operators that ``F`` calls, where it is the innermost that sees them."""
    with Seen() as seen:
        function()
    return {name.removeprefix("aten::") for name in seen.names}


def called(mode, function):
    with mode:
        return seen_in(function)


def meta(*shape):
    return torch.empty(shape, device="meta")


INTERPOLATE = [
    ("bilinear", (1, 1, 3, 3), "upsample_bilinear2d"),
    ("trilinear", (1, 1, 3, 3, 3), "upsample_trilinear3d"),
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [{"size": 5}, {"scale_factor": 2}, {"scale_factor": 0.5}], ids=str)
@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("kind", "shape", "plain"), INTERPOLATE)
def test_interpolate_dispatches_the_plain_operator(
    mode, kind, shape, plain, device, size, align_corners
):
    """Under the mode F.interpolate calls the plain operator, with the same sizes and corners.

    Its backward meets the table, and is substituted. On the CPU there is no detour.
    """
    call = {"mode": kind, "align_corners": align_corners, **size}
    expected = F.interpolate(torch.empty(shape), **call).shape
    x, made = torch.ones(shape, device=device, requires_grad=True), mode()

    def train():
        y = F.interpolate(x, **call)
        assert y.shape == expected
        y.sum().backward()

    names = called(made, train)
    assert plain in names
    assert not names & {"_unsafe_index", "index"}
    assert actions(made) == [(f"aten::{plain}_backward.default", "substitute", 1)]


def under_the_flag(function):
    """PyTorch's calls under its own flag; its detours depend on its version."""
    torch.use_deterministic_algorithms(True)
    try:
        return seen_in(function)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("kind", "shape", "plain"), INTERPOLATE)
def test_substitute_false_leaves_the_detour(mode, kind, shape, plain):
    """Under ``substitute=False`` what is called is exactly what PyTorch calls under its flag."""

    def interpolate():
        F.interpolate(meta(*shape), scale_factor=2, mode=kind)

    expected = under_the_flag(interpolate)
    assert called(mode(substitute=False), interpolate) == expected
    if TORCH_VERSION >= (2, 13):
        assert plain not in expected


def fake(*shape):
    return torch.empty(shape, device="cuda")


def interpolated(kind, dims):
    return lambda: F.interpolate(fake(1, 1, *(3,) * dims), scale_factor=2, mode=kind)


def padded(dims):
    return lambda: F.pad(fake(1, 3, *(4,) * dims), (1, 2) * dims, mode="replicate")


ON_CUDA = {
    "upsample_bilinear2d": interpolated("bilinear", 2),
    "upsample_trilinear3d": interpolated("trilinear", 3),
    "replication_pad1d": padded(1),
    "replication_pad2d": padded(2),
    "replication_pad3d": padded(3),
    "max_pool3d_with_indices": lambda: F.max_pool3d(fake(1, 1, 4, 4, 4), 2, return_indices=True),
}


@pytest.mark.parametrize("plain", ON_CUDA)
def test_the_plain_operator_needs_a_substitute(mode, monkeypatch, plain):
    """On fake CUDA tensors the plain operator is called if its backward has a substitute.

    So it is by the default table. Without one, or with ``substitute=False``, the decomposition is
    called: never worse than PyTorch.
    """
    taken, call, backward = [], ON_CUDA[plain], f"aten::{plain}_backward"
    substitutes = table_of(backward, Substitute(len), alert="alert")
    refuses = table_of(backward, Refuse(), alert="alert")
    with FakeTensorMode():
        assert plain in called(mode(rules=default_rules(), simulate=None), call)
        for name in _DETOURS:
            if hasattr(decompositions, name):
                monkeypatch.setattr(decompositions, name, lambda *args: taken.append(1) or args[:2])
        under_the_flag(call)
        if not taken:
            pytest.skip("this PyTorch has no such detour")
        taken.clear()
        assert plain in called(mode(rules=substitutes, simulate=None), call)
        assert taken == []
        for rest in (
            mode(rules=refuses, simulate=None),
            mode(rules=RuleTable(), simulate=None),
            mode(rules=substitutes, simulate=None, substitute=False),
        ):
            assert plain not in called(rest, call)
    assert len(taken) == 3


def test_without_the_flag_nothing_is_changed(mode):
    """If the program turns the flag off inside, F calls the plain operator as ever."""
    with mode():
        torch.use_deterministic_algorithms(False)
        names = seen_in(lambda: enlarged(meta(1, 1, 3, 3)))
    assert "upsample_bilinear2d" in names


def test_other_threads_keep_the_decomposition(mode):
    """A thread without a mode gets PyTorch's decomposition while another thread has one."""

    def interpolate():
        enlarged(meta(1, 1, 3, 3))

    expected = under_the_flag(interpolate)
    with mode():
        assert in_another_thread(seen_in, interpolate) == expected
