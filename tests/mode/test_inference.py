"""In inference mode composite operators come whole; the mode still sees what they are made of."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterministicMode


def test_composites_are_decomposed():
    """``F.nll_loss`` over maps meets its rule in inference mode as it does outside."""
    maps, target = torch.randn(1, 2, 3, 3), torch.zeros(1, 3, 3, dtype=torch.int64)
    refused = pytest.raises(RuntimeError, match="nll_loss2d_forward_out_cuda_template")
    with (
        torch.inference_mode(),
        DeterministicMode(simulate="cuda", substitute=False) as mode,
        refused,
    ):
        F.nll_loss(maps, target)
    assert [record.overload for record in mode.records] == ["aten::nll_loss2d_forward.default"]


def test_results_are_those_without_the_mode(monkeypatch):
    """Decomposed composites give what they give without the mode."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # older versions ask for it
    images, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with torch.inference_mode():
        expected = F.conv2d(images, weight).flatten(1) @ torch.ones(144, 2)
        with DeterministicMode(simulate="cuda") as mode:
            given = F.conv2d(images, weight).flatten(1) @ torch.ones(144, 2)
    assert torch.equal(given, expected)
    assert "aten::convolution.default" in [record.overload for record in mode.records]


@pytest.mark.parametrize("function", [F.silu, F.mish], ids=lambda function: function.__name__)
def test_a_composite_with_a_kernel_is_not_decomposed(function):
    """The backward of SiLU and Mish is composite and has kernels as well: ATen's kernel runs."""
    gradients = []
    for mode in (nullcontext(), DeterministicMode(simulate="cuda")):
        x = torch.linspace(-5, 5, 1001, dtype=torch.bfloat16, requires_grad=True)
        with mode:
            function(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_have_kernels_of_their_own(inference):
    """Products of nested tensors, whose composite forms cannot take them, give what they give."""
    rows, weight = (
        torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
        torch.ones(5, 4),
    )
    with torch.inference_mode(inference), DeterministicMode(simulate="cuda"):
        given = F.linear(rows, weight)
    assert [part.tolist() for part in given.unbind()] == [[[4.0] * 5] * 2, [[4.0] * 5] * 3]
