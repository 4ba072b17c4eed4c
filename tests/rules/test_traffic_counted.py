"""A row's ``traffic`` is no less than what its substitute is seen to move."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.mode.audit.traffic import bytes_moved, size_of
from detmode.process.arguments import signature_of
from detmode.table.rule import Rule, Substitute
from detmode.table.rule_table import resolve
from detmode.table.variants import variant_of
from detmode.verify.cases import Case, matching_row
from tests.shared import needs
from tests.shared import table_facts as facts
from tests.shared.selection import every_case, families

launching = sys.modules["detmode.cuda.launch"]  # the function of this name hides its module
COUNTED = [
    name
    for name, family in families().items()
    if any(isinstance(rule.action, Substitute) and rule.action.traffic for rule in family.RULES)
]

SLACK = 1.3
"""Samples are small: what does not grow with them may weigh this much more than in a large case."""
CHOOSING = {"aten::nll_loss2d_forward": "reads one class of each pixel of the tensor it is given"}
"""Operators of whose tensors a launch reads a part, which cannot be seen here."""


class Moved(TorchDispatchMode):
    """Counts the bytes of what ATen's operators and our launches are given, each tensor once.

    It is no more than is moved: a launch may read a tensor again, and a sort takes several passes.
    """

    bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.bytes += bytes_moved(func, args, kwargs or {}, result)
        return result

    @contextmanager
    def launches(self) -> Iterator[None]:
        start = launching._start

        def counted(what: Any, grid: Any, bound: Any, *device: Any) -> None:
            self.bytes += sum(size_of(each) for each in bound[1] if each is not None)
            start(what, grid, bound, *device)

        with self, patch.object(launching, "_start", counted):
            yield


def traffic_of(case: Case, action: Substitute) -> float:
    """The least traffic of the substitute for a case, as a multiple of the floor."""
    func = resolve(case.sample.op)
    arguments = signature_of(func).bind((), case.sample.arguments(case.dtype))
    moved = Moved()
    with moved.launches():
        result = action.function(**arguments)
    return moved.bytes / max(bytes_moved(func, (), arguments, result), 1)


@needs.compiler
@pytest.mark.parametrize("family", COUNTED)
def test_traffic_is_counted(family: str) -> None:
    """Each row has a case in which its substitute moves no more than the row says."""
    rules = {row.rule: row for row in facts.rows_of(family) if row.rule.op not in CHOOSING}
    found: dict[Rule, list[tuple[int, Case]]] = {}
    for case in every_case():
        row = matching_row(case.sample, case.dtype) if case.family == family else None
        if row is not None and row.rule in rules:
            found.setdefault(row.rule, []).append((-_elements(case), case))
    for rule, sized in found.items():
        claimed = getattr(rule.action, "traffic", None)
        if claimed is None or variant_of(resolve(rule.op)) != "functional":
            continue
        counts = []
        # The largest first: what is allocated beside the tensors weighs least there.
        for _, case in sorted(sized, key=lambda each: each[0]):
            counts.append(traffic_of(case, rule.action))
            if counts[-1] <= SLACK * claimed:
                break
        assert counts[-1] <= SLACK * claimed, (
            f"{facts.family_file(rules[rule])}: {facts.label(rule)} has traffic={claimed}, but its "
            f"launches and ATen's operators are given {min(counts):.1f} times the floor on every "
            "case: count what they read and write, and say the figure there and under Cost"
        )


def _elements(case: Case) -> int:
    arguments = case.sample.arguments(case.dtype).values()
    return sum(each.numel() for each in arguments if isinstance(each, torch.Tensor))
