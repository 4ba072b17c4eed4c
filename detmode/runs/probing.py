"""Probing: run each operator again on the same inputs and compare the results."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detmode.bits.difference import Difference, difference, largest_of
from detmode.bits.disturbance import Streams, disturbed
from detmode.bits.effects import Effects, effects_of
from detmode.bits.repeatable import StartingState, data_of, why_never, why_not
from detmode.bits.tensors import has_data
from detmode.mode.options import check_operator
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import without_modes
from detmode.rules import default_rules
from detmode.runs.compiled_graphs import Graph
from detmode.runs.observer import RunObserver
from detmode.runs.probe_report import PassedOver, ProbeReport, ProbeRow
from detmode.sites.observers import repeated
from detmode.table.call import Call
from detmode.table.call_site import CallSite
from detmode.table.names import matches, names_of, overload_name

_logger = logging.getLogger("detmode")


class _Probed(NamedTuple):
    """A call, which ``run(*args, **kwargs)`` makes."""

    effects: Effects
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run: Callable[..., Any]
    place: CallSite

    @property
    def name(self) -> str:
        return overload_name(self.effects.func)


class Probe(RunObserver):
    """Runs each operator of a block again on the same inputs, and compares the bytes.

    The program continues with the first result of each call; its arguments and random generators
    are as they would be without the probe. Enter it outside other modes.

    Args:
        repeats: the number of repeats of each call.
        skip: names of operators or overloads, or globs of them, that are not probed.

    Raises:
        TypeError, ValueError: an argument of the wrong type, less than one repeat, or a name that
            is not an operator.
    """

    def __init__(self, repeats: int = 3, *, skip: Iterable[str] = ()) -> None:
        super().__init__()
        if isinstance(repeats, bool) or not isinstance(repeats, int):
            raise TypeError(f"probe: repeats must be an int, got {type(repeats).__name__}")
        if repeats < 1:
            raise ValueError(f"probe: repeats must be at least 1, got {repeats}")
        if isinstance(skip, str):
            raise TypeError("probe: skip must be a list of names, got one str")
        self._repeats = repeats
        self._skip = tuple(skip)
        for name in self._skip:
            if "::" not in name and not any(wildcard in name for wildcard in "*?["):
                raise ValueError(
                    f"skip: {name!r} must be an operator such as 'aten::histc', or a glob"
                )
            check_operator("skip", name)
        self._overloads: dict[Any, tuple[Effects, str | None]] = {}
        self._streams: Streams = {}
        self._probed = 0
        self._passed_over: Counter[tuple[str, str]] = Counter()
        # By overload and site: the number of probed calls, and the row once one has varied.
        self._counts: Counter[tuple[str, str]] = Counter()
        self._rows: dict[tuple[str, str], ProbeRow] = {}

    @property
    def extent(self) -> tuple[int, str]:
        """The number of calls that were probed so far, and the name of one."""
        return self._probed, "call"

    def report(self) -> ProbeReport:
        """Return the results so far."""
        rows = tuple(replace(row, count=self._counts[key]) for key, row in self._rows.items())
        passed_over = tuple(PassedOver(*key, count) for key, count in self._passed_over.items())
        not_probed = self.other_threads.text()
        return ProbeReport(rows, self._probed, passed_over, self._repeats, not_probed)

    def _meet_higher_order(self, func: Any) -> None:
        self._pass_over(str(func), "higher-order operators")

    def _observe(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        place: CallSite | None,
    ) -> Any:
        values = (*args, *kwargs.values())
        inputs = tensors_in(values)
        with self._lock:
            known = self._overloads.get(func)
            if known is None:
                known = self._overloads[func] = self._facts_of(func)
            effects, reason = known
            place = place or self._forward.place_of_call(self._paths, inputs)
            call = _Probed(effects, args, kwargs, run, place)
            reason = reason or why_not(effects, inputs, values)
            if reason is not None:
                self._pass_over(call.name, reason)
        if reason is not None:
            # Without the lock: a collective may wait for a call of another thread.
            return run(*args, **kwargs)
        with self._lock:
            return self._probe(call)

    def _observe_graph(self, graph: Graph, inputs: Any, run: Callable[[Any], Any]) -> Any:
        with self._lock:
            self._pass_over(graph.name, "compiled graphs")
        return run(inputs)

    def _facts_of(self, func: torch._ops.OpOverload) -> tuple[Effects, str | None]:
        """Return the effects of an overload, and the reason why its calls are not probed."""
        effects = effects_of(func)
        is_skipped = matches(names_of(func, ()), self._skip)
        return effects, "skipped" if is_skipped else why_never(effects)

    def _probe(self, call: _Probed) -> Any:
        try:
            start = StartingState(call.effects, call.args, call.kwargs)
        except RuntimeError as error:
            _logger.debug("%s is not copied: %r", call.name, error)
            self._pass_over(call.name, "not copied")
            return call.run(*call.args, **call.kwargs)
        try:
            result = call.run(*call.args, **call.kwargs)
        except BaseException:
            self._pass_over(call.name, "raised")
            raise
        try:
            self._repeat(call, result, start)
        finally:
            start.resume()
        return result

    def _repeat(self, call: _Probed, result: Any, start: StartingState) -> None:
        """Repeat a call that was made, and count it."""
        expected = data_of(call.effects, call.args, call.kwargs, result)
        if not expected:
            return self._pass_over(call.name, "no outputs")
        if any(not has_data(tensor) for tensor in expected.values()):
            return self._pass_over(call.name, "no data")
        devices = {tensor.device for tensor in expected.values()}
        merged: dict[str, Difference] = {}
        conditions: dict[str, None] = {}
        on_host = False
        for repeat in range(self._repeats):
            try:
                args, kwargs = start.again()
                with (
                    disturbed(self._streams, repeat, devices, on_host=on_host) as names,
                    repeated(),
                ):
                    result = call.run(*args, **kwargs)
                start.check()
                on_host |= "schedule" in names
                with without_modes():
                    differing = _compare(expected, data_of(call.effects, args, kwargs, result))
            except Exception as error:
                _logger.debug("%s is not repeated: %r", call.name, error)
                if not merged:
                    return self._pass_over(call.name, "not repeated")
                break
            if differing:
                conditions.update(dict.fromkeys(names))
                _merge(merged, differing)
        self._count(call, merged, tuple(conditions))
        return None

    def _count(
        self, call: _Probed, merged: dict[str, Difference], conditions: tuple[str, ...]
    ) -> None:
        site, module = call.place.site.text, call.place.module
        key = (call.name, site)
        self._probed += 1
        self._counts[key] += 1
        if not merged:
            return
        row = self._rows.get(key)
        if row is None:
            with without_modes():
                family, action = _rule_of(call)
            row = ProbeRow(call.name, 0, 0, (), (), 0, 0.0, site, None, family, action)
            self._rows[key] = row
        row.varied += 1
        if module is not None:
            row.modules[module] = row.modules.get(module, 0) + 1
        row.conditions = tuple(dict.fromkeys((*row.conditions, *conditions)))
        row.differing = tuple(dict.fromkeys((*row.differing, *merged)))
        elements, sizes = zip(*merged.values())
        row.elements, row.largest = max(row.elements, *elements), largest_of(row.largest, *sizes)

    def _pass_over(self, name: str, reason: str) -> None:
        self._passed_over[name, reason] += 1


def probe(
    fn: Callable[..., Any],
    /,
    *args: Any,
    repeats: int = 3,
    skip: Iterable[str] = (),
    **kwargs: Any,
) -> ProbeReport:
    """Run ``fn(*args, **kwargs)``, each operator several times, and report which ones vary.

    Between the repeats of a call, the number of CPU threads, the schedule of the host runner or the
    load of the GPU is varied where possible. The results of ``fn`` do not change.

    >>> report = detmode.probe(torch.cumsum, torch.ones(3), 0)
    >>> report.rows
    ()

    Args:
        fn: the function to run; its backward is probed if ``fn`` runs it.
        *args: for ``fn``.
        repeats: the number of repeats of each call.
        skip: names of operators or overloads, or globs of them, that are not probed.
        **kwargs: for ``fn``.

    Returns:
        A :class:`~detmode.ProbeReport` with the operators whose repeats differed. An operator whose
        repeats agreed is not proven deterministic.

    Raises:
        ValueError: ``repeats`` is less than 1.
        Exception: whatever ``fn`` itself raises.
    """
    probing = Probe(repeats, skip=skip)
    with probing:
        fn(*args, **kwargs)
    return probing.report()


def _compare(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> dict[str, Difference]:
    differing = {}
    for name in dict.fromkeys((*expected, *actual)):
        sides = [side[name] for side in (expected, actual) if name in side]
        differs = difference(*sides) if len(sides) == 2 else (sides[0].numel(), None)
        if differs is not None:
            differing[name] = differs
    return differing


def _merge(merged: dict[str, Difference], more: dict[str, Difference]) -> None:
    for name, (elements, largest) in more.items():
        most, largest_yet = merged.get(name, (elements, largest))
        merged[name] = max(most, elements), largest_of(largest_yet, largest)


def _rule_of(probed: _Probed) -> tuple[str | None, str | None]:
    """Return the family and the action of the table's row for a call on CUDA."""
    call = Call(probed.effects.signature, probed.args, probed.kwargs, "cuda")
    row = default_rules().row_of(call)
    return (row.family, type(row.rule.action).__name__.lower()) if row else (None, None)
