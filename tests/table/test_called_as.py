"""Operators by the names that users write, as PyTorch's documentation and programs have them."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detmode import DeterministicMode, allow
from detmode.cli.commands.explain import rows_for
from detmode.cli.rows import means
from detmode.mode.options import operator_names
from detmode.rules import default_rules
from detmode.table.called_as import called_as, name_of
from tests.shared import called, needs
from tests.shared.compiled_functions import FUNCTIONS
from tests.shared.substituted import VERSION

_ABOUT = torch.use_deterministic_algorithms.__doc__ or ""
DOCUMENTED = sorted(
    set(re.findall(r"\* :(?:class|func):`([\w.]+)`", _ABOUT.partition("In addition")[0]))
)
"""Names of all that PyTorch's setting changes, or makes raise."""


def test_documented_names():
    """There are as many as PyTorch's page has."""
    assert len(DOCUMENTED) >= 40, DOCUMENTED


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_name_is_understood(name):
    """``explain`` and ``rules --op`` find its rows, ``allow`` and ``overrides`` its operators."""
    table = default_rules()
    assert list(rows_for(table, name))
    assert any(means(row.rule, name) for row in table) or called_as(name) is None
    operators = operator_names("allow()", [name])
    assert operators
    assert all(operator.startswith("aten::") for operator in operators)
    assert f"overrides={{{operators[0]!r}: 'allow'" in repr(
        DeterministicMode(overrides={name: "allow"})
    )


@pytest.mark.parametrize("prefix", ["torch.nn.functional.", "nn.functional.", "F.", ""])
def test_modules_of_pytorch_in_front(prefix):
    """A function means the same by each of its names."""
    called = called_as("F.grid_sample")
    assert called is not None
    assert called_as(f"{prefix}grid_sample") == called


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.histc, "torch.histc"),
        (F.interpolate, "torch.nn.functional.interpolate"),
        (torch.Tensor.put_, "torch.Tensor.put_"),
        (nn.AvgPool3d, "torch.nn.AvgPool3d"),
        (len, None),
        (int, None),
    ],
)
def test_functions_themselves(function, name):
    """PyTorch's functions and modules stand for their names; others have none."""
    assert name_of(function) == name


@needs.compiler
def test_a_function_is_allowed_and_nothing_else():
    """The gradient of ``gather`` runs as PyTorch runs it, a ``scatter_add`` beside it does not."""
    index, source = torch.tensor([[0, 0, 1]]), torch.ones(1, 3)
    x = torch.ones(1, 2, requires_grad=True)
    with DeterministicMode(simulate="cuda") as mode, allow(torch.gather):
        torch.gather(x, 1, index).sum().backward()
        torch.zeros(1, 2).scatter_add(1, index, source)
    assert [(row.overload.partition(".")[0], row.action) for row in mode.records] == [
        ("aten::scatter_add", "allow"),
        ("aten::scatter_add", "substitute"),
    ]


def test_an_unknown_name_is_refused():
    """The message has a name that is near."""
    with pytest.raises(
        ValueError, match=r"no operator is named 'torch.gathr'; did you mean 'gather'"
    ):
        allow("torch.gathr")
    with pytest.raises(
        TypeError, match="takes operators, got builtin_function_or_method; give 'torch.histc'"
    ):
        allow(len)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("aten::gather", "aten::scatter_add"),
        ("aten::index", "aten::index_put"),
        ("aten::embedding", "aten::embedding_dense_backward"),
        ("aten::_ctc_loss", "aten::_ctc_loss_backward"),
        ("aten::ctc_loss", "aten::_ctc_loss_backward"),
        ("aten::grid_sampler_3d", "aten::grid_sampler_3d_backward"),
        ("grid_sampler", "aten::cudnn_grid_sampler_backward"),
        ("Tensor.__setitem__", "aten::index_put"),
        ("F.linear", "aten::addmm"),
        ("nn.LSTM", "aten::_cudnn_rnn"),
        ("nn.MaxPool2d", "aten::max_pool2d_with_indices_backward"),
        ("nn.TransformerEncoderLayer", "aten::_scaled_dot_product_flash_attention_backward"),
        (
            "scaled_dot_product_attention",
            "aten::_scaled_dot_product_efficient_attention_backward",
        ),
    ],
)
def test_what_runs_in_backward_or_on_a_gpu(name, operator):
    """An operator's name, and that of a function with kernels of its own on CUDA or MPS."""
    rows = list(rows_for(default_rules(), name))
    assert operator in {row.rule.op.partition(".")[0] for row in rows}
    assert {row.rule.op.partition("::")[0] for row in rows} == {"aten"}


OTHER_NAMES = {
    "nll_loss2d": "nll_loss",
    "cross_entropy2d": "cross_entropy",
    "getitem": "__getitem__",
}
BESIDE = {f"max_unpool{dim}d": f"max_pool{dim}d" for dim in (1, 2, 3)}
"""Functions that call another one as well."""
CALLED = {
    name: OTHER_NAMES.get(name.partition("-")[0], name.partition("-")[0]) for name in FUNCTIONS
}
NAMED = [
    name
    for name, word in CALLED.items()
    if any(callable(getattr(place, word, None)) for place in (torch, F, torch.Tensor))
]


@needs.compiler
# Some have no substitute, and warn.
@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")
@pytest.mark.parametrize("name", NAMED)
def test_all_that_is_met_is_known(name):
    """By a function's name ``explain`` shows all that it meets, forward and backward."""
    function, make = FUNCTIONS[name]
    arguments = [value.requires_grad_() if value.is_floating_point() else value for value in make()]
    with DeterministicMode(simulate="cuda") as mode:
        result = function(*arguments)
        if result.requires_grad:
            result.sum().backward()
    met = {
        row.overload.partition(".")[0].rstrip("_")
        for row in mode.records
        if row.family != "uninitialized_memory"
    }
    words, table = filter(None, (CALLED[name], BESIDE.get(CALLED[name]))), default_rules()
    shown = {
        row.rule.op.partition(".")[0].rstrip("_") for word in words for row in rows_for(table, word)
    }
    assert met <= shown


@pytest.mark.thorough
def test_the_list_is_what_is_called():
    """Of the PyTorch that wrote it, the list has what PyTorch's own samples call."""
    if not called.LINES.read_text(encoding="utf-8").startswith(
        f"# Written with PyTorch {VERSION}:"
    ):
        pytest.skip(f"it was written with another PyTorch than {VERSION}")
    assert called.found() == called.pinned(), "`python tools/write_expected.py called` says so"
