"""New memory that PyTorch does not fill, as that of quantized tensors, is filled all the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from detmode import DeterminismWarning, DeterministicMode, audit
from detmode.testing import assert_reproducible

LARGEST = {torch.quint8: 255, torch.qint8: 127, torch.qint32: 2**31 - 1}


def quantized(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Zeros with a scale and a zero point."""
    return torch.quantize_per_tensor(torch.zeros(shape), 0.5, 3, dtype)


@pytest.mark.parametrize("simulate", [None, "cuda"])
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_new_elements_are_filled(dtype: torch.dtype, simulate: str | None) -> None:
    """Old elements stay, new ones are the largest integer, and nothing is raised."""
    x = quantized(dtype, 2, 2)
    with DeterministicMode(simulate=simulate) as mode:
        assert x.resize_(3, 3) is x
        functional = torch.ops.aten.resize(quantized(dtype, 2, 2), [3, 3])
    expected = [3] * 4 + [LARGEST[dtype]] * 5
    assert x.int_repr().flatten().tolist() == expected
    assert functional.int_repr().flatten().tolist() == expected
    assert (x.q_scale(), x.q_zero_point()) == (0.5, 3)
    assert {record.action for record in mode.records if "resize" in record.overload} == {
        "substitute"
    }


def test_memory_that_was_there_stays() -> None:
    """As in ATen, growing back into memory that a tensor kept shows what it held."""
    x = quantized(torch.quint8, 4)
    with DeterministicMode():
        x.resize_(2).resize_(6)
    assert x.int_repr().tolist() == [3, 3, 3, 3, 255, 255]


def test_filling_can_be_turned_off() -> None:
    """Then new memory is as it was found, and nothing is raised."""
    x = quantized(torch.quint8, 4)
    with DeterministicMode(fill_uninitialized_memory=False) as mode:
        x.resize_(6)
    assert x.int_repr()[:4].tolist() == [3] * 4
    assert [record.action for record in mode.records] == ["substitute"]


def test_memory_format_reaches_aten() -> None:
    """ATen resizes quantized tensors to contiguous ones only."""
    x = quantized(torch.quint8, 1, 2, 3, 1)
    with DeterministicMode(), pytest.raises(RuntimeError, match="memory format"):
        x.resize_(2, 3, 4, 5, memory_format=torch.channels_last)


def test_per_channel_is_rejected_as_by_aten() -> None:
    """ATen resizes only what is quantized per tensor."""
    x = torch.quantize_per_channel(
        torch.zeros(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint8
    )
    with DeterministicMode(), pytest.raises(RuntimeError, match="per-tensor"):
        x.resize_(9)


NEW: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(9, dtype=torch.quint8),
    "empty of bits": lambda: torch.empty(9, dtype=torch.bits8),
    "empty of 4-bit floats": lambda: torch.empty(9, dtype=torch.float4_e2m1fn_x2),
    "empty of 4-bit integers": lambda: torch.empty(9, dtype=torch.uint4),
    "empty_strided of bits": lambda: torch.empty_strided((9,), (1,), dtype=torch.bits16),
    "empty_permuted of bits": lambda: torch.empty_permuted((9,), (0,), dtype=torch.bits8),
    "empty_like": lambda: torch.empty_like(quantized(torch.quint8, 9)),
    "new_empty": lambda: quantized(torch.quint8, 2).new_empty(9),
    "empty_quantized": lambda: torch.empty_quantized([9], quantized(torch.quint8, 2)),
    "_empty_affine_quantized": lambda: torch._empty_affine_quantized(
        [9], scale=0.5, zero_point=3, dtype=torch.quint8
    ),
    "_empty_per_channel_affine_quantized": lambda: torch._empty_per_channel_affine_quantized(
        [9], scales=torch.ones(9), zero_points=torch.zeros(9), axis=0, dtype=torch.quint8
    ),
}
"""New memory that PyTorch itself does not fill, or for which it raises."""


def content_of(tensor: torch.Tensor) -> set[int]:
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return set(storage.tolist())


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("name", NEW)
def test_new_memory_is_filled(name: str, rate: float) -> None:
    """All bits of it are set, and a recheck does not blame the hardware for what it held."""
    used = [torch.full((64,), 90, dtype=torch.uint8) for _ in range(64)]
    del used
    with DeterministicMode(recheck=rate) as mode:
        tensor = NEW[name]()
    assert content_of(tensor) == {255}
    assert mode.records[-1].action == "substitute"


@pytest.mark.parametrize("name", NEW)
def test_new_memory_that_is_not_filled(name: str) -> None:
    """With the filling off all kinds can be allocated, and none is blamed for what it holds."""
    with DeterministicMode(fill_uninitialized_memory=False, recheck=1.0) as mode:
        NEW[name]()
    assert mode.records == ()


@pytest.mark.parametrize("name", ["_empty_affine_quantized", "empty_quantized", "empty_like"])
def test_out_forms_of_factories(name: str) -> None:
    """A warning tells that PyTorch copies unfilled memory to ``out``; of what it fills, none."""
    out, like = quantized(torch.quint8, 9), quantized(torch.quint8, 9)
    arguments: tuple[Any, ...] = {
        "_empty_affine_quantized": ([9],),
        "empty_quantized": ([9], like),
        "empty_like": (like,),
    }[name]
    func = getattr(torch.ops.aten, name).out
    with DeterministicMode() as mode, pytest.warns(DeterminismWarning, match=f"{name}.out"):
        func(*arguments, out=out)
    assert [record.action for record in mode.records] == ["warn"]
    with DeterministicMode(strict=True), pytest.raises(RuntimeError, match=f"{name}.out"):
        func(*arguments, out=out)
    with DeterministicMode(strict=True, fill_uninitialized_memory=False):
        func(*arguments, out=out)
    with DeterministicMode(strict=True):
        floats = torch.ops.aten.empty_like.out(torch.ones(9), out=torch.ones(9))
    assert floats.isnan().all()


def test_runs_that_vary_new_memory_vary_quantized_memory() -> None:
    """``assert_reproducible`` notices that a function returns new memory of a quantized tensor."""
    with pytest.raises(AssertionError):
        assert_reproducible(lambda: NEW["_empty_affine_quantized"]().int_repr())


def packed_linear(x: torch.Tensor, namespace: str = "quantized") -> torch.Tensor:
    weight = torch.quantize_per_tensor(torch.eye(4), 0.5, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    result: torch.Tensor = getattr(torch.ops, namespace).linear(x, packed, 0.5, 3)
    return result


RESIZING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quantized::linear": packed_linear,
    "_quantized::linear": lambda x: packed_linear(x, "_quantized"),
    "topk": lambda x: x.topk(2).values,
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 0])),
    "reflection_pad2d": lambda x: torch.nn.functional.pad(x[None], (1, 1, 1, 1), mode="reflect"),
}
"""Operators that resize a quantized tensor inside."""


@pytest.mark.parametrize("options", [{}, {"simulate": "cuda"}, {"recheck": 1.0}], ids=str)
@pytest.mark.parametrize("name", RESIZING)
def test_operators_that_resize_inside(name: str, options: dict[str, Any]) -> None:
    """They run under the mode and in an audit as they do without, and are in the report."""
    x = torch.quantize_per_tensor(torch.randn(3, 4), 0.5, 3, torch.quint8)
    expected = RESIZING[name](x)
    with DeterministicMode(**options) as mode:
        result = RESIZING[name](x)
    assert torch.equal(result.int_repr(), expected.int_repr())
    assert "substitute" in {record.action for record in mode.records}
    report = audit(RESIZING[name], x)
    assert {"error", "warn"}.isdisjoint(record.action for record in report.records)
    with DeterministicMode(substitute=False), pytest.raises(RuntimeError):
        RESIZING[name](x)
    assert torch.equal(RESIZING[name](x).int_repr(), expected.int_repr())


# torch.ao says of itself in many ways that it is deprecated.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines,
    reason="this PyTorch is built without FBGEMM",
)
def test_a_quantized_model() -> None:
    """An int8 model of ``torch.ao`` runs, and gives the bits that it gives without the mode."""
    quantization = torch.ao.quantization
    model = torch.nn.Sequential(
        quantization.QuantStub(),
        torch.nn.Linear(4, 8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 2),
        quantization.DeQuantStub(),
    ).eval()
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    x = torch.randn(5, 4)
    prepared = quantization.prepare(model)
    prepared(x)
    int8 = quantization.convert(prepared)
    expected = int8(x)
    with DeterministicMode():
        found = int8(x)
    assert torch.equal(found, expected)
