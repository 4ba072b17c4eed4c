"""The census of atomics: the operators that it names exist, and those that vary have rows."""

import json

import torch

from detmode.process.versions import parse_version
from detmode.table.rule import Allow
from tests.shared import table_facts as facts

CENSUS = json.loads((facts.TESTS / "facts" / "atomics.json").read_text(encoding="utf-8"))


def acts(op: str) -> bool:
    """True if a row on CUDA does more than allow calls of the operator."""
    return any(
        row.rule.op == op and "cuda" in row.rule.when.devices
        for row in facts.rows()
        if not isinstance(row.rule.action, Allow)
    )


def test_atomics_on_floats_have_rows() -> None:
    """Every operator whose kernel has floating-point atomics meets a row that acts."""
    ops = [op for fact in CENSUS["float"] for op in fact["operators"]]
    assert len(ops) >= 40
    missing = [op for op in ops if not acts(op)]
    assert not missing, f"{missing[0]} adds by atomics, and no family has a row for it"


def test_operators_without_atomics_have_none() -> None:
    """An operator without atomics is not refused: its results do not vary."""
    ops = {op for fact in CENSUS["none"] for op in fact["operators"]}
    wrong = sorted(op for op in ops if acts(op))
    assert not wrong, f"the census says that {wrong[0]} does not vary, and a family has a row"


def test_operators_exist() -> None:
    """The names are those of PyTorch's operators."""
    parts = ("float", "integer", "none", "libraries")
    ops = {op for part in parts for fact in CENSUS[part] for op in fact["operators"]}
    if parse_version(torch.__version__) < (2, 9):
        ops.remove("aten::_fused_rms_norm_backward")  # newer
    unknown = sorted(op for op in ops if op.startswith("aten::") and facts.resolve(op) is None)
    assert not unknown, unknown
