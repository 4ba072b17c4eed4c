"""A program as users write it: what mypy must know of our names, and what it must refuse."""

from typing import Any, Literal, TypeAlias

import torch
from typing_extensions import assert_type

import detmode
from detmode import (
    RUN_TO_RUN,
    DeterministicMode,
    Guarantee,
    Native,
    Report,
    ReportRow,
    Rule,
    RuleTable,
    Substitute,
)
from detmode.testing.reproducible import assert_reproducible

Action: TypeAlias = Literal["allow", "warn", "error", "native", "substitute"]
Severity: TypeAlias = Literal["error", "warning", "note"]


@DeterministicMode(warn_only=True)
def decorated(number: int) -> str:
    return str(number)


@detmode.allow("aten::histc")
def allowed(input: torch.Tensor, bins: int) -> torch.Tensor:
    return torch.histc(input, bins)


def step(model: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    with DeterministicMode(overrides={"aten::histc": "allow"}) as mode:
        assert_type(mode, DeterministicMode)
        with detmode.allow("aten::put_"):
            loss: torch.Tensor = model(input).sum()
    assert_type(mode.records, tuple[ReportRow, ...])
    assert_type(mode.report(), Report)
    assert_type(mode.report().to_json(), str)
    assert_type(mode.report().where(action="warn"), Report)
    assert_type(list(mode.report()), list[ReportRow])
    assert_type(mode.records[0].module, str | None)
    assert_type(mode.records[0].action, Action)
    assert_type(mode.records[0].guarantee, Guarantee | None)
    return loss


assert_type(decorated(1), str)
assert_type(allowed(torch.ones(3), 2), torch.Tensor)

rule = Rule(op="mine::scale", action=Native(), guarantee=RUN_TO_RUN, because="one thread a row")
assert_type(rule.guarantee, Guarantee | None)
assert_type(detmode.default_rules() + [rule], RuleTable)

assert_type(detmode.audit(step, torch.nn.ReLU(), torch.ones(1)).raises, bool)
assert_type(detmode.probe(decorated, 1, repeats=2).to_json(), str)
assert_type(detmode.diff("first", "second").identical, bool)
with detmode.check_ranks(torch.nn.ReLU(), every=100, also={"step": lambda: 1}) as check:
    assert_type(check.compare(), None)
assert_type(detmode.seed_everything(0), torch.Generator)
assert_type(detmode.rng_state(), dict[str, Any])
detmode.set_rng_state(detmode.rng_state())
assert_type(detmode.dataloader_kwargs(0), dict[str, Any])
assert_type(detmode.seed_worker(0), None)
assert_type(detmode.use_deterministic_algorithms(True, warn_only=True), None)
assert_type(detmode.is_deterministic_algorithms_warn_only_enabled(), bool)
assert_type(detmode.set_deterministic_debug_mode("warn"), None)
assert_type(detmode.get_deterministic_debug_mode(), int)
with detmode.record("run", level="step") as recording:
    assert_type(recording, detmode.record)
    detmode.end_step(loss=torch.ones(1))
    assert_type(detmode.run_digest(), str)
    detmode.RecordedSavePlanner(flatten_state_dict=False)
try:
    comparison = detmode.diff("first", "second")
    assert_type(comparison, detmode.Comparison)
except detmode.TraceError as error:
    assert_type(error, detmode.TraceError)
try:
    with DeterministicMode(recheck=0.001):
        step(torch.nn.ReLU(), torch.ones(1))
except detmode.RecheckError as varying:
    assert_type(varying.calls[0].overload, str)
except detmode.RankError as different:
    assert_type(different.ranks, tuple[int, ...])
certificate = detmode.certify("kernel.cu", {"n": 1}, entry="histogram", grid=2, block=64)
assert_type(certificate, detmode.Certificate)
assert_type(certificate.is_order_independent, bool)
assert_type(detmode.probe(decorated, 1), detmode.ProbeReport)
assert_type(detmode.doctor.findings()[0].severity, Severity)
assert_type(str(detmode.conditions.on("cuda")), str)
scopes: tuple[Guarantee, ...] = (RUN_TO_RUN, detmode.GPU_TO_GPU)
for action in (detmode.Allow(), detmode.Refuse()):
    Rule(op="mine::scale", action=action, because="it raises in the kernel")
assert issubclass(detmode.DeterminismWarning, UserWarning)
detmode.warm("aten::index_add", dtypes=[torch.float32], device="cpu")
reducer = detmode.distributed.MicrobatchReducer(torch.nn.Linear(1, 1), microbatches=8)
assert_type(next(reducer.microbatches(0)), int)
assert_type(reducer.mean([torch.ones(1)]), torch.Tensor)
assert_type(detmode.are_deterministic_algorithms_enabled(), bool)
assert_type(detmode.cuda.unavailable("cuda"), str | None)
assert_type(detmode.testing.VARIED[0], Literal["threads", "addresses", "memory", "schedule"])
assert_type(assert_reproducible(decorated, 1), str)
assert_type(assert_reproducible(decorated, 1, runs=2, vary=["threads"]), str)
assert_type(assert_reproducible(decorated, 1, vary=detmode.testing.VARIED[1:]), str)

actions: dict[str, Action] = {"aten::histc": "allow", "Net.head": "warn"}
DeterministicMode(overrides=actions, intercept="listed", simulate="cuda")
DeterministicMode(overrides={torch.ops.aten.histc: "allow", torch.ops.aten.put_.default: "warn"})
DeterministicMode(overrides={torch.histc: "allow"})
detmode.use_deterministic_algorithms(True, overrides={"aten::histc": "allow"})

DeterministicMode(warn_only="yes")  # type: ignore[arg-type]  # to be refused
DeterministicMode(rules=[rule])  # type: ignore[arg-type]  # to be refused
DeterministicMode(simulated="cuda")  # type: ignore[call-arg]  # to be refused
DeterministicMode(simulate="gpu")  # type: ignore[arg-type]  # to be refused
DeterministicMode(intercept="none")  # type: ignore[arg-type]  # to be refused
DeterministicMode(overrides={"aten::histc": "permit"})  # type: ignore[dict-item]  # to be refused
DeterministicMode(overrides={3: "allow"})  # type: ignore[dict-item]  # to be refused
detmode.record("run", level="calls")  # type: ignore[arg-type]  # to be refused
detmode.audit(decorated, "1")  # type: ignore[arg-type]  # to be refused
assert_reproducible(decorated, "1")  # type: ignore[call-overload]  # to be refused
assert_reproducible(decorated, 1, vary=["clock"])  # type: ignore[list-item]  # to be refused
Rule("aten::put_")  # type: ignore[call-arg]  # to be refused
Substitute("aten::put_")  # type: ignore[arg-type]  # to be refused
detmode.allow(torch.histc, "F.interpolate")
detmode.allow(3)  # type: ignore[arg-type]  # to be refused
detmode.seed_everything("0")  # type: ignore[arg-type]  # to be refused
assert_reproducible(decorated, 1, runs="2")  # type: ignore[call-arg]  # to be refused
decorated("1")  # type: ignore[arg-type]  # to be refused
detmode.distributed.MicrobatchReducer(step, 8)  # type: ignore[arg-type]  # to be refused
allowed(torch.ones(3), bins="2")  # type: ignore[arg-type]  # to be refused
print(detmode.no_such_name)  # type: ignore[attr-defined]  # to be refused
