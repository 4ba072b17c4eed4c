"""Operators of other libraries in compiled functions."""

import contextlib

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config

from detmode import DeterministicMode
from detmode.verify.claims import same_bits
from tests.mode.compiled.test_compiled import BACKENDS, COMPILED, rows
from tests.shared import needs
from tests.shared.selection import todays_forms

pytestmark = [
    needs.compiler,
    # PyTorch's compilers warn of much that no test is about, and of more in each version.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("no_caches"),
]


STRIDES = ["needs_exact_strides", "needs_fixed_stride_order", "flexible_layout"]
"""Tags by which an operator of a library tells Inductor which strides its arguments need."""


@pytest.fixture
def library():
    """The strides that operators of a library get; each has the name of its tag."""
    seen = []

    def double(x):
        seen.append(x.stride())
        return x * 2

    def double_(x):
        seen.append(x.stride())
        x.mul_(2)

    with torch.library._scoped_library("detmode_library", "FRAGMENT") as library:
        for tag in STRIDES:
            for name, function, schema in (
                (tag, double, "(Tensor x) -> Tensor"),
                (f"{tag}_", double_, "(Tensor(a!) x) -> ()"),
            ):
                library.define(f"{name}{schema}", tags=getattr(torch.Tag, tag))
                library.impl(name, function, "CPU")
            torch.library.register_fake(f"detmode_library::{tag}", torch.empty_like, lib=library)
        yield seen


@COMPILED
@pytest.mark.parametrize("tag", todays_forms(STRIDES))
@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_of_libraries(library, backend, tag):
    """They are met as in eager code, in place or not, with the strides that they get outside."""
    double, double_ = (getattr(torch.ops.detmode_library, f"{tag}{end}") for end in ("", "_"))

    def function(x):
        # Eager code gives the sum the strides of its first term, and Inductor those of the other.
        y, z = double(x.t() + x), x.t() - x
        double_(z)
        return y + z

    compiled, given = torch.compile(function, backend=backend), torch.randn(3, 3)
    expected, found, strides = function(given), [], []
    for each in (function, compiled):
        for block in (
            contextlib.nullcontext(),
            DeterministicMode(overrides={"detmode_library::*": "warn"}),
        ):
            library.clear()
            with block as mode:
                assert same_bits([each(given), each(given)], [expected] * 2)
            strides.append(library[:])
        found.append(rows(mode))
    assert strides[0] == strides[1]
    assert strides[2] == strides[3]
    assert found[0] == found[1]
    assert [(key[1], count) for key, count in found[0].items()] == [("warn", 2)] * 2
