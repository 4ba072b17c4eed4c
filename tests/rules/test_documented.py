"""Every operator that PyTorch documents as nondeterministic is answered by the table."""

import re

import pytest
import torch

from detmode.table.rule import Allow
from tests.shared import table_facts as facts

CONVOLUTION = ("aten::convolution", "aten::convolution_backward")
INTERPOLATE = tuple(
    f"aten::upsample_{kind}_backward"
    for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
)
OPERATORS: dict[str, tuple[str, ...]] = {
    **{f"torch.nn.Conv{kind}{n}d": CONVOLUTION for kind in ("", "Transpose") for n in (1, 2, 3)},
    **{f"torch.nn.ReplicationPad{n}d": (f"aten::replication_pad{n}d_backward",) for n in (1, 2, 3)},
    **{f"torch.nn.ReflectionPad{n}d": (f"aten::reflection_pad{n}d_backward",) for n in (1, 2, 3)},
    "torch.bmm": ("aten::bmm",),
    "torch.mm": ("aten::mm",),
    "torch.mv": ("aten::mv",),
    "torch.Tensor.__getitem__": ("aten::index_put",),
    "torch.Tensor.index_put": ("aten::index_put",),
    "torch.Tensor.put_": ("aten::put",),
    "torch.Tensor.scatter_add_": ("aten::scatter_add",),
    "torch.gather": ("aten::scatter_add",),
    "torch.index_add": ("aten::index_add",),
    "torch.index_select": ("aten::index_add",),
    "torch.repeat_interleave": ("aten::index_add",),
    "torch.Tensor.index_copy": ("aten::index_copy",),
    "torch.Tensor.index_reduce": ("aten::index_reduce",),
    "torch.Tensor.scatter": ("aten::scatter.src",),
    "torch.Tensor.scatter_reduce": ("aten::scatter_reduce.two",),
    "torch.nn.AvgPool3d": ("aten::avg_pool3d_backward",),
    "torch.nn.AdaptiveAvgPool2d": ("aten::_adaptive_avg_pool2d_backward",),
    "torch.nn.AdaptiveAvgPool3d": ("aten::_adaptive_avg_pool3d_backward",),
    "torch.nn.MaxPool2d": ("aten::max_pool2d_with_indices_backward",),
    "torch.nn.MaxPool3d": ("aten::max_pool3d_with_indices_backward",),
    "torch.nn.AdaptiveMaxPool2d": ("aten::adaptive_max_pool2d_backward",),
    "torch.nn.FractionalMaxPool2d": ("aten::fractional_max_pool2d_backward",),
    "torch.nn.FractionalMaxPool3d": ("aten::fractional_max_pool3d_backward",),
    "torch.nn.MaxUnpool1d": ("aten::max_unpool2d",),
    "torch.nn.MaxUnpool2d": ("aten::max_unpool2d",),
    "torch.nn.MaxUnpool3d": ("aten::max_unpool3d",),
    "torch.nn.functional.interpolate": INTERPOLATE,
    "torch.nn.NLLLoss": ("aten::nll_loss2d_forward",),
    "torch.nn.CTCLoss": ("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"),
    "torch.nn.Embedding": ("aten::embedding_dense_backward",),
    "torch.nn.EmbeddingBag": ("aten::_embedding_bag_backward",),
    "torch.histc": ("aten::histc",),
    "torch.bincount": ("aten::bincount",),
    "torch.kthvalue": ("aten::kthvalue",),
    "torch.median": ("aten::median.dim",),
    "torch.nn.functional.grid_sample": (
        "aten::grid_sampler_2d_backward",
        "aten::grid_sampler_3d_backward",
        "aten::cudnn_grid_sampler_backward",
    ),
    "torch.cumsum": ("aten::cumsum",),
    "torch.Tensor.resize_": ("aten::resize",),
    "torch.nn.RNN": ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"),
    "torch.nn.LSTM": ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"),
}
"""Names in the documentation of torch.use_deterministic_algorithms, in any supported version, and
in the notes on reproducibility; and the operators that the dispatcher sees for it."""


def documented() -> list[str]:
    """The names in the lists of the installed version's documentation."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    return re.findall(r"^\s*\* :(?:class|func|meth|attr):`~?([\w.]+)`", text, re.MULTILINE)


def test_documentation_is_read() -> None:
    """The lists are found where they are looked for."""
    assert len(documented()) > 30


@pytest.mark.parametrize("name", sorted(set(documented()) | set(OPERATORS)))
def test_documented_operator_is_listed(name: str) -> None:
    """A documented operator has a row that does more than let it pass, in some version."""
    assert name in OPERATORS, (
        f"PyTorch {torch.__version__} documents {name} as nondeterministic: add the operators that "
        "the dispatcher sees for it to OPERATORS here, and a row for each to a family"
    )
    for op in OPERATORS[name]:
        rows = [row for row in facts.rows() if facts.full_name(row.rule.op) == facts.full_name(op)]
        assert any(not isinstance(row.rule.action, Allow) for row in rows), (
            f"{name} is documented as nondeterministic: no family of detmode/rules has a row for "
            f"{op} that substitutes, goes native or refuses"
        )
