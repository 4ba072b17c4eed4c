"""The places where PyTorch's Python takes a decomposition under its flag."""

import threading

import pytest
import torch
import torch._decomp.decompositions as decompositions
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from detmode import GPU_TO_GPU, Refuse, Rule, RuleTable, Substitute
from detmode.mode.detours import _DETOURS
from detmode.rules import default_rules
from detmode.table.conditions import ALWAYS
from detmode.table.rule_table import TORCH_VERSION


class Seen(TorchDispatchMode):
    """Entered inside the mode, it sees what ``F`` calls."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def called(mode, function):
    with mode, Seen() as seen:
        function()
    return seen.names


def meta(*shape):
    return torch.empty(shape, device="meta")


INTERPOLATE = [
    ("bilinear", (1, 1, 3, 3), "upsample_bilinear2d"),
    ("trilinear", (1, 1, 3, 3, 3), "upsample_trilinear3d"),
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("kind", "shape", "plain"), INTERPOLATE)
def test_interpolate_dispatches_the_plain_operator(mode, kind, shape, plain, align_corners):
    """Under the mode F.interpolate calls the plain operator, whose backward has a substitute."""
    names = called(
        mode(),
        lambda: F.interpolate(meta(*shape), scale_factor=2, mode=kind, align_corners=align_corners),
    )
    assert plain in names
    assert not names & {"_unsafe_index", "index"}


def under_the_flag(function):
    """What PyTorch calls under its own flag; which detours it takes depends on its version."""
    with Seen() as seen:
        torch.use_deterministic_algorithms(True)
        try:
            function()
        finally:
            torch.use_deterministic_algorithms(False)
    return seen.names


@pytest.mark.parametrize(("kind", "shape", "plain"), INTERPOLATE)
def test_substitute_false_leaves_the_detour(mode, kind, shape, plain):
    """Under ``substitute=False`` what is called is exactly what PyTorch calls under its flag."""

    def interpolate():
        F.interpolate(meta(*shape), scale_factor=2, mode=kind)

    expected = under_the_flag(interpolate)
    assert called(mode(substitute=False), interpolate) == expected
    if TORCH_VERSION >= (2, 13):
        assert plain not in expected


@pytest.mark.parametrize(("kind", "shape", "plain"), INTERPOLATE)
def test_the_plain_backward_meets_the_table(mode, kind, shape, plain):
    """On meta tensors the forward and backward end in a recorded substitute."""
    x = meta(*shape).requires_grad_()
    with mode() as made:
        F.interpolate(x, scale_factor=2, mode=kind).sum().backward()
    assert [(record.overload, record.action) for record in made.records] == [
        (f"aten::{plain}_backward.default", "substitute")
    ]


@pytest.mark.parametrize("arguments", [{"size": 5}, {"scale_factor": 1.5}, {"scale_factor": 0.5}])
def test_the_plain_operator_gets_the_same_arguments(mode, arguments):
    """Sizes, scales and align_corners arrive as in a call without the flag."""
    for align_corners in (False, True):
        x = meta(2, 3, 8, 8)
        call = {"mode": "bilinear", "align_corners": align_corners, **arguments}
        expected = F.interpolate(torch.empty(2, 3, 8, 8), **call).shape
        with mode(), Seen() as seen:
            assert F.interpolate(x, **call).shape == expected
        assert "upsample_bilinear2d" in seen.names


def table_for(backward, action):
    substitutes = action is Substitute
    return RuleTable(
        [
            Rule(
                op=f"aten::{backward}",
                when=ALWAYS,
                action=Substitute(len) if substitutes else Refuse(),
                guarantee=GPU_TO_GPU if substitutes else None,
                alert="alert",
                because="a test",
            )
        ]
    )


def fake(*shape):
    return torch.empty(shape, device="cuda")


ON_CUDA = [
    (
        lambda: F.interpolate(fake(1, 1, 3, 3), scale_factor=2, mode="bilinear"),
        "upsample_bilinear2d",
        "upsample_bilinear2d_backward",
    ),
    (
        lambda: F.interpolate(fake(1, 1, 3, 3, 3), scale_factor=2, mode="trilinear"),
        "upsample_trilinear3d",
        "upsample_trilinear3d_backward",
    ),
    (
        lambda: F.pad(fake(1, 3, 4), (1, 1), mode="replicate"),
        "replication_pad1d",
        "replication_pad1d_backward",
    ),
    (
        lambda: F.pad(fake(1, 3, 4, 4), (1, 1, 2, 2), mode="replicate"),
        "replication_pad2d",
        "replication_pad2d_backward",
    ),
    (
        lambda: F.pad(fake(1, 3, 4, 4, 4), (1, 1, 2, 2, 1, 1), mode="replicate"),
        "replication_pad3d",
        "replication_pad3d_backward",
    ),
    (
        lambda: F.max_pool3d(fake(1, 1, 4, 4, 4), 2, return_indices=True),
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
    ),
]


@pytest.mark.parametrize(("call", "plain", "backward"), ON_CUDA)
def test_the_plain_operator_needs_a_substitute(mode, monkeypatch, call, plain, backward):
    """On fake CUDA tensors the plain operator is called if its backward has a substitute.

    Without one, or with ``substitute=False``, the decomposition is called: never worse than
    PyTorch.
    """
    taken = []
    for name in _DETOURS:
        if hasattr(decompositions, name):
            monkeypatch.setattr(decompositions, name, lambda *args: taken.append(1) or args[:2])
    with FakeTensorMode():
        under_the_flag(call)
        if not taken:
            pytest.skip("this PyTorch has no such detour")
        taken.clear()
        assert plain in called(mode(rules=table_for(backward, Substitute), simulate=None), call)
        assert taken == []
        for rest in (
            mode(rules=table_for(backward, Refuse), simulate=None),
            mode(rules=RuleTable(), simulate=None),
            mode(rules=table_for(backward, Substitute), simulate=None, substitute=False),
        ):
            assert plain not in called(rest, call)
    assert len(taken) == 3


def test_max_pool3d_with_indices_by_the_default_table(mode):
    """max_pool3d(return_indices=True) is the plain operator: its backward has a substitute."""
    with FakeTensorMode():
        names = called(
            mode(rules=default_rules(), simulate=None),
            lambda: F.max_pool3d(fake(1, 1, 4, 4, 4), 2, return_indices=True),
        )
    assert "max_pool3d_with_indices" in names


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_replication_meets_the_default_table(mode, spatial):
    """By the default table F.pad calls the plain operator on CUDA: its backward is substituted."""
    with FakeTensorMode():
        names = called(
            mode(rules=default_rules(), simulate=None),
            lambda: F.pad(fake(1, 3, *(4,) * spatial), (1, 2) * spatial, mode="replicate"),
        )
    assert f"replication_pad{spatial}d" in names
    assert not names & {"_unsafe_index", "index"}


def test_without_the_flag_nothing_is_changed(mode):
    """If the program turns the flag off inside, F calls the plain operator as ever."""
    with mode(), Seen() as seen:
        torch.use_deterministic_algorithms(False)
        F.interpolate(meta(1, 1, 3, 3), scale_factor=2, mode="bilinear")
    assert "upsample_bilinear2d" in seen.names


def test_the_attributes_are_restored(mode):
    """After the last mode has left, PyTorch's attributes are the objects they were."""
    names = [name for name in _DETOURS if hasattr(decompositions, name)]
    before = {name: getattr(decompositions, name) for name in names}
    outer, inner = mode(), mode()

    def replaced():
        return all(getattr(decompositions, name) is not before[name] for name in names)

    def fail():
        with outer:
            with inner:
                assert replaced()
            assert replaced()
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert {name: getattr(decompositions, name) for name in names} == before
    assert "_upsample_linear_vec" in names


def test_other_threads_keep_the_decomposition(mode):
    """A thread without a mode gets PyTorch's decomposition while another thread has one."""
    seen = Seen()

    def interpolate():
        F.interpolate(meta(1, 1, 3, 3), scale_factor=2, mode="bilinear")

    def work():
        with seen:
            interpolate()

    expected = under_the_flag(interpolate)
    with mode():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen.names == expected


def test_cpu_tensors_never_take_the_detour(mode):
    """On CPU tensors F calls the plain operator anyway; the simulated backward is substituted."""
    x = torch.ones(1, 1, 3, 3, requires_grad=True)
    with mode() as made, Seen() as seen:
        F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()
    assert "upsample_bilinear2d" in seen.names
    assert [record.action for record in made.records] == ["substitute"]
