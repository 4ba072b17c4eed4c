"""PyTorch's table of operators with sample inputs for each, and how a sample is run."""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from timing import tensors_of

from tests.shared.selection import spread_operators, wanted

pytest.importorskip("expecttest", reason="PyTorch's table of operators imports expecttest")

SHARES = 24
"""In how many tests the operators are run."""


@cache
def operators() -> list[Any]:
    """PyTorch's table; it takes seconds to import."""
    # The test package forbids settings to the whole process.
    with warnings.catch_warnings(), patch("torch.backends.disable_global_flags"):
        # It imports what is deprecated.
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def share_of(share: int, dtypes: Sequence[torch.dtype]) -> Iterator[tuple[str, Any, torch.dtype]]:
    """Every :data:`SHARES`-th of the profile's operators, by name, in each dtype that it has."""
    for op in spread_operators(operators())[share::SHARES]:
        for dtype in dtypes:
            name = f"{name_of(op)}-{str(dtype).removeprefix('torch.')}"
            if dtype in op.supported_dtypes("cpu") and wanted(name):
                yield name, op, dtype


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def seed(number: int) -> None:
    """Seed the CPU's generator: torch.manual_seed keeps the stack of each call for the GPUs'."""
    torch.default_generator.manual_seed(number)


def samples_of(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """The samples of an operator on the CPU, the same each time, with gradients where it has them.

    PyTorch's own method walks the stack for the name of the test.
    """
    seed(0)
    wants_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return op.sample_inputs_func(op, "cpu", dtype, requires_grad=wants_grad)


def _gradients(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], *, again: bool
) -> list[torch.Tensor]:
    """Gradients of the inputs that reach the outputs; ``again``: those of the gradients too."""
    # Small whole numbers of both signs: a gradient at the wrong place shows.
    along = [((torch.arange(t.numel()) * 5) % 7 - 3).view(t.shape).to(t.dtype) for t in outputs]
    found = torch.autograd.grad(outputs, inputs, along, allow_unused=True, create_graph=again)
    first = [gradient for gradient in found if gradient is not None]
    second = [gradient for gradient in first if gradient.requires_grad]
    return first + (_gradients(second, inputs, again=False) if second else [])


def run(
    op: Any, sample: Any, *, twice: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results and gradients; ``twice``: the gradients of the gradients too, where it has them."""
    seed(1)
    result = op(sample.input, *sample.args, **sample.kwargs)
    outputs = [t for t in tensors_of(sample.output_process_fn_grad(result)) if t.requires_grad]
    inputs = [t for t in tensors_of((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
    if not outputs or not inputs:
        return tensors_of(result), []
    return tensors_of(result), _gradients(outputs, inputs, again=twice and op.supports_gradgrad)
