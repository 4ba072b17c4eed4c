"""The families of torchvision's operators: their rows wake when its operators exist."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from detmode import DeterministicMode, Refuse, RuleTable, Substitute
from detmode.cuda import host, unavailable
from detmode.mode.messages import alert_text
from detmode.process.torch_settings import deterministic_flag
from detmode.rules import default_rules, family_table
from detmode.table.rule_table import resolve
from detmode.verify.cases import Case, matching_row, samples_of, tensors_of
from detmode.verify.claims import check_bits, check_races, check_truth
from tests.shared import needs
from tests.shared import table_facts as facts
from tests.shared.selection import PROFILE, Group, check_each, chosen, families, grouped, once
from tests.shared.torchvision_operators import FAMILIES, INSTALLED, operators

CASES = [
    Case(family, sample, dtype, None)
    for family in FAMILIES
    if family in families()
    for sample in samples_of(family).cases
    if sample.device == "cuda"
    for dtype in sample.dtypes
]
CHOSEN = chosen(CASES)
OPS = sorted({row.rule.op for family in FAMILIES for row in family_table(family)})


@pytest.fixture(scope="module", autouse=True)
def defined() -> Iterator[None]:
    with operators():
        yield


def overlaps(op: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The arguments of the sample of that name."""
    samples = (sample for family in FAMILIES for sample in samples_of(family).cases)
    return next(s for s in samples if (s.op, s.name) == (op, "overlaps")).arguments(dtype)


def alert_of(op: str) -> str:
    """The beginning of the error that torchvision raises."""
    alert = next(row.rule.alert for row in facts.rows() if row.rule.op == op and row.rule.alert)
    return alert_text(alert, warn=False)


def run(op: str, arguments: dict[str, Any], **settings: Any) -> tuple[torch.Tensor, ...]:
    """The results of an operator as if on CUDA."""
    with DeterministicMode(simulate="cuda", **settings):
        return tensors_of(resolve(op)(**arguments))


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_meet_the_rows(family: str) -> None:
    """On CUDA a sample meets a substitute; on MPS PyTorch refuses all but deform_conv2d."""
    for sample in samples_of(family).cases:
        row = matching_row(sample, torch.float32)
        assert row is not None, sample
        assert isinstance(row.rule.action, Substitute) == (sample.device == "cuda"), sample
        refused = sample.device == "mps" and "deform" not in sample.op
        assert isinstance(row.rule.action, Refuse) == refused, sample


@pytest.mark.parametrize("op", OPS)
def test_raises(op: str) -> None:
    """As if on CUDA, without substitutes, they raise with torchvision's caller names."""
    with pytest.raises(RuntimeError) as caught:
        run(op, overlaps(op), substitute=False)
    assert str(caught.value).startswith(alert_of(op))


def test_forward_is_remembered() -> None:
    """The forward operators' places are kept for the backward's rows."""
    assert default_rules().is_forward("torchvision::roi_align")


def bits(case: Case) -> None:
    check_bits(case, "host", PROFILE.schedules_in(case.dtype))


def truth(case: Case) -> None:
    # Autograd, the stand-in, multiplies infinities by other terms than torchvision.
    if INSTALLED or (case.family, case.sample.name) != ("deform_conv2d", "special_values"):
        check_truth(case)


@needs.compiler
@pytest.mark.parametrize(
    ("group", "check"),
    [
        pytest.param(group, check, id=f"{group}-{check.__name__}")
        for check in (bits, truth, check_races)
        for group in grouped(
            CHOSEN if PROFILE.thorough or check is not check_races else once(CHOSEN)
        )
    ],
)
def test_claims(group: Group, check: Callable[[Case], object]) -> None:
    """No schedule changes a bit, no access races, no error is larger than torchvision's."""
    check_each(group, check)


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_gpu(case: Case) -> None:
    """On a GPU too runs have the same bits, and errors are no larger than torchvision's."""
    check_bits(case, "cuda", 100)
    check_truth(case, "cuda")


@pytest.mark.cuda
@pytest.mark.skipif(not INSTALLED, reason="torchvision is not installed")
@pytest.mark.parametrize(
    ("forward", "rest"),
    [("roi_align", (2, True)), ("roi_pool", ()), ("ps_roi_align", (2,)), ("ps_roi_pool", ())],
)
def test_torchvision_alerts_on_a_gpu(forward: str, rest: tuple[Any, ...]) -> None:
    """The backward of its own operators raises with the table's caller name under the flag."""
    image = torch.randn(1, 4, 8, 8, device="cuda", requires_grad=True)
    rois = torch.tensor([[0.0, 0.0, 0.0, 5.0, 5.0]], device="cuda")
    with deterministic_flag(True):
        pooled = getattr(torch.ops.torchvision, forward)(image, rois, 1.0, 2, 2, *rest)
        pooled = pooled[0] if isinstance(pooled, tuple) else pooled
        with pytest.raises(RuntimeError) as caught:
            pooled.sum().backward()
    assert str(caught.value).startswith(alert_of(f"torchvision::_{forward}_backward"))


@needs.compiler
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("what", ["rois", "grad", "dtype", "bfloat16", "mapping"])
def test_refused(op: str, what: str) -> None:
    """Shapes and dtypes that do not fit are refused, as torchvision does since 0.29."""
    given = overlaps(op, torch.bfloat16 if what == "bfloat16" else torch.float32)
    second = "rois" if "roi" in op else "offset"
    if what == "rois":
        given[second] = given[second][:, :4]
    elif what == "grad":
        given["grad"] = given["grad"][:, :3]
    elif what == "dtype":
        given[second] = given[second].double()
    elif what == "mapping":
        name = next((key for key in ("argmax", "channel_mapping", "mask") if key in given), second)
        given[name] = given[name].to(torch.int64)
    with pytest.raises(RuntimeError, match="should|implemented|type"):
        run(op, given)


@needs.compiler
@pytest.mark.parametrize("op", [op for op in OPS if "roi" in op])
@pytest.mark.parametrize("image", [-1.0, 2.0, float("nan")])
def test_image_that_is_not_there(op: str, image: float) -> None:
    """A region of no image traps: torchvision writes out of bounds."""
    given = overlaps(op)
    given["rois"][1, 0] = image
    with pytest.raises(host.DeviceAssert):
        run(op, given)


@needs.compiler
@pytest.mark.parametrize("op", [op for op in OPS if "_ps_" in op])
def test_other_mapping(op: str) -> None:
    """A channel_mapping that is not the forward's traps."""
    given = overlaps(op)
    given["channel_mapping"][0, 0, 0, 0] = 1
    with pytest.raises(host.DeviceAssert):
        run(op, given)


@needs.compiler
@pytest.mark.parametrize("op", OPS)
def test_no_negative_zero(op: str) -> None:
    """Gradients of -0.0 are added to +0.0, as torchvision adds them."""
    given = overlaps(op)
    for result in run(op, given | {"grad": -torch.zeros_like(given["grad"])}):
        assert not result.signbit().logical_and(result == 0).any() or result.dim() == 1


ALERTS = sorted(
    {row.rule.alert for family in FAMILIES for row in family_table(family) if row.rule.alert}
)


@pytest.mark.parametrize("alert", ALERTS)
def test_the_mode_answers_for_the_python_alert(alert: str) -> None:
    """An alert in Python is passed over where a mode meets the operator."""

    def alerts() -> str:
        with pytest.raises(RuntimeError) as caught:
            torch._prims_common.alert_not_deterministic(alert)
        return str(caught.value)

    original = torch._prims_common.alert_not_deterministic
    with deterministic_flag(True):
        expected = alerts()
    with DeterministicMode():
        torch._prims_common.alert_not_deterministic(alert)
        # So it does while a compiler traces the program.
        with tracing(TracingContext(None)), _disable_current_modes():
            torch._prims_common.alert_not_deterministic(alert)
        with ThreadPoolExecutor(1) as others:
            assert others.submit(alerts).result() == expected
        with pytest.raises(RuntimeError, match="another_kernel"):
            torch._prims_common.alert_not_deterministic("another_kernel")
        with DeterministicMode(rules=RuleTable()):
            assert alerts() == expected
    assert torch._prims_common.alert_not_deterministic is original


class Aligned(torch.autograd.Function):
    """roi_align's backward as torchvision has it since 0.29, on any device."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        ctx.given = given
        return given["grad"].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        torch._prims_common.alert_not_deterministic("roi_align_backward_kernel")
        return torch.ops.torchvision._roi_align_backward(**(ctx.given | {"grad": grad})), None


def test_backward_meets_the_mode() -> None:
    """A backward that alerts in Python is substituted, allowed, or refused with its own text."""
    given = overlaps("torchvision::_roi_align_backward")

    def backward(**settings: Any) -> tuple[str, ...]:
        input = torch.zeros(2, 4, 8, 8, requires_grad=True)
        with DeterministicMode(simulate="cuda", **settings) as mode:
            Aligned.apply(input, given).sum().backward()
        return tuple(record.action for record in mode.records)

    if unavailable("cpu") is None:
        assert backward() == ("substitute",)
    assert backward(overrides={"torchvision::*": "allow"}) == ("allow",)
    with pytest.raises(RuntimeError) as caught:
        backward(substitute=False)
    assert str(caught.value).startswith(alert_text("roi_align_backward_kernel", warn=False))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module like torchvision.ops.roi_align, whose decomposition compiles at its first call."""
    module = ModuleType("torchvision.ops.roi_align")
    module.taken = []

    def compiled(*arguments: Any) -> None:
        module.taken.append("compiled")

    def compiles(*arguments: Any) -> None:
        module._roi_align = compiled
        compiled(*arguments)

    module.compiled, module.compiles, module._roi_align = compiled, compiles, compiles
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def align(module: ModuleType) -> None:
    """Calls of torchvision.ops.roi_align under the flag."""
    input, rois = torch.empty(2, 3, 9, 9, device="cuda"), torch.empty(4, 5, device="cuda")
    module._roi_align(input, rois, 1.0, 2, 2, -1, False)


def test_roi_align_calls_the_plain_operator(slow: ModuleType) -> None:
    """In the mode torchvision's decomposition is left out, before and after it was compiled."""
    with FakeTensorMode():
        with DeterministicMode():
            align(slow)
            with DeterministicMode(substitute=False):
                align(slow)
                align(slow)
            assert slow.taken == ["compiled", "compiled"]
            align(slow)
        assert len(slow.taken) == 2
        assert slow._roi_align is slow.compiled
        align(slow)
    assert len(slow.taken) == 3


def test_torchvision_may_be_imported_in_the_block(
    slow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script does that ``detmode run`` runs."""
    with FakeTensorMode():
        with DeterministicMode():
            monkeypatch.delitem(sys.modules, slow.__name__)
            monkeypatch.setattr(slow, "_roi_align", slow.compiles)
            monkeypatch.setitem(sys.modules, slow.__name__, slow)
            torch.empty(1).atan2(torch.empty(1))  # any operator that the mode has not seen
            align(slow)
        assert slow.taken == []
    assert slow._roi_align is slow.compiles
