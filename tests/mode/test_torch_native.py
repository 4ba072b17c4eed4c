"""Kernels that PyTorch's ``torch._native`` puts in the place of ATen's, and how modes meet them."""

import importlib
import pkgutil

import pytest
import torch

from detmode import DeterministicMode, allow, default_rules
from detmode.mode import listed
from tests.shared.gpu_calls import DEVICES

LISTED = {"bmm", "scatter_add", "scatter_add.out", "scatter_add_", "topk", "topk.values"}
"""The kernel for ``bmm`` multiplies columns by rows and adds nothing. The others read PyTorch's
flag: under it ``scatter_add`` leaves the call to ATen's kernel, and ``topk`` orders ties."""


def test_listed_operators_that_pytorch_overrides(monkeypatch):
    """They stand at the key of CUDA, where ``intercept="listed"`` is; none is new.

    A kernel for another listed operator would need a look: does it vary under the flag?
    """
    native = pytest.importorskip("torch._native", reason="PyTorch 2.12 and newer have it")
    found = set()

    def note(library, op, key, *_, **__):
        found.add((f"{library}::{op.partition('.')[0]}", op, key))

    for module in pkgutil.iter_modules(native.__path__):
        if module.name.endswith("_utils"):
            languages = importlib.import_module(f"{native.__name__}.{module.name}")
            if hasattr(languages, "register_op_override"):
                monkeypatch.setattr(languages, "register_op_override", note)
    for module in pkgutil.iter_modules(native.ops.__path__):
        # Registers once more what it registers when PyTorch is imported.
        importlib.reload(importlib.import_module(f"{native.ops.__name__}.{module.name}"))
    assert {key for *_, key in found} <= {"CUDA"}
    table = default_rules()
    assert {op for name, op, _ in found if table.names(name)} <= LISTED


@pytest.mark.skipif(not listed.AVAILABLE, reason="an override falls back by get_kernel")
# PyTorch warns of every kernel that replaces one.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_modes_are_above_overrides(intercept, device):
    """A substitute takes the call; what is allowed meets the override, and native calls ATen's."""
    ran = []

    def scatter_add(keys, *args):
        # As torch._native registers them.
        if torch.are_deterministic_algorithms_enabled():
            return aten.call_boxed(keys, *args)
        ran.append(args)
        return args[0] + 1

    def call():
        ran.clear()
        with torch.device(device):
            given = (torch.zeros(3), 0, torch.zeros(5, dtype=torch.int64), torch.ones(5))
        return torch.scatter_add(*given)[0].item(), len(ran)

    def under(**arguments):
        simulate = "cuda" if device == "cpu" else None
        return DeterministicMode(simulate=simulate, intercept=intercept, **arguments)

    key = device.upper()
    aten = torch.library.get_kernel("aten::scatter_add", key)
    library = torch.library.Library("aten", "IMPL", key)
    try:
        library.impl("scatter_add", scatter_add, key, with_keyset=True)
        assert call() == (1, 1)
        with under() as mode:
            assert call() == (5, 0)
            with allow("aten::scatter_add"):
                assert call() == (1, 1)
        assert [row.action for row in mode.records] == ["substitute", "allow"]
        for arguments in ({"overrides": {"aten::scatter_add": "native"}}, {"substitute": False}):
            with under(**arguments):
                assert call() == (5, 0)
        assert call() == (1, 1)
    finally:
        library._destroy()
