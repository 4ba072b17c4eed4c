"""The modes for which options ask, and what surrounds a program besides."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from detmode.cli.output import note
from detmode.cli.usage import UsageError, usage_errors
from detmode.process.rank import rank_of

if TYPE_CHECKING:
    from detmode.mode.deterministic_mode import DeterministicMode
    from detmode.runs.probing import Probe
    from detmode.runs.recording import record


def policy(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a mode that ``run`` and ``audit`` share."""
    return {
        "warn_only": options.warn_only,
        "strict": options.strict,
        "substitute": not options.no_substitute,
        "overrides": dict(options.override),
    }


def modes(options: argparse.Namespace) -> list[DeterministicMode]:
    """Return the mode under which a program is recorded or probed, if any.

    Raises:
        UsageError: an option asks for more of a mode that there is not.
    """
    asked = policy(options)
    if options.deterministic or options.simulate:
        return [mode_of(options, **asked)]
    if asked != {"warn_only": False, "strict": False, "substitute": True, "overrides": {}}:
        raise UsageError("what the mode does with calls needs a mode: give --deterministic as well")
    return []


def mode_of(options: argparse.Namespace, **more: Any) -> DeterministicMode:
    """Return the mode of a program, with ``more`` arguments; simulated where that can be."""
    from detmode.mode.deterministic_mode import DeterministicMode
    from detmode.process.interface import COMMAND

    simulate, seed = options.simulate, options.schedule_seed
    if simulate:
        from detmode import cuda

        reason = cuda.unavailable("cpu")
        if reason is not None:
            note(f"not simulating CUDA: {reason}")
            simulate = seed = None
    with usage_errors(TypeError, ValueError, told=COMMAND.in_words):
        mode = DeterministicMode(simulate=simulate, schedule_seed=seed, **more)
    mode.acts_in_threads = True
    mode.start_through(COMMAND)
    return mode


def on_cpu(options: argparse.Namespace) -> AbstractContextManager[object]:
    """Return what lets device names of CUDA mean the CPU, if that is asked for."""
    from detmode.environment.cuda_on_cpu import cuda_on_cpu

    return cuda_on_cpu() if options.cuda_on_cpu else nullcontext()


def counted(what: str, observer: record | Probe) -> AbstractContextManager[None]:
    """Show how many calls were observed so far; of several ranks the first one's."""
    from detmode.reports.progress import counted

    rank = rank_of()
    if rank is not None and rank.number:
        return nullcontext()
    return counted(what, lambda: observer.extent)


@contextmanager
def not_watched(done: str) -> Iterator[None]:
    """Say at the end how many processes of the program were not ``done``, as this one was."""
    from detmode.cli.spawned import Spawned

    spawned = Spawned()
    with spawned.watched(None):
        yield
    note_not_watched(done, spawned.count)


def note_not_watched(done: str, processes: int) -> None:
    """Say how many processes of the program were not ``done``, if any."""
    if processes:
        note(
            f"not {done}: {processes} processes that the program started by "
            "torch.multiprocessing; start ranks with torchrun"
        )
