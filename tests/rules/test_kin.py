"""Every operator of the installed PyTorch that is kin to a listed one is listed, or said not to."""

from fnmatch import fnmatchcase

import pytest
import torch

from detmode.bits.effects import COLLECTIVES
from detmode.rules import default_rules
from detmode.table.rule_table import resolve

if torch.distributed.is_available():
    import torch.distributed._functional_collectives
    import torch.distributed._symmetric_memory

TABLE = default_rules()
VENDORS = ("cudnn_", "miopen_", "mkldnn_", "thnn_")

_TORCHSCRIPT = "TorchScript's own; it calls the listed overload"
_RESIZES = "it makes no memory itself, and calls resize_, which is listed"
_FOR_THE_CPU = "it runs on the CPU alone"
_AMD = "MIOpen runs on AMD's GPUs, which no row speaks of"
_GATHERS = "on CUDA one thread owns an element of the result and gathers what belongs there"
_BY_RANK = "each GPU adds what it reads from its peers in an order that its rank fixes"
_MADE_OF_LISTED = "it is made of listed operators, and adds nothing itself"
_NAMED = "a named tensor's, which PyTorch refuses under any dispatch mode"
REASONS = {
    "aten::*.dimname*": _NAMED,
    "aten::*.names*": _NAMED,
    "*hacked_twin": _TORCHSCRIPT,
    "aten::empty.out": _RESIZES,
    "aten::linear.*": _MADE_OF_LISTED,
    "aten::*median.default": "without dim no index is returned, and nothing varies",
    "aten::*median.out": "without dim no index is returned, and nothing varies",
    "aten::scatter*.value": "one number is written, whichever source comes last",
    "aten::scatter.value_out": "one number is written, whichever source comes last",
    "aten::ctc_loss.*": "its parts are listed",
    "aten::_ctc_loss.*": "the forward adds nothing atomically; its backward is listed",
    "aten::_logcumsumexp.*": "PyTorch calls it in logcumsumexp alone",
    "prims::*": "a form for tracing, which runs as the listed operator",
    "prim::*": _TORCHSCRIPT,
    "c10d::scatter_.default": "it sends, and adds nothing",
    "aten::_convolution_double_backward.default": "its convolutions are told to be deterministic",
    "aten::embedding_backward.default": _MADE_OF_LISTED,
    "aten::*embedding*_sparse_backward.default": "a sparse gradient is not added up",
    "aten::_grid_sampler_2d_cpu_fallback_backward.default": _FOR_THE_CPU,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward.default": _FOR_THE_CPU,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward.default": "PyTorch has no "
    "kernel of its own for it",
    "aten::mkldnn_*": _FOR_THE_CPU,
    "aten::miopen_*": _AMD,
    "aten::avg_pool2d_backward.*": _GATHERS,
    "aten::upsample_nearest[12]d_backward.*": _GATHERS,
    "aten::_upsample_nearest_exact[12]d_backward.*": _GATHERS,
    "aten::max_pool2d_backward.*": "it runs on MPS alone",
    "symm_mem::_low_contention_reduce_scatter.default": _BY_RANK,
    "symm_mem::fused_*matmul_reduce_scatter.default": _BY_RANK,
}
"""Overloads, or globs of them, that are kin to a listed operator and in no row, and why."""


def stem(name: str) -> str:
    """An operator's name without what tells a variant or a vendor: ``"ctc_loss"``."""
    base = name.partition("::")[2].strip("_").removesuffix("_out").rstrip("_")
    for vendor in VENDORS:
        base = base.removeprefix(vendor)
    return base


def first_word(name: str) -> str:
    return stem(name).partition("_")[0]


def kin(listed: set[str]) -> dict[str, torch._ops.OpOverload]:
    """By name the overloads of this PyTorch that may vary for the reason why a listed one does.

    Its name is a listed one's, in another overload, variant, namespace or vendor's library
    (``mm.dtype``, ``reduce_scatter_tensor_out``); it is a backward whose name begins like a listed
    one's (``_upsample_lanczos2d_aa_backward``); its caller says whether it is deterministic
    (``_cudnn_ctc_loss``); or it is a collective that reduces (``multimem_all_reduce_``).

    Args:
        listed: names of operators, with or without an overload.
    """
    bases = {op.partition(".")[0] for op in listed}
    stems = set(map(stem, bases))
    backwards = {first_word(base) for base in bases if base.endswith("_backward")}
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name, arguments = schema.name, {argument.name for argument in schema.arguments}
        if (
            stem(name) in stems
            or (name.endswith("_backward") and first_word(name) in backwards)
            or arguments & {"deterministic", "benchmark"}
            or (name.partition("::")[0] in COLLECTIVES and "reduce" in f"{name} {arguments}")
        ):
            overload = f"{name}.{schema.overload_name or 'default'}"
            func = resolve(overload)
            if func is not None:  # the dispatcher does not know TorchScript's own
                found[overload] = func
    return found


LISTED = {row.rule.op for row in TABLE}
KIN = kin(LISTED)


@pytest.mark.parametrize("name", sorted(KIN))
def test_kin_are_listed(name: str) -> None:
    """An operator that is kin to a listed one has a row, or a reason why it has none."""
    excused = [glob for glob in REASONS if fnmatchcase(name, glob)]
    if TABLE.get(KIN[name]):
        assert not excused, f"{name} has a row: remove {excused[0]!r} from REASONS"
    else:
        assert excused, (
            f"{name} is in no row: add it to its family under detmode/rules/, or say in REASONS of "
            "tests/rules/test_kin.py why it does not vary"
        )


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("_c10d_functional::reduce_scatter_tensor_out", ""),
        ("_c10d_functional_autograd::reduce_scatter_tensor", ""),
        ("aten::_cudnn_ctc_loss", ""),
        ("aten::_upsample_lanczos2d_aa_backward", ""),
        ("aten::mm.dtype", ""),
        ("aten::baddbmm.dtype", "aten::baddbmm.dtype_out"),
        ("symm_mem::multimem_all_reduce_", ""),
        ("symm_mem::multimem_one_shot_all_reduce", ""),
    ],
)
def test_each_sort_of_kin_is_found(op: str, name: str) -> None:
    """An operator of each sort is kin to what is listed when its own row is not there."""
    name = name or (op if "." in op else f"{op}.default")
    if resolve(name) is None:
        pytest.skip(f"this PyTorch {torch.__version__} has no {name}")
    assert name in kin(LISTED - {op})
