"""Compiled code on a GPU: Inductor's kernels, and CUDA graphs, around substitutes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from timing import tensors_of as tensors_in

from detmode import DeterministicMode
from detmode.mode.compiled import hooks
from detmode.verify.claims import same_bits
from tests.shared import needs
from tests.shared.gpu_calls import poison

pytestmark = [
    # PyTorch's compilers warn of much that no test is about, and of more in each version.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not hooks.CAN_COMPILE, reason="PyTorch 2.8 compiles nothing inside the mode"
    ),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def mixed(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Generated code before, between and after listed operators, forward and backward."""
    large = F.interpolate((x * 2).sin(), size=(21, 21), mode="bilinear")
    sums = x.new_zeros(5, 21).index_add(0, index, large.relu().flatten(0, 2)[: len(index)])
    return large.square().mean() + sums.cumsum(1).cos().sum()


def step(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradient, in memory that no later replay writes."""
    x, index = arguments
    x = x.detach().requires_grad_()
    result = function(x, index)
    result.backward()
    return [result.detach().clone(), x.grad.clone()]


def counted(mode: DeterministicMode) -> dict[Any, int]:
    return {(row.overload, row.site): row.count for row in mode.records if row.action != "native"}


ON_HOST = pytest.param("cpu", "default", marks=[needs.compiler, pytest.mark.thorough])
PLACES = (
    ON_HOST,
    *(
        pytest.param("cuda", mode, marks=pytest.mark.cuda)
        for mode in ("default", "reduce-overhead")
    ),
)


@pytest.mark.parametrize("intercept", ["all", "listed"])
@pytest.mark.parametrize(("device", "how"), PLACES)
def test_each_call_is_counted_and_keeps_its_bits(device: str, how: str, intercept: str) -> None:
    """A compiled step under the mode: the first calls, which record CUDA graphs, and replays.

    Each counts the calls of an eager step, and has the bits of the others with the same values.
    """
    torch.manual_seed(0)
    with torch.device(device):
        inputs = [(torch.randn(2, 3, 9, 9), torch.randint(5, (40,))) for _ in range(2)]
    given = {"simulate": "cuda" if device == "cpu" else None, "intercept": intercept}
    with DeterministicMode(**given) as eager:
        expected = [step(mixed, *each) for each in inputs]
    compiled = torch.compile(mixed, mode=how)
    found: list[list[list[torch.Tensor]]] = [[], []]
    for number in range(6):
        if device == "cuda":
            poison(0xFF)
        torch.compiler.cudagraph_mark_step_begin()
        with DeterministicMode(**given) as mode:
            found[number % 2].append(step(compiled, *inputs[number % 2]))
        once = {key: count // 2 for key, count in counted(eager).items()}
        assert {key[0]: n for key, n in counted(mode).items()} == {k[0]: n for k, n in once.items()}
    for (first, *others), theirs in zip(found, expected):
        assert all(same_bits(tensors_in(other), tensors_in(first)) for other in others)
        # Generated code may round otherwise than ATen's.
        for mine, other in zip(first, theirs):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
