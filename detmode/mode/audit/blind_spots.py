"""Calls that an audit cannot see because no CPU or meta run makes them, with their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, fields

import torch

from detmode.mode.row_counter import guarantee_of
from detmode.reports.page import Listing, plural
from detmode.reports.terminal import is_wider, paragraphs, table, wrapped
from detmode.table.outcome import ActionName, Guarantee
from detmode.table.rule import Allow
from detmode.table.rule_table import Row, RuleTable, resolve

_ON_CPU = (
    "CPU",
    "SparseCPU",
    "SparseCsrCPU",
    "QuantizedCPU",
    "MkldnnCPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
"""Dispatch keys of kernels that take CPU tensors."""


@dataclass(frozen=True)
class UnseenRow:
    """A row of the rule table that only a CUDA run can match.

    Args:
        op: the operator, as the rule names it.
        when: the condition on its arguments.
        action: the action that the mode would take, as in a report.
        guarantee: the guarantee under that action, or ``None``.
        alert: PyTorch's caller name, or ``None``.
    """

    op: str
    when: str
    action: ActionName
    guarantee: Guarantee | None
    alert: str | None


_COLUMNS = tuple(item.name for item in fields(UnseenRow))


@dataclass(frozen=True)
class Unseen:
    """Something that a CUDA run may do and an audit does not see.

    Args:
        what: the calls that are not seen.
        because: the reason.
        calls: the operators and modules of the audited run that reveal it; empty for what no audit
            sees.
        rows: the rows that a CUDA run may match.
    """

    what: str
    because: str
    calls: tuple[str, ...] = ()
    rows: tuple[UnseenRow, ...] = ()


ALWAYS_UNSEEN = (
    Unseen(
        "branches on the device in Python",
        "the CPU branch of tensor.is_cuda runs, and that of torch.cuda.is_available(); .cuda() and "
        'device="cuda" fail without CUDA, but for detmode audit --cuda-on-cpu',
    ),
    Unseen(
        "the optimizer's form",
        "by default PyTorch's optimizers use their foreach form on CUDA and a loop over the "
        "parameters on the CPU; no rule lists the calls of either",
    ),
    Unseen(
        "F.interpolate, F.pad and F.max_pool3d without substitutes",
        "on CUDA tensors, under PyTorch's flag, they take a decomposition whose backward is "
        "index_put; with substitutes they call the plain operator, as in this audit",
    ),
    Unseen(
        "collectives",
        "without a process group of CUDA devices none runs through NCCL; detmode rules --op "
        "'*c10d*' lists their rows",
    ),
    Unseen(
        "torch.compile",
        "the audit runs compiled functions operator by operator; what the compiler generates for "
        "CUDA is not seen",
    ),
    Unseen(
        "other processes",
        "an audit acts in its thread, in the threads that this one starts, and in their backward; "
        "not in processes, nor in threads of C++ code",
    ),
    Unseen(
        "kernels that are not operators",
        "launches by CuPy, Numba, Triton or an extension are not ATen calls",
    ),
    Unseen(
        "the CUDA machine's environment",
        "CUBLAS_WORKSPACE_CONFIG and NCCL_ALGO are read where the audit runs",
    ),
)
"""Calls and devices that no audit sees, whatever it runs."""


def find_unseen(
    table: RuleTable,
    stand_ins: Mapping[str, Mapping[str, Iterable[str]]],
    called: set[str],
    would: Callable[[Row], ActionName],
) -> list[Unseen]:
    """Return what an audit did not see: first what its calls reveal, then what no audit sees.

    ``stand_ins`` has for each family the operators and classes of modules that a CPU run calls, and
    the operators that a CUDA run may call for each; ``called`` those that the run called.
    """
    unmet = _unmet(table)

    def rows_of(ops: Iterable[str]) -> tuple[UnseenRow, ...]:
        return tuple(_describe(row, would(row)) for op in ops for row in unmet.get(op, ()))

    unseen: list[Unseen] = []
    told: set[str] = set()
    for family, stands_for in stand_ins.items():
        calls = tuple(name for name in stands_for if name in called)
        ops = dict.fromkeys(op for name in calls for op in stands_for[name])
        if rows := rows_of(ops):
            because = "PyTorch chooses the operator by device"
            unseen.append(Unseen(f"{family} on CUDA", because, calls, rows))
            told.update(ops)
    if rest := rows_of(op for op in unmet if op not in told):
        because = "they have no kernel for CPU tensors, so only a CUDA run can call them"
        unseen.append(Unseen("operators that only run on CUDA", because, (), rest))
    return [*unseen, *ALWAYS_UNSEEN]


def _unmet(table: RuleTable) -> dict[str, list[Row]]:
    """Return the rows that matter on CUDA for operators that no CPU run can call, by operator."""
    unmet: dict[str, list[Row]] = {}
    for op in dict.fromkeys(row.rule.op for row in table):
        func = resolve(op)
        if func is None or runs_on_cpu(func):
            continue
        rows = [
            row
            for row in table.get(func)
            if not isinstance(row.rule.action, Allow) and "on('mps')" not in str(row.rule.when)
        ]
        if rows:
            unmet[op] = rows
    return unmet


def runs_on_cpu(func: torch._ops.OpOverload) -> bool:
    """Return whether the dispatcher has a kernel of the operator for CPU tensors."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(func.name(), key) for key in _ON_CPU)


def _describe(row: Row, action: ActionName) -> UnseenRow:
    rule = row.rule
    alert = rule.as_text()["alert"]
    return UnseenRow(rule.op, str(rule.when), action, guarantee_of(rule, action), alert)


def listing_of(unseen: Unseen) -> Listing:
    """Return what a page shows of it."""
    calls = f" The run calls {', '.join(unseen.calls)}." if unseen.calls else ""
    rows = tuple(tuple(cell or "" for cell in astuple(row)) for row in unseen.rows)
    text = f"{unseen.because[:1].upper()}{unseen.because[1:]}.{calls}"
    return Listing(f"Not seen: {unseen.what}", _COLUMNS if rows else (), rows, text)


def text_of(unseen: Iterable[Unseen], width: int | None, *, long: bool) -> str:
    """Return the text: calls that the run reveals, then the rest."""
    unseen = list(unseen)
    revealed = [_revealed(spot, width, long=long) for spot in unseen if spot.calls]
    rest = [spot for spot in unseen if not spot.calls]
    if not rest:
        return "\n\n".join(revealed)
    ops = list(dict.fromkeys(row.op for spot in rest for row in spot.rows))
    if long:
        kinds = [f"{spot.what} ({', '.join(ops)})" if spot.rows else spot.what for spot in rest]
        text = f"No audit sees: {'; '.join(kinds)}."
    else:
        kinds = [f"{plural(len(ops), 'operator')} of CUDA only"] if ops else []
        kinds.append(f"{plural(sum(not spot.rows for spot in rest), 'kind')} of calls")
        text = f"No audit sees {' and '.join(kinds)} (--all, or long=True, lists them)."
    return "\n\n".join([*revealed, wrapped("", text, width)])


def _revealed(spot: Unseen, width: int | None, *, long: bool) -> str:
    """Return what the run's calls reveal, as a sentence, and where asked its rows."""
    text = f"Not seen: {spot.what}. The run calls {', '.join(spot.calls)}; {spot.because}."
    head = wrapped("", text, width)
    rows = [[cell or "" for cell in astuple(row)] for row in spot.rows]
    if not long:
        return head
    shown = table(_COLUMNS, rows)
    return f"{head}\n{paragraphs(_COLUMNS, rows, width) if is_wider(shown, width) else shown}"
