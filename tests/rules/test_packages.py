"""The families of packages that few machines have: their rows wake when their operators exist.

The operators are defined here by the packages' schemas, and on the CPU with the families'
references; bitsandbytes and torchao install anywhere, and are tested as they are.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from detmode import DeterministicMode
from detmode.mode.deterministic_mode import DeterminismWarning
from detmode.process.arguments import signature_of
from detmode.rules import default_rules
from detmode.rules.fbgemm import JAGGED
from detmode.table import conditions
from detmode.table.call import Call
from detmode.table.rule import Native, Refuse, Substitute
from detmode.table.rule_table import resolve
from detmode.table.twins import twin_of
from detmode.verify.cases import Case, matching_row, samples_of
from detmode.verify.claims import check_bits, check_races, check_truth
from tests.shared import needs
from tests.shared.selection import PROFILE, Group, check_each, chosen, families, grouped, once

_ROWS = "Tensor values, Tensor indices, Tensor input_offsets, Tensor output_offsets"
_EDGES = "Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None"
_SEGMENTS = "Tensor src, Tensor index, Tensor? out=None, int? dim_size=None"
_HEADS = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse"
_GRADIENTS = "Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv"
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left, "
    "SymInt window_size_right, float softcap, Tensor? alibi_slopes, bool deterministic, "
    "Tensor? rng_state=None"
)
_OPTIONS_3 = "float? softmax_scale=None, bool is_causal=False, bool deterministic=False"
SCHEMAS = {
    "pyg::scatter_sum": f"({_EDGES}) -> Tensor",
    "pyg::scatter_mul": f"({_EDGES}) -> Tensor",
    "pyg::segment_sum_coo": f"({_SEGMENTS}) -> Tensor",
    "pyg::segment_mean_coo": f"({_SEGMENTS}) -> Tensor",
    JAGGED[0]: f"({_ROWS}, SymInt num_dense_input_rows, SymInt num_output_rows) -> Tensor",
    JAGGED[1]: f"({_ROWS}, SymInt num_output_rows, SymInt? num_dense_input_rows=None) -> Tensor",
    "fbgemm::group_index_select_dim0_gpu_backward": (
        "(Tensor[] all_inputs, SymInt[] output_shape_group) -> Tensor[]"
    ),
    "flash_attn::_flash_attn_backward": f"({_HEADS}, {_GRADIENTS}, {_OPTIONS}) -> Tensor",
    "flash_attn::_flash_attn_varlen_backward": (
        f"({_HEADS}, {_GRADIENTS}, {_LENGTHS}, {_OPTIONS}) -> Tensor"
    ),
    "flash_attn_3::_flash_attn_backward": f"({_HEADS}, {_GRADIENTS}, {_OPTIONS_3}) -> Tensor",
    "flash_attn_3::bwd": (
        f"({_HEADS}, {_GRADIENTS}, {_OPTIONS_3}) -> "
        "(Tensor(a!), Tensor(b!), Tensor(c!), Tensor, Tensor)"
    ),
    "DaoAILab::_causal_conv1d_bwd_cpp": (
        "(Tensor x, Tensor weight, Tensor? bias, Tensor dout, Tensor? seq_idx, "
        "Tensor? initial_states, Tensor? dfinal_states, Tensor(a!) dx, Tensor(b!) dweight, "
        "Tensor(c!)? dbias, Tensor(d!)? dinitial_states, bool silu_activation) -> ()"
    ),
}
"""Of flash-attn-3 the arguments that are given here."""

SUMMING = ("pyg_lib", "fbgemm")
CASES = [
    Case(family, sample, dtype, None)
    for family in SUMMING
    if family in families()
    for sample in samples_of(family).cases
    if sample.device == "cuda" and sample.op in samples_of(family).references
    for dtype in sample.dtypes
    if dtype.is_floating_point
]
CHOSEN = chosen(CASES)
ATTENTION = [op for op in SCHEMAS if "flash" in op]
FAMILIES = ("flash_attn", "causal_conv1d", *SUMMING)

calls: list[dict[str, Any]] = []
"""The arguments of the calls of attention, by the schemas' names."""


def _by_name(op: str, reference: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    func = resolve(op)
    assert func is not None
    return reference(**signature_of(func).bind(args, kwargs))


def _attention(op: str, *args: Any, **kwargs: Any) -> Any:
    func = resolve(op)
    assert func is not None
    given = signature_of(func).bind(args, kwargs)
    calls.append(given)
    written = [given[name].fill_(2) for name in ("dq", "dk", "dv")]
    softmax_d = given["softmax_lse"] + 1
    return (*written, softmax_d, softmax_d.clone()) if op.endswith("::bwd") else softmax_d


def _asks_for_the_gpu(*args: Any, **kwargs: Any) -> Any:
    """As flash-attn-3 does, by ``torch.cuda.get_device_capability(q.device)``."""
    raise ValueError("Expected a cuda device, but got: meta")


@pytest.fixture(scope="module", autouse=True)
def defined() -> Iterator[None]:
    """Inside, ``torch.ops`` has the operators."""
    libraries = []
    references = {
        op: reference
        for family in SUMMING
        for op, reference in samples_of(family).references.items()
    }
    for op, schema in SCHEMAS.items():
        namespace, _, name = op.partition("::")
        libraries.append(library := torch.library.Library(namespace, "FRAGMENT"))
        library.define(name + schema)
        if op in references:
            library.impl(name, partial(_by_name, op, references[op]), "CPU")
        elif op in ATTENTION:
            library.impl(name, partial(_attention, op), "CPU")
            torch.library.register_fake(op, _asks_for_the_gpu, lib=library)
        else:
            library.impl(name, lambda *args, **kwargs: None, "CPU")
    yield
    for library in libraries:
        library._destroy()


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_meet_the_rows(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample binds to the schema; on CUDA, one of floats meets a row that acts."""
    monkeypatch.delenv("CAUSAL_CONV1D_DETERMINISTIC", raising=False)
    for sample in samples_of(family).cases:
        row = matching_row(sample, sample.dtypes[0])
        assert row is not None, sample
        acts = isinstance(row.rule.action, (Substitute, Native, Refuse))
        assert acts == (sample.device == "cuda"), sample


@pytest.mark.parametrize("op", ATTENTION)
@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_attention_is_asked_to_be_deterministic(op: str, intercept: Any) -> None:
    """The package's operator runs with ``deterministic=True``, writes, and returns its results."""
    sample = next(s for s in samples_of("flash_attn").cases if (s.op, s.name) == (op, "by_default"))
    given = sample.arguments(torch.float16)
    calls.clear()
    with DeterministicMode(simulate="cuda", intercept=intercept) as mode:
        results = resolve(op)(**given)
    assert [call["deterministic"] for call in calls] == [True]
    assert (given["dq"] == 2).all()
    last = results[-1] if isinstance(results, tuple) else results
    assert torch.equal(last, given["softmax_lse"] + 1)
    assert [record.action for record in mode.records] == ["substitute"]


def test_attention_returns_in_compiled_code() -> None:
    """Its twin in compiled graphs returns its results, beside what it writes."""
    for op in ATTENTION:
        func = resolve(op)
        assert func is not None
        assert len(twin_of(func)._schema.returns) == len(func._schema.returns), op


def test_attention_without_substitutes_warns() -> None:
    """Without substitutes, the call that asks for determinism is native; the other one warns."""
    for sample in samples_of("flash_attn").cases[:2]:
        with DeterministicMode(simulate="cuda", substitute=False) as mode:
            run = partial(resolve(sample.op), **sample.arguments(torch.float16))
            if sample.name == "as_asked":
                run()
            else:
                with pytest.warns(DeterminismWarning, match="float atomicAdd"):
                    run()
        actions = [record.action for record in mode.records if record.family == "flash_attn"]
        assert actions == ["native" if sample.name == "as_asked" else "warn"]


@pytest.mark.parametrize(
    ("value", "release", "warns"),
    [("", "1.6.0", False), ("1", "1.6.2", False), ("0", "1.6.0", True), ("", "1.5.0", True)],
)
def test_causal_conv1d(
    value: str, release: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases before 1.6, and the variable's ``0``, make it warn."""
    monkeypatch.setenv("CAUSAL_CONV1D_DETERMINISTIC", value)
    monkeypatch.setattr(conditions, "version", lambda package: release)
    condition = conditions.causal_conv1d_adds_by_atomics()
    sample = samples_of("causal_conv1d").cases[0]
    func = resolve(sample.op)
    assert func is not None
    assert condition(Call(signature_of(func), (), sample.arguments(torch.float32), "cuda")) == warns


@needs.compiler
@pytest.mark.parametrize(
    ("group", "check"),
    [
        pytest.param(group, check, id=f"{group}-{check.__name__}")
        for check in (check_bits, check_truth, check_races)
        for group in grouped(
            CHOSEN if PROFILE.thorough or check is not check_races else once(CHOSEN)
        )
    ],
)
def test_claims(group: Group, check: Callable[..., object]) -> None:
    """No schedule changes a bit, no access races, no error is larger than a sum in order has."""
    check_each(
        group,
        (lambda case: check_bits(case, "host", PROFILE.schedules_in(case.dtype)))
        if check is check_bits
        else check,
    )


@needs.compiler
@pytest.mark.parametrize("family", SUMMING)
def test_errors(family: str) -> None:
    """Sizes and indices that do not fit are refused."""
    for sample in samples_of(family).errors:
        with pytest.raises((RuntimeError, IndexError)), DeterministicMode(simulate="cuda"):
            resolve(sample.op)(**sample.arguments(torch.float32))


@needs.compiler
def test_size_is_found() -> None:
    """Without ``dim_size`` the largest index decides, and ``out`` is written and returned."""
    src, index = torch.ones(4), torch.tensor([0, 2, 2, 5])
    out = torch.zeros(7)
    with DeterministicMode(simulate="cuda"):
        assert torch.ops.pyg.scatter_sum(src, index).tolist() == [1, 0, 2, 0, 0, 1]
        assert torch.ops.pyg.segment_sum_coo(src, index, out) is out
    assert out.tolist() == [1, 0, 2, 0, 0, 1, 0]


def test_bitsandbytes() -> None:
    """Its operator has the rows' arguments; the norm of an update warns, and Adam is allowed."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    func = resolve("bitsandbytes::optimizer_update_32bit")
    assert func is not None
    found = {}
    for sample in samples_of("bitsandbytes").cases:
        row = matching_row(sample, torch.float32)
        assert row is not None, sample
        found[sample.name] = str(row.rule.action)
    assert found == {"by_norm": "Refuse", "by_norm_cpu": "Allow", "plain": "Allow"}


def test_nothing_is_imported() -> None:
    """The default table imports none of the packages."""
    default_rules()
    packages = ("flash_attn", "xformers", "pyg_lib", "fbgemm_gpu", "vllm", "causal_conv1d")
    assert not [name for name in packages if name in sys.modules]
