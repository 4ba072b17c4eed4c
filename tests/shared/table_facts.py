"""Shared by the tests over the whole table: versions, facts, and which sample meets which row."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from detmode.process.arguments import signature_of
from detmode.process.torch_settings import FILL, FLAG
from detmode.process.undo import Undo
from detmode.process.versions import parse_version
from detmode.rules import families, family_table
from detmode.table.call import Call
from detmode.table.rule import Rule
from detmode.table.rule_table import Row, RuleTable, resolve
from detmode.table.samples import Sample
from detmode.verify.cases import samples_of
from tests.shared import ROOT, selection

TESTS = ROOT / "tests"
_ALERTS = json.loads((TESTS / "facts" / "alerts.json").read_text())
VERSIONS = tuple(_ALERTS["versions"])
"""The PyTorch versions that the table answers for."""

FACTS: dict[str, dict[str, list[str]]] = {version: {} for version in VERSIONS}
"""For each version the names that alert, by library."""
for _row in _ALERTS["rows"]:
    for _version in VERSIONS[VERSIONS.index(_row["since"]) : VERSIONS.index(_row["until"]) + 1]:
        FACTS[_version].setdefault(_row["library"], []).extend(_row["callers"])

_ENVIRONMENTS: tuple[dict[str, str | None], ...] = (
    {"CUBLAS_WORKSPACE_CONFIG": None, "NCCL_ALGO": None, "CAUSAL_CONV1D_DETERMINISTIC": None},
    {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "^NVLS,NVLSTree",
        "CAUSAL_CONV1D_DETERMINISTIC": "0",
    },
)


@cache
def rows() -> tuple[Row, ...]:
    """The rows of all families; third parties' are theirs to test."""
    return tuple(RuleTable.union(family_table(name) for name in families()))


def rows_of(family: str) -> list[Row]:
    """The rows of one family."""
    return [row for row in rows() if row.family == family]


def chains(version: str) -> dict[str, list[Row]]:
    """The rows of each operator for one version, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows():
        if row.rule.holds_for(parse_version(version)):
            found.setdefault(full_name(row.rule.op), []).append(row)
    return found


def full_name(op: str) -> str:
    """``"aten::put.default"`` for ``"aten::put"``."""
    return op if "." in op else f"{op}.default"


def family_file(row: Row, file: str = "__init__.py") -> str:
    """The file that a message about a row points to."""
    return f"detmode/rules/{row.family}/{file}"


def label(rule: Rule) -> str:
    """A row in a message: its operator, condition and versions."""
    versions = f" since {rule.since}" if rule.since else ""
    versions += f" until {rule.until}" if rule.until else ""
    return f"{rule.op} when {rule.when}{versions}"


@cache
def met() -> dict[Rule, list[tuple[Sample, torch.dtype]]]:
    """Of each row the samples that meet it, in any version and setting in which the row holds."""
    in_versions = [chains(version) for version in VERSIONS]

    def chains_of(op: str) -> Iterable[list[Row]]:
        every = (by_op.get(full_name(op), []) for by_op in in_versions)
        return {tuple(map(id, chain)): chain for chain in every}.values()

    found: dict[Rule, dict[tuple[int, torch.dtype], tuple[Sample, torch.dtype]]]
    found = {row.rule: {} for row in rows()}
    calls = [
        (sample, dtype, _call(sample, dtype), chains_of(sample.op))
        for family in selection.families()
        for sample in samples_of(family).cases
        for dtype in sample.dtypes
    ]
    for environment, fill, on in product(_ENVIRONMENTS, (True, False), (True, False)):
        with _settings(environment, fill, on):
            for sample, dtype, call, of_versions in calls:
                for chain in of_versions:
                    row = next((row for row in chain if row.rule.when(call)), None)
                    if row is not None:
                        found[row.rule][id(sample), dtype] = sample, dtype
    return {rule: [*samples.values()] for rule, samples in found.items()}


def _call(sample: Sample, dtype: torch.dtype) -> Call:
    func, arguments = resolve(sample.op), sample.arguments(dtype)
    # An extension that is not installed, or another version's operator: the arguments given.
    unknown: Any = SimpleNamespace(func=None, positional=dict, tensors=tuple(arguments))
    signature = unknown if func is None else signature_of(func)
    return Call(signature, (), arguments, sample.device)


@contextmanager
def _settings(environment: dict[str, str | None], fill: bool, on: bool) -> Iterator[None]:
    saved = {name: os.environ.get(name) for name in environment}
    undo = Undo()
    try:
        _set_environment(environment)
        FILL.choose(fill, undo)
        FLAG.choose((on, False), undo)
        yield
    finally:
        _set_environment(saved)
        undo.run()


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def samples_in(row: Row) -> list[tuple[Sample, torch.dtype]]:
    """The samples of a row's own family that meet it."""
    own = set(map(id, samples_of(row.family).cases))
    return [(sample, dtype) for sample, dtype in met()[row.rule] if id(sample) in own]
