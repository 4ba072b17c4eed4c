"""Counting calls in rows: one row for each overload, action and site."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from detmode.mode.messages import remedy
from detmode.mode.plan import Plan
from detmode.reports.report import Report, ReportRow
from detmode.sites.forward_memory import ForwardMemory
from detmode.sites.lines import outer_site
from detmode.sites.module_path import ModulePaths
from detmode.sites.observers import is_repeated
from detmode.table.call import Call
from detmode.table.call_site import CallSite
from detmode.table.rule import Native, Rule
from detmode.table.rule_table import FamilyRule

_FIRST_CALLS = 10_000
"""How many calls are remembered in their order, for a report's timeline."""


class RowCounter:
    """The rows of one mode.

    Args:
        logger: gets a DEBUG line for each call.
        when_new: called after each new row.

    Attributes:
        paths: those of the modules in which calls are made.
    """

    def __init__(self, logger: logging.Logger, when_new: Callable[[], object]) -> None:
        self._logger = logger
        self._when_new = when_new
        self.paths = ModulePaths()
        self._rows: dict[tuple[str, str, str], ReportRow] = {}
        self._first_calls: list[tuple[ReportRow, str | None]] = []

    def report(self) -> Report:
        """The rows so far, copied, in the order in which they were first met."""
        rows = list(self._rows.values())
        positions = {id(record): position for position, record in enumerate(rows)}
        calls = [(positions[id(record)], module) for record, module in list(self._first_calls)]
        return Report(map(replace, rows), calls)

    def count(
        self,
        plan: Plan,
        row: FamilyRule | None,
        action: str,
        call: Call,
        memory: ForwardMemory,
        unavailable: str | None = None,
    ) -> tuple[ReportRow, CallSite, bool]:
        """Count the call in its row; the row, where the call is made, whether the row is new."""
        place = call.place or memory.place_of_call(self.paths)
        site, module = place
        line = (plan.name, action, site.text)
        record = self._rows.get(line)
        is_new = record is None
        if record is None:
            rule = row.rule if row else None
            record = self._rows[line] = ReportRow(
                overload=plan.name,
                family=row.family if row else None,
                action=action,
                guarantee=guarantee_of(rule, action),
                alert=rule.alert_for(plan.variant) if rule else None,
                count=0,
                site=site.text,
                module=None,
                because=rule.because if rule else None,
                remedy=remedy(plan.func._schema.name, action, rule, plan.override, unavailable),
                outer_site=outer_site(site, self.paths),
            )
            self._when_new()
        if is_repeated():
            return record, place, is_new
        record.count += 1
        if module is not None:
            record.modules[module] = record.modules.get(module, 0) + 1
        if len(self._first_calls) < _FIRST_CALLS:
            self._first_calls.append((record, module))
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(
                "%s %s [%s] %s at %s",
                plan.name,
                action,
                record.family,
                ", ".join(_describe(tensor) for tensor in call.tensors),
                record.site,
            )
        return record, place, is_new


def guarantee_of(rule: Rule | None, action: str) -> str | None:
    """How far the bits of a call reach that a rule means, after what was done with it."""
    if rule is None or rule.guarantee is None:
        return None
    if action == "substitute":
        return str(rule.guarantee)
    # Without the substitute only what PyTorch's own path promises is left.
    return (
        "run_to_run" if action == "native" and isinstance(rule.without_substitute, Native) else None
    )


def _describe(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}@{tensor.device}"
