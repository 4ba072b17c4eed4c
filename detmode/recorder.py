"""Counting calls in rows: one row for each overload, action and site."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable

import torch

from detmode.call import Call
from detmode.observers import is_repeated
from detmode.plan import Plan
from detmode.report import Record, Report
from detmode.rule import Native, Rule
from detmode.sites import Site, Trace, backward_site, site_of, user_frame
from detmode.table import Row

_FIRST_CALLS = 10_000
"""How many calls are remembered in their order, for a report's timeline."""


class Recorder:
    """The rows of one mode.

    Args:
        logger: gets a DEBUG line for each call.
        when_new: called after each new row.
    """

    def __init__(self, logger: logging.Logger, when_new: Callable[[], object]) -> None:
        self._logger = logger
        self._when_new = when_new
        self._rows: dict[tuple[str, str, str], Record] = {}
        self._first_calls: list[Record] = []
        # The row by what is quick to find; several places may share a line, and so a row.
        self._by_place: dict[Hashable, Record] = {}

    def report(self) -> Report:
        """The rows so far, copied, in the order in which they were first met."""
        rows = list(self._rows.values())
        positions = {id(record): position for position, record in enumerate(rows)}
        calls = [positions[id(record)] for record in list(self._first_calls)]
        return Report(map(copy.copy, rows), calls)

    def count(
        self, plan: Plan, row: Row | None, action: str, call: Call, memory: Trace
    ) -> tuple[Record, Site | None]:
        """Count the call in its row; the row, and its site when it is new."""
        frame = user_frame()
        note = None
        key: Hashable
        if frame is not None:
            key = (plan, action, row, id(frame.f_code), frame.f_lasti)
        else:
            note = memory.current_note()
            key = (plan, action, row, note.site if note else None)
        record = self._by_place.get(key)
        new_site = None
        if record is None:
            site = site_of(frame) if frame is not None else backward_site(note)
            line = (plan.name, action, site.text)
            record = self._rows.get(line)
            if record is None:
                new_site = site
                rule = row.rule if row else None
                record = self._rows[line] = Record(
                    overload=plan.name,
                    room=row.room if row else None,
                    action=action,
                    guarantee=guarantee_of(rule, action),
                    alert=rule.alert_for(plan.variant) if rule else None,
                    count=0,
                    site=site.text,
                    module=site.module,
                )
                self._when_new()
            self._by_place[key] = record
        if is_repeated():
            return record, new_site
        record.count += 1
        if len(self._first_calls) < _FIRST_CALLS:
            self._first_calls.append(record)
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(
                "%s %s [%s] %s at %s",
                plan.name,
                action,
                record.room,
                ", ".join(_describe(tensor) for tensor in call.tensors),
                record.site,
            )
        return record, new_site


def guarantee_of(rule: Rule | None, action: str) -> str | None:
    """How far the bits of a call reach that a rule means, after what was done with it."""
    if rule is None or rule.guarantee is None:
        return None
    if action == "substitute":
        return str(rule.guarantee)
    # Without the substitute only what PyTorch's own path promises is left.
    return "run_to_run" if action == "native" and isinstance(rule.natively, Native) else None


def _describe(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}@{tensor.device}"
