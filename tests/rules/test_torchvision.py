"""The rooms of torchvision's operators: their rows wake when its operators exist."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import table_facts as facts
import torch
from torchvision_operators import INSTALLED, ROOMS, operators

from detmode import DeterministicMode, Refuse, Substitute
from detmode.call import Call, Signature
from detmode.cuda import CompileError, host, unavailable
from detmode.messages import alert_text
from detmode.rules import default_rules, room_table
from detmode.sample import Sample
from detmode.table import resolve
from detmode.verify.cases import Case, samples_of
from detmode.verify.claims import check_bits, check_truth

SAMPLES = [
    pytest.param(sample, id=f"{room}-{sample.op.partition('::')[2]}-{sample.device}-{sample.name}")
    for room in ROOMS
    for sample in samples_of(room).SAMPLES
]
CASES = [
    Case(room, sample, dtype, None)
    for room in ROOMS
    for sample in samples_of(room).SAMPLES
    if sample.device == "cuda"
    for dtype in sample.dtypes
]
OPS = sorted({row.rule.op for room in ROOMS for row in room_table(room)})
needs_compiler = pytest.mark.skipif(
    unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)


@pytest.fixture(scope="module", autouse=True)
def defined() -> Iterator[None]:
    with operators():
        yield


def overlaps(op: str) -> Sample:
    """The sample of that name."""
    return next(
        sample
        for room in ROOMS
        for sample in samples_of(room).SAMPLES
        if (sample.op, sample.name) == (op, "overlaps")
    )


@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_meet_the_rows(sample: Sample) -> None:
    """On CUDA a sample meets a substitute; on MPS PyTorch refuses all but deform_conv2d."""
    func = resolve(sample.op)
    assert func is not None
    given = Call(func, Signature(func).bind((), sample.arguments(torch.float32)), sample.device)
    row = next(row for row in default_rules().get(func) if row.rule.when(given))
    assert isinstance(row.rule.action, Substitute) == (sample.device == "cuda")
    refused = sample.device == "mps" and "deform" not in sample.op
    assert isinstance(row.rule.action, Refuse) == refused


@pytest.mark.parametrize("op", OPS)
def test_raises(op: str) -> None:
    """As if on CUDA, without substitutes, they raise with torchvision's caller names."""
    func = resolve(op)
    assert func is not None
    alert = next(row.rule.alert for row in facts.rows() if row.rule.op == op and row.rule.alert)
    with DeterministicMode(simulate="cuda", substitute=False):  # noqa: SIM117
        with pytest.raises(RuntimeError) as caught:
            func(**overlaps(op).arguments(torch.float32))
    assert str(caught.value).startswith(alert_text(alert, warn=False))


def test_forward_is_remembered() -> None:
    """The forward operators' places are kept for the backward's rows."""
    func = resolve("torchvision::roi_align")
    assert func is not None
    assert default_rules().is_forward(func)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_schedules_do_not_change_bits(case: Case, schedules: int) -> None:
    """Program order and shuffled schedules of the host runner give identical bytes."""
    check_bits(case, "host", schedules)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_is_no_larger(case: Case) -> None:
    """The error against float64 is at most twice torchvision's plus a rounding."""
    if case.room == "deform_conv2d" and case.sample.name == "special_values" and not INSTALLED:
        pytest.skip("autograd, the stand-in, multiplies infinities by other terms than torchvision")
    check_truth(case)


@needs_compiler
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("what", ["rois", "grad", "dtype", "bfloat16", "mapping"])
def test_refused(op: str, what: str) -> None:
    """Shapes and dtypes that do not fit are refused, as torchvision does since 0.29."""
    given = overlaps(op).arguments(torch.float32)
    second = "rois" if "roi" in op else "offset"
    if what == "rois":
        given[second] = given[second][:, :4]
    elif what == "grad":
        given["grad"] = given["grad"][:, :3]
    elif what == "dtype":
        given[second] = given[second].double()
    elif what == "bfloat16":
        given = overlaps(op).arguments(torch.bfloat16)
    else:
        name = next((key for key in ("argmax", "channel_mapping", "mask") if key in given), second)
        given[name] = given[name].to(torch.int64)
    func = resolve(op)
    assert func is not None
    with (
        DeterministicMode(simulate="cuda"),
        pytest.raises(RuntimeError, match="should|implemented|type"),
    ):
        func(**given)


@needs_compiler
@pytest.mark.parametrize("op", [op for op in OPS if "roi" in op])
@pytest.mark.parametrize("image", [-1.0, 2.0, float("nan")])
def test_image_that_is_not_there(op: str, image: float) -> None:
    """A region of no image traps: torchvision writes out of bounds."""
    given = overlaps(op).arguments(torch.float32)
    given["rois"][1, 0] = image
    func = resolve(op)
    assert func is not None
    with DeterministicMode(simulate="cuda"), pytest.raises(host.DeviceAssert):
        func(**given)


@needs_compiler
def test_other_mapping() -> None:
    """A channel_mapping that is not the forward's traps."""
    for op in (op for op in OPS if "_ps_" in op):
        given = overlaps(op).arguments(torch.float32)
        given["channel_mapping"][0, 0, 0, 0] = 1
        func = resolve(op)
        assert func is not None
        with DeterministicMode(simulate="cuda"), pytest.raises(host.DeviceAssert):
            func(**given)


SCRIPT = """
import sys
import torch
from torchvision_operators import ROOMS, operators
from detmode.verify.cases import cases, run_substituted

with operators():
    chosen = [case for room in ROOMS for case in cases(room) if case.dtype is torch.float32]
    for case in chosen:
        print(case, file=sys.stderr, flush=True)
        run_substituted(case.sample, case.dtype)
        run_substituted(case.sample, case.dtype, schedule_seed=1)
print(len(chosen), "clean")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
def test_no_fault_in_any_sample() -> None:
    """No access outside a buffer and no undefined behaviour."""
    try:
        environment = host.sanitizer_environment()
    except CompileError as error:
        pytest.skip(str(error))
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={
            **os.environ,
            **environment,
            "UBSAN_OPTIONS": "halt_on_error=1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    count, verdict = run.stdout.split()
    assert verdict == "clean"
    assert int(count) == len([case for case in CASES if case.dtype is torch.float32])
