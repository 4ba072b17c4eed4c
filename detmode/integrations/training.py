"""The parts that callbacks of trainers share: the ranks' report, numbers for loggers, checks."""

from __future__ import annotations

import sys
import warnings

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from detmode.distributed.fixed_buckets import fix_buckets
from detmode.distributed.one_report import ALONE
from detmode.distributed.rank_group import gathered
from detmode.mode.deterministic_mode import DeterminismWarning, DeterministicMode, current_mode
from detmode.process.interface import TRAINER
from detmode.process.rank import has_group
from detmode.reports.report import Report
from detmode.reports.rows import ACTIONS
from detmode.reports.terminal import terminal_width
from detmode.reports.union import of_ranks


def mode_of(mode: DeterministicMode | None) -> DeterministicMode:
    """Return the mode that a callback is given, or a new one; it speaks the callback's words."""
    mode = DeterministicMode() if mode is None else mode
    mode.start_through(TRAINER)
    return mode


def world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: 0 and 1 without a process group."""
    return (distributed.get_rank(), distributed.get_world_size()) if has_group() else (0, 1)


def report_of_all(mode: DeterministicMode) -> Report:
    """Return the one report of all ranks; all of them call it."""
    rank, size = world()
    local = mode.report()
    if size == 1:
        return local
    local = local.by(rank)
    texts = gathered(local.to_json())
    others = [Report.from_json(text) for number, text in enumerate(texts) if number != rank]
    return of_ranks(local, others, size, {})


def own_report(mode: DeterministicMode) -> Report:
    """Return the report of this rank, for when the others cannot be asked."""
    rank, size = world()
    if size == 1:
        return mode.report()
    others = [number for number in range(size) if number != rank]
    return of_ranks(mode.report().by(rank), (), size, {ALONE: others})


def show(report: Report) -> None:
    """Print a report on stderr, as ``detmode run`` does."""
    print(f"\n{report.text(width=terminal_width(sys.stderr))}", file=sys.stderr)
    for absence in report.absences():
        print(absence, file=sys.stderr)


def numbers(report: Report) -> dict[str, float]:
    """Return a report's numbers for a logger: rows, calls by action, and what may vary."""
    varying = report.where(varies=True)
    return {
        "detmode/rows": len(report),
        "detmode/calls_that_may_vary": sum(row.count for row in varying),
        "detmode/lines_that_may_vary": len({row.site for row in varying}),
        **{
            f"detmode/calls_{group.name}": sum(row.count for row in report.where(action=group.name))
            for group in ACTIONS
        },
    }


def check_flag(mode: DeterministicMode, strict: str, lenient: str) -> None:
    """Check that the program's flag does not ask for errors where the mode warns, or vice versa.

    Args:
        mode: not yet entered.
        strict: the trainer's argument that asks for errors.
        lenient: the one that asks for warnings.

    Raises:
        ValueError: one of them asks for errors and the other for warnings.
    """
    if not torch.are_deterministic_algorithms_enabled() or current_mode() is not None:
        return
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if warns != mode.policy.warn_only:
        asked, wanted = ("warnings", "errors") if warns else ("errors", "warnings")
        raise ValueError(
            f"PyTorch's deterministic flag asks for {asked} ({lenient if warns else strict}), but "
            f"the mode of DeterministicCallback for {wanted}; pass "
            f"{TRAINER.option('warn_only', warns)}, or leave the other out"
        )


def fix_buckets_of(model: torch.nn.Module) -> None:
    """Fix DDP's buckets where their order counts, so that a resumed training has the same bits."""
    if not isinstance(model, DistributedDataParallel) or world()[1] < 3:
        return  # a sum of two has no order
    try:
        fix_buckets(model)
    except RuntimeError as error:
        warnings.warn(
            f"a resumed training may have other bits than one without a stop: {error}",
            DeterminismWarning,
            stacklevel=2,
        )
