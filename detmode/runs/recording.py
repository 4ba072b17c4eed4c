"""Recording a run: every aten call with the digests of its tensors."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from detmode.bits.tensors import is_capturing, is_strided
from detmode.environment.lock import lock_file
from detmode.environment.lock.choices import Choices
from detmode.environment.lock.lock_file import Sections
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import untraced, without_modes
from detmode.process.files import FileError
from detmode.reports.page import plural
from detmode.runs.collectives import Collective
from detmode.runs.compiled_graphs import Graph, running
from detmode.runs.description import about_run, arguments_text, lock_of_run
from detmode.runs.dump_file import CallName, DumpWriter
from detmode.runs.observer import RunObserver
from detmode.runs.recorded_calls import CallRecorder, Sides, results_of
from detmode.runs.step_range import ALL, as_text, steps_of
from detmode.runs.steps import hash_of
from detmode.runs.steps import unwatch as unwatch_steps
from detmode.runs.steps import watch as watch_steps
from detmode.runs.trace_file import TraceError
from detmode.runs.trace_writer import CALL, LEVELS, STEP, Detail, Part, Writer, writer_of
from detmode.runs.unwritten import Memory
from detmode.sites.observers import STORAGE_METHODS
from detmode.table.call_site import CallSite

NO_DUMP = "detmode.record: no dump of"
"""The beginning of the warning that a call of ``dump`` was not written."""
UNSAID = "detmode.record: the result of"
"""The beginning of the warning that calls read uninitialized memory only."""
PARTLY_READ = "detmode.record:"
"""The beginning of the warning that calls read memory that is uninitialized in part."""
_BATCH = 512
"""The number of calls after which a batch is written."""
_LONGEST = 1 << 14
"""The number of digests after which one is written although a collective is still pending."""
_SECONDS = 1.0
"""The time after which a batch of steps is written, so that a killed run has them."""
_DEPTH = 12
"""The most frames between a call and PyTorch's function that rebuilds a tensor."""


class record(RunObserver):
    """Records every call of a block to a folder, for ``detmode diff``.

    >>> with detmode.record("first"):
    ...     sums = torch.ones(3).cumsum(0)
    >>> with detmode.record("second"):
    ...     sums = torch.ones(3).cumsum(0)
    >>> detmode.diff("first", "second").identical
    True

    Args:
        path: a folder that does not exist yet, or is empty.
        dump: calls whose tensors are written too, such as ``"aten::addmm.default@3"``: the
            overload, and the index among its recorded calls, counted from 0.
        level: ``"call"`` records each call; ``"module"`` one digest for each step and module, of
            the calls made in it; ``"step"`` one for each step and part of the state that it left
            (parameters, gradients, optimizer state), and no calls. A step ends where an
            optimizer's ``step()`` returns, or where the program calls :func:`detmode.end_step`.
        steps: the steps to record, counted from 0: ``"57:60"`` is 57, 58 and 59; all if not given.

    Raises:
        TraceError: the folder cannot be written, or is not empty.
        TypeError, ValueError: ``dump`` is not a list of such texts, or a text names no operator;
            ``level`` or ``steps`` is none; or calls are to be dumped at another level than theirs.
    """

    _shows = (*RunObserver._shows, *STORAGE_METHODS)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dump: Iterable[str] = (),
        level: Detail = CALL,
        steps: str | None = None,
    ) -> None:
        super().__init__()
        if level not in LEVELS:
            raise ValueError(f"record: level must be one of {', '.join(LEVELS)}, got {level!r}")
        if isinstance(dump, str):
            raise TypeError("record: dump must be a list of calls, got one str")
        path = Path(path).absolute()  # the block may change the working directory
        self._dumps = DumpWriter(path, map(CallName.of, dump))
        if level == STEP and self._dumps.missed:
            raise ValueError("record: level 'step' sees no calls to dump; use level 'call'")
        self._path = path
        self._level, self._steps = level, steps_of(steps)
        self._step = 0
        self._writer: Writer
        self._memory = Memory()
        self._recorder = CallRecorder(self._memory, self._dumps, skips=0 not in self._steps)
        self._tensors = self._recorder.tensors
        self._calls = self._flushed = 0
        # The numbers of the digests of the calls that have ended since the last batch.
        self._taken: list[int] = []
        self._running = 0
        self._flushed_at = time.monotonic()
        self._lock_at_start: Sections
        self._choices: Choices

    @untraced
    def __enter__(self) -> record:
        self._lock_at_start, self._choices = lock_of_run(), Choices()
        about = {**about_run(), "level": self._level, "steps": as_text(self._steps)}
        self._writer = writer_of(self._level)(self._path, about)
        self._tensors.number = self._writer.number
        self._write_lock()
        self._choices.__enter__()
        if self._level != STEP:
            super().__enter__()
        watch_steps(self)
        return self

    def _write_lock(self) -> None:
        lock = {**self._lock_at_start, **self._choices.sections}
        try:
            lock_file.write(lock, self._writer.path / lock_file.NAME)
        except FileError as error:
            raise TraceError(str(error)) from error

    @property
    def extent(self) -> tuple[int, str]:
        """The number recorded so far, and of what: ``"call"``, or at level "step" ``"step"``."""
        return (self._step, "step") if self._level == STEP else (self._calls, "call")

    def __repr__(self) -> str:
        return f"<record: {plural(*self.extent)} to {os.fspath(self._path)}>"

    @property
    def not_dumped(self) -> dict[str, str]:
        """The calls of ``dump`` whose tensors are not written, and why."""
        return {str(call): reason for call, reason in self._dumps.missed.items()}

    @property
    def not_recorded(self) -> str | None:
        """The calls of threads that the recording's thread has started; ``None`` if none."""
        return self.other_threads.text()

    @property
    def unwritten_reads(self) -> dict[str, int]:
        """The number of calls that read memory that nobody had written, by operator and line.

        Where all of it was so, their results are not recorded.
        """
        return dict(self._recorder.unsaid + self._recorder.doubtful)

    @property
    def reads_written_memory(self) -> bool:
        """True if all calls were followed, and each read only memory that had been written.

        For them ``torch.utils.deterministic.fill_uninitialized_memory = False`` is safe. False at
        level ``"step"``, for a part of the steps, and where other threads, compiled functions,
        collectives or operators of other libraries make calls.
        """
        is_whole = self._level != STEP and self._steps == ALL
        is_followed = is_whole and self._recorder.follows_all and self.not_recorded is None
        return bool(self._calls) and is_followed and not self.unwritten_reads

    @untraced
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with ExitStack() as undo:
            self._choices.__exit__(kind, error, traceback)
            if not self._is_inherited:
                undo.callback(self._write_lock)
                self._writer.unrecorded = self.other_threads.total
                undo.callback(self._writer.close, error is None)
                undo.callback(self._memory.release)
                undo.callback(self._flush)
                undo.callback(self._tensors.complete, self._tensors.awaited())
            if self._level != STEP:
                undo.callback(super().__exit__, kind, error, traceback)
            undo.callback(unwatch_steps, self)
        if self._is_inherited:
            return
        for call, reason in self.not_dumped.items() if error is None else ():
            warnings.warn(f"{NO_DUMP} {call}: {reason}", stacklevel=2)
        unsaid = "is not recorded, as they read memory that nobody had written (uninitialized)"
        doubtful = (
            "read memory that is, all or in part, uninitialized, and may give other results in "
            "each run"
        )
        for begin, counts, what in (
            (UNSAID, self._recorder.unsaid, unsaid),
            (PARTLY_READ, self._recorder.doubtful, doubtful),
        ):
            if counts:
                calls = plural(counts.total(), "call")
                warnings.warn(f"{begin} {calls} {what}: {next(iter(counts))}", stacklevel=2)

    def _flush(self) -> None:
        self._tensors.pending.clear()
        self._flushed, self._flushed_at = self._calls, time.monotonic()
        taken, self._taken = self._taken, []
        self._writer.flush(self._tensors.digests.take(taken))
        self._memory.forget_freed()

    def _observe(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        place: CallSite | None,
    ) -> Any:
        if _is_received():
            return run(*args, **kwargs)
        with self._lock:
            call = self._recorder.begin(func, args, kwargs, self._calls)
            place = place or self._forward.place_of_call(self._paths, call.inputs)
            self._running += 1
        try:
            result = run(*args, **kwargs)
        except BaseException:
            with self._lock:
                # No line mentions this call.
                self._running -= 1
                self._recorder.give_up(call)
            raise
        with self._lock:
            self._running -= 1
            sides = self._recorder.end(call, result, place)
            graph = None if running.graph is None else running.graph.name
            arguments = arguments_text(args, kwargs)
            name = call.name
            self._write(name, place, sides, call.seeded, arguments, graph, call.collective)
        return result

    def _observe_graph(self, graph: Graph, inputs: Any, run: Callable[[Any], Any]) -> Any:
        with self._lock:
            if self._tensors.pending:
                self._tensors.complete(tensors_in(inputs))
            self._memory.look(tensors_in(inputs))
            before = self._tensors.add(tensors_in(inputs))
            arguments = arguments_text(tuple(inputs), {})
            # The graph empties the list, to free its inputs early: no others are kept here.
            written = tensors_in(inputs[position] for position in graph.mutated)
            self._recorder.follows_all = False
            self._running += 1
        try:
            result = run(inputs)
        except BaseException:
            with self._lock:
                self._running -= 1
            raise
        with self._lock:
            self._running -= 1
            self._memory.written(written)
            self._memory.allocated(graph.undefined_outputs(result))
            add = self._tensors.add
            sides = (before, add(results_of(result, written)), add(written))
            self._write(graph.name, graph.place, sides, None, arguments, None)
        return result

    def _write(
        self,
        name: str,
        place: CallSite,
        sides: Sides,
        seeded: Tensor | None,
        arguments: str,
        graph: str | None,
        collective: Collective | None = None,
    ) -> None:
        """Write the line of a call that has ended, and a batch if one is due."""
        if self._tensors.skips:
            return
        writer, digests = self._writer, self._tensors.digests
        for _, numbers in sides:
            self._taken += numbers
        if seeded is not None:
            self._taken.append(digests.add(seeded))
        module = place.module
        inside = None if graph is None else writer.number(graph)
        identity = None if collective is None else writer.identity(collective)
        writer.call(
            [
                writer.number(name),
                writer.number(place.site.text),
                None if module is None else writer.number(module),
                *(forms for forms, _ in sides),
                int(seeded is not None),
                arguments,
                *(() if inside is None and identity is None else (inside,)),
                *(() if identity is None else (identity,)),
            ]
        )
        self._calls += 1
        due = digests.full or self._calls - self._flushed >= _BATCH
        late = len(digests) >= _LONGEST
        # A call that is still running has digests in this batch.
        if due and not self._running and not is_capturing() and (late or not self._tensors.pending):
            self._flush()

    @untraced
    def end_step(self, state: Callable[[], dict[str, list[Tensor]]]) -> None:
        """End a step; :func:`detmode.end_step` does it for all recordings that are running."""
        if self._is_inherited:
            return
        with self._lock, without_modes():
            tensors = self._tensors
            if not tensors.skips:
                parts = [*self._parts_of(state())] if self._level == STEP else []
                self._writer.end_step(len(self._taken), parts)
            self._step += 1
            was_recorded, tensors.skips = not tensors.skips, self._step not in self._steps
            late = time.monotonic() - self._flushed_at > _SECONDS or tensors.digests.full
            if was_recorded and (tensors.skips or (self._level == STEP and late)):
                self._flush()

    def _parts_of(self, state: dict[str, list[Tensor]]) -> Iterator[Part]:
        for name, tensors in state.items():
            here: list[Tensor] = []
            others: list[Tensor] = []
            for tensor in tensors:
                by_bytes = tensor.is_cpu and is_strided(tensor) and not tensor.is_quantized
                (here if by_bytes else others).append(tensor)
            forms, numbers = self._tensors.add(others)
            self._taken += numbers
            yield name, ([*map(self._tensors.form, here)], forms), hash_of(here), len(numbers)

    def digest_of_steps(self) -> bytes:
        """Return the digest of the steps that have ended; see :func:`detmode.run_digest`."""
        with self._lock, without_modes():
            self._flush()
            return self._writer.digest_of_steps

    def observe_resize(self, storage: torch.UntypedStorage, run: Callable[[], Any]) -> Any:
        """Observe the resizing of a storage. See :class:`Observer`."""
        before = storage.nbytes()
        with self._lock:
            self._tensors.complete_storage(storage._cdata)
            # What it marked may be given back, and other memory be there afterwards.
            self._memory.look_at(storage)
        result = run()
        with self._lock:
            self._memory.resized(storage, before)
        return result

    def observe_copy(
        self, storage: torch.UntypedStorage, source: torch.UntypedStorage, run: Callable[[], Any]
    ) -> Any:
        """Observe a copy of a storage, which is no call of the program's. See :class:`Observer`."""
        if self._thread.is_inside or self._is_inherited:
            return run()
        with self._lock:
            for memory in (storage, source):
                self._tensors.complete_storage(memory._cdata)
                self._memory.look_at(memory)
        self._thread.is_inside = True
        try:
            result = run()
        finally:
            self._thread.is_inside = False
        with self._lock:
            self._memory.copied(storage, source)
        return result


def _is_received() -> bool:
    """Return whether a tensor sent by another process is being rebuilt.

    The batches of several workers are rebuilt in the order in which they arrive, which is not the
    order in which the program gets them. They count as inputs of the run.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_filename == reductions.__file__:
            return True
        frame = frame.f_back
    return False
