"""The rows for torchvision wake when its operators exist."""

import importlib
import importlib.util
from collections.abc import Iterator

import pytest
import table_facts as facts
import torch

from detmode import DeterministicMode
from detmode.call import Call, Signature
from detmode.messages import alert_text
from detmode.rules import default_rules
from detmode.sample import Sample
from detmode.table import resolve
from detmode.verify.cases import samples_of

POOLED = "SymInt pooled_height, SymInt pooled_width"
SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
PAIRS = ", ".join(
    f"SymInt {name}_{axis}" for name in ("stride", "pad", "dilation") for axis in "hw"
)
SCHEMAS = (
    f"_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, {POOLED}, {SIZES}, "
    "int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, {POOLED}, "
    f"{SIZES}) -> Tensor",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, "
    f"float spatial_scale, {POOLED}, int sampling_ratio, {SIZES}) -> Tensor",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, "
    f"float spatial_scale, {POOLED}, {SIZES}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, "
    f"Tensor mask, Tensor bias, {PAIRS}, SymInt groups, SymInt offset_groups, bool use_mask) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, "
    f"{POOLED}, int sampling_ratio, bool aligned) -> Tensor",
)
"""torchvision's own, of 0.29; without torchvision the tests define them."""

SAMPLES = [
    pytest.param(sample, id=f"{sample.op.partition('::')[2]}-{sample.device}")
    for sample in samples_of("torchvision").SAMPLES
]


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    if importlib.util.find_spec("torchvision") is not None:
        importlib.import_module("torchvision")
        yield
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    yield
    library._destroy()


def alert_of(op: str) -> str:
    return next(row.rule.alert for row in facts.rows() if row.rule.op == op and row.rule.alert)


@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_meet_the_rows(sample: Sample) -> None:
    """On CUDA and MPS a sample meets the row that refuses; deform_conv2d's only on CUDA."""
    func = resolve(sample.op)
    assert func is not None
    given = Call(func, Signature(func).bind((), sample.arguments(torch.float32)), sample.device)
    row = next(row for row in default_rules().get(func) if row.rule.when(given))
    refused = sample.device == "cuda" or (sample.device == "mps" and "deform" not in sample.op)
    assert (row.rule.alert is not None) == refused


@pytest.mark.parametrize(
    "op", sorted({row.rule.op for row in facts.rows() if row.rule.op[:5] == "torch"})
)
def test_raises(op: str) -> None:
    """As if on CUDA, the backward operators raise with torchvision's caller names."""
    sample = next(each for each in samples_of("torchvision").SAMPLES if each.op == op)
    func = resolve(op)
    assert func is not None
    with DeterministicMode(simulate="cuda"):  # noqa: SIM117
        with pytest.raises(RuntimeError) as caught:
            func(**sample.arguments(torch.float32))
    assert str(caught.value).startswith(alert_text(alert_of(op), warn=False))


def test_forward_is_remembered() -> None:
    """The forward operators' places are kept for the backward's rows."""
    func = resolve("torchvision::roi_align")
    assert func is not None
    assert default_rules().is_forward(func)
