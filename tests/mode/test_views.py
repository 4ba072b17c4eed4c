"""Under every mode calls give what they give without one.

So do kernels that conjugate or negate inside, and composite operators, which come whole in
inference mode, where the mode still sees what they are made of.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterministicMode
from detmode.runs.recording import record
from tests.shared.every_mode import MODES

pytestmark = pytest.mark.usefixtures("cublas_workspace")

# A tag of a library's own is not what PyTorch says of its operators.
torch.library.define(
    "detmode_views::autocorrelation", "(Tensor x) -> Tensor", tags=torch.Tag.pointwise
)


@torch.library.impl("detmode_views::autocorrelation", "CPU")
def _autocorrelation(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers, and a negative view of real ones, are inside only."""
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * spectrum.conj()) + spectrum.conj().imag.sum()


torch.library.define("detmode_views::precise_product", "(Tensor x) -> Tensor")


@torch.library.impl("detmode_views::precise_product", "CompositeImplicitAutograd")
def _product(x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,kj->ik", x, x)


@torch.library.impl("detmode_views::precise_product", "AutocastCPU")
def _precise_product(x: torch.Tensor) -> torch.Tensor:
    """Autocast has it made in float32."""
    with torch.autocast("cpu", enabled=False):
        return torch.ops.detmode_views.precise_product(x.float())


def _complex() -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.complex64)


def _gradient_of_lstsq(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    solution = torch.linalg.lstsq(a.requires_grad_(), b).solution
    return torch.autograd.grad(solution.abs().sum(), a)[0]


CALLS: dict[str, tuple[bool, Callable[[], torch.Tensor]]] = {
    "pinv": (False, lambda: torch.linalg.pinv(_complex())),
    "gradient of lstsq": (False, lambda: _gradient_of_lstsq(_complex(), _complex())),
    "kernel of a library": (False, lambda: torch.ops.detmode_views.autocorrelation(torch.randn(8))),
    "hfftn of real numbers": (True, lambda: torch.fft.hfftn(torch.randn(3, 4))),
    "convolution and product": (
        True,
        lambda: (
            F.conv2d(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)).flatten(1)
            @ torch.ones(144, 2)
        ),
    ),
    "vecdot": (True, lambda: torch.linalg.vecdot(_complex(), _complex())),
}
"""By name: whether the call is made in inference mode, and the call."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
def test_views_inside_a_kernel_are_resolved(mode, call, tmp_path):
    """Every mode gives the numbers that a call gives without it."""
    in_inference_mode, make = CALLS[call]
    with torch.inference_mode(in_inference_mode):
        torch.manual_seed(0)
        expected = make()
        with MODES[mode](tmp_path):
            make()  # what is looked up at the first call is known at the second
            torch.manual_seed(0)
            given = make()
    # LAPACK rounds by where its buffers lie.
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("mode", MODES)
def test_autocast_acts_in_a_composite_operator(mode, tmp_path):
    """In inference mode what a composite operator is made of is cast as without a mode, once."""
    rows, columns, images = torch.randn(3, 4), torch.randn(4, 5), torch.randn(2, 3, 8, 8)

    def run():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return [
                torch.einsum("ij,jk->ik", rows, columns),
                torch.linalg.multi_dot([rows, columns, columns.mT]),
                F.conv2d(images, images).flatten(1),
                torch.ops.detmode_views.precise_product(columns.bfloat16()),
            ]

    expected = run()
    with MODES[mode](tmp_path):
        given = run()
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


def test_they_are_resolved_in_a_mode_below_another(tmp_path):
    """A mode that is handed its calls by another one resolves them as well."""
    matrix = _complex()
    expected = torch.linalg.pinv(matrix)
    with DeterministicMode(), record(tmp_path / "run"), DeterministicMode():
        given = torch.linalg.pinv(matrix)
    torch.testing.assert_close(given, expected)
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Conjugate)


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
def test_nested_tensors_have_kernels_of_their_own(inference):
    """Products of nested tensors, whose composite forms cannot take them, give what they give."""
    rows, weight = (
        torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
        torch.ones(5, 4),
    )
    with torch.inference_mode(inference), DeterministicMode(simulate="cuda"):
        given = F.linear(rows, weight)
    assert [part.tolist() for part in given.unbind()] == [[[4.0] * 5] * 2, [[4.0] * 5] * 3]
