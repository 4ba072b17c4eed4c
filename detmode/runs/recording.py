"""Recording a run: every aten call with the digests of its tensors."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from detmode.bits.digest_batches import Digests
from detmode.bits.effects import effects_of
from detmode.bits.tensors import bytes_of, form_of, is_capturing, is_strided, to_digest
from detmode.environment.lock import lock_file
from detmode.environment.lock.choices import Choices
from detmode.environment.lock.lock_file import LockError, LockFile
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import untraced, without_modes
from detmode.reports.page import plural
from detmode.runs.collectives import Collective, CollectiveNumbers
from detmode.runs.compiled_graphs import Graph, running
from detmode.runs.description import about_run, arguments_text, generator_state, lock_of_run
from detmode.runs.dump_file import CallName, DumpWriter
from detmode.runs.observer import RunObserver
from detmode.runs.step_range import StepRange
from detmode.runs.steps import unwatch as unwatch_steps
from detmode.runs.steps import watch as watch_steps
from detmode.runs.trace_file import TraceError, partly_uninitialized
from detmode.runs.trace_levels import CALL, LEVELS, STEP, RollUpWriter, hash_of
from detmode.runs.trace_writer import Writer
from detmode.runs.unwritten import DEFINED, PARTLY, STORAGE_METHODS, UNDEFINED, Memory
from detmode.table.call_site import CallSite
from detmode.table.names import overload_name

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
_Added: TypeAlias = tuple[list[int], list[int]]
"""For each tensor, the number of its form in the trace, and the number of its digest."""


class record(RunObserver):
    """Records every call of a block to a folder, for ``detmode diff``.

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
        level: str = CALL,
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
        self._level, self._steps = level, StepRange.of(steps)
        self._step = 0
        self._skips = not self._steps.has(0)
        self._writer: Writer | None = None
        self._digests = Digests()
        self._forms: dict[Any, int] = {}
        self._collectives = CollectiveNumbers()
        self._memory = Memory()
        # By storage, the results of collectives that no call has used yet: the numbers of their
        # digests, and whether the caller waited for them.
        self._pending: dict[int, list[tuple[int, Tensor, bool]]] = {}
        # The calls whose results are undefined, as they read undefined memory, by their lines.
        self._unsaid: Counter[str] = Counter()
        # Those that read memory that is undefined in part, likewise.
        self._doubtful: Counter[str] = Counter()
        self._calls = self._flushed = 0
        # The numbers of the digests of the calls that have ended since the last batch.
        self._taken: list[int] = []
        self._running = 0
        self._flushed_at = time.monotonic()
        self._lock_at_start: LockFile
        self._choices: Choices

    @untraced
    def __enter__(self) -> record:
        self._lock_at_start, self._choices = lock_of_run(), Choices()
        about = {**about_run(), "level": self._level, "steps": str(self._steps)}
        self._writer = (Writer if self._level == CALL else RollUpWriter)(self._path, about)
        self._write_lock()
        self._choices.__enter__()
        if self._level != STEP:
            super().__enter__()
        watch_steps(self)
        return self

    def _write_lock(self) -> None:
        assert self._writer is not None
        lock = LockFile({**self._lock_at_start.sections, **self._choices.sections})
        try:
            lock.write(self._writer.path / lock_file.NAME)
        except LockError as error:
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
        return dict(self._unsaid + self._doubtful)

    @untraced
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with ExitStack() as undo:
            assert self._writer is not None
            self._choices.__exit__(kind, error, traceback)
            if not self._is_inherited:
                undo.callback(self._write_lock)
                self._writer.unrecorded = self.other_threads.total
                undo.callback(self._writer.close, error is None)
                undo.callback(self._memory.release)
                undo.callback(self._flush)
                pending = chain.from_iterable(self._pending.values())
                undo.callback(self._complete, [result for _, result, waited in pending if waited])
            if self._level != STEP:
                undo.callback(super().__exit__, kind, error, traceback)
            undo.callback(unwatch_steps, self)
        if error is None and not self._is_inherited:
            for call, reason in self.not_dumped.items():
                warnings.warn(f"{NO_DUMP} {call}: {reason}", stacklevel=2)
        if self._unsaid and not self._is_inherited:
            warnings.warn(
                f"{UNSAID} {plural(self._unsaid.total(), 'call')} is not recorded, as they read "
                f"memory that nobody had written (uninitialized): {next(iter(self._unsaid))}",
                stacklevel=2,
            )
        if self._doubtful and not self._is_inherited:
            warnings.warn(
                f"{PARTLY_READ} {plural(self._doubtful.total(), 'call')} read memory that is, all "
                "or in part, uninitialized, and may give other results in each run: "
                f"{next(iter(self._doubtful))}",
                stacklevel=2,
            )

    def _flush(self) -> None:
        assert self._writer is not None
        self._pending.clear()
        self._flushed, self._flushed_at = self._calls, time.monotonic()
        taken, self._taken = self._taken, []
        self._writer.flush(self._digests.take(taken))
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
            effects, name = effects_of(func), overload_name(func)
            inputs, written = effects.read(args, kwargs), effects.written(args, kwargs)
            if effects.takes_storages:
                inputs += [bytes_of(value) for value in args if _is_storage(value)]
            seeded = generator_state(inputs, kwargs) if effects.seeded else None
            graph = running.graph
            buffers = graph.undefined_buffers(written) if graph is not None else []
            self._memory.allocated(buffers)
            # A view of an unfinished result does not wait for it.
            is_late = effects.waits or effects.aliases
            if self._pending and not is_late:
                # Gloo itself copies a result into place, while another thread waits for it.
                self._complete(inputs[1:] if effects.copies else [*inputs, *written])
            content = self._memory.read_by(
                effects, effects.without_unread(inputs, args, kwargs), written
            )
            undefined = content == UNDEFINED
            before = None if is_late else self._add(inputs, really=effects.gives_value)
            resized = filter(is_strided, written if effects.allocates else ())
            sizes = [(each.untyped_storage(), each.untyped_storage().nbytes()) for each in resized]
            place = place or self._places.of_call(inputs)
            collective = (
                self._collectives.of(effects, args, kwargs) if effects.asynchronous else None
            )
            dump = None if self._skips else self._dumps.begin(name, self._calls)
            if dump is not None:
                dump.add("input", self._defined(inputs))
            self._running += 1
        try:
            result = run(*args, **kwargs)
        except BaseException:
            with self._lock:
                # No line mentions this call.
                self._running -= 1
                self._memory.written(buffers)
                if dump is not None:
                    dump.discard()
            raise
        with self._lock:
            self._running -= 1
            outputs = [
                tensor for tensor in tensors_in((result,)) if not any(tensor is w for w in written)
            ]
            fresh, known = [], set()
            if (
                effects.allocates
                or effects.undefined
                or before is None
                or not self._memory.is_defined
            ):
                # Returning a view of an input does not write it.
                known = {_storage(tensor) for tensor in inputs}
                fresh = [tensor for tensor in outputs if _storage(tensor) not in known]
            if before is None:
                if effects.waits or fresh:
                    self._complete(inputs)
                    self._memory.look(inputs)
                before = self._add(inputs)
            if effects.allocates:
                for storage, size in sizes:
                    self._memory.resized(storage, size)
                self._memory.new(fresh)
            else:
                self._memory.called(effects, inputs, written, fresh, undefined)
                if content == PARTLY and self._memory.spread(effects, inputs, [*fresh, *written]):
                    content = DEFINED  # as far as it is recorded
            # What is an argument's memory is followed already.
            unwritten = [result[n] for n in effects.undefined if _storage(result[n]) not in known]
            if unwritten:
                self._memory.allocated(unwritten, is_result=False)
                # One of them may contain another output.
                self._memory.written(
                    each for each in outputs if not any(each is one for one in unwritten)
                )
            if effects.asynchronous:
                waited_for = effects.is_waited_for(args)
                after = self._add_pending(outputs, waited_for)
                mutated = self._add_pending(written, waited_for)
            else:
                after, mutated = self._add(outputs), self._add(written)
            if dump is not None and not effects.asynchronous:
                dump.add("output", self._defined(outputs))
                dump.add("mutated", self._defined(written))
            if not self._skips:
                self._dumps.made(name, dump)
            sides = (before, after, mutated)
            inside = None if graph is None else graph.name
            arguments = arguments_text(args, kwargs)
            self._write(name, place, sides, seeded, arguments, inside, collective)
            if content != DEFINED and not self._skips:
                unsaid = undefined and not effects.gives_value
                (self._unsaid if unsaid else self._doubtful)[f"{name} at {place.site.text}"] += 1
            # What comes next in a graph may write them, which is not seen.
            self._memory.written(buffers)
        return result

    def _observe_graph(self, graph: Graph, inputs: Any, run: Callable[[Any], Any]) -> Any:
        with self._lock:
            if self._pending:
                self._complete(tensors_in(inputs))
            self._memory.look(tensors_in(inputs))
            before = self._add(tensors_in(inputs))
            arguments = arguments_text(tuple(inputs), {})
            # The graph empties the list, to free its inputs early: no others are kept here.
            written = tensors_in(inputs[position] for position in graph.mutated)
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
            outputs = [
                tensor for tensor in tensors_in((result,)) if not any(tensor is w for w in written)
            ]
            sides = (before, self._add(outputs), self._add(written))
            self._write(graph.name, graph.place, sides, None, arguments, None)
        return result

    def _write(
        self,
        name: str,
        place: CallSite,
        sides: tuple[_Added, _Added, _Added],
        seeded: Tensor | None,
        arguments: str,
        graph: str | None,
        collective: Collective | None = None,
    ) -> None:
        """Write the line of a call that has ended, and a batch if one is due."""
        if self._skips:
            return
        writer = self._writer
        assert writer is not None
        for _, numbers in sides:
            self._taken += numbers
        if seeded is not None:
            self._taken.append(self._digests.add(seeded))
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
        due = self._digests.full or self._calls - self._flushed >= _BATCH
        late = len(self._digests) >= _LONGEST
        # A call that is still running has digests in this batch.
        if due and not self._running and not is_capturing() and (late or not self._pending):
            self._flush()

    @untraced
    def end_step(self, state: Callable[[], dict[str, list[Tensor]]]) -> None:
        """End a step; :func:`detmode.end_step` does it for all recordings that are running."""
        if self._is_inherited:
            return
        with self._lock, without_modes():
            writer = self._writer
            assert writer is not None
            if not self._skips:
                if isinstance(writer, RollUpWriter) and self._level == STEP:
                    for name, tensors in state().items():
                        here: list[Tensor] = []
                        others: list[Tensor] = []
                        for each in tensors:
                            by_bytes = each.is_cpu and is_strided(each) and not each.is_quantized
                            (here if by_bytes else others).append(each)
                        forms, numbers = self._add(others)
                        known = [self._form(each, True) for each in here]
                        writer.add(name, (known, forms), hash_of(here), len(numbers))
                        self._taken += numbers
                writer.end_step(len(self._taken))
            self._step += 1
            was_recorded, self._skips = not self._skips, not self._steps.has(self._step)
            late = time.monotonic() - self._flushed_at > _SECONDS or self._digests.full
            if was_recorded and (self._skips or (self._level == STEP and late)):
                self._flush()

    def digest_of_steps(self) -> bytes:
        """Return the digest of the steps that have ended; see :func:`detmode.run_digest`."""
        with self._lock, without_modes():
            assert self._writer is not None
            self._flush()
            return self._writer.digest_of_steps

    def _add_pending(self, tensors: list[Tensor], waited_for: bool) -> _Added:
        """Add the results of a collective, which are digested when they are next used."""
        if self._skips:
            return [], []
        forms, numbers = self._add([tensor for tensor in tensors if not is_strided(tensor)])
        for tensor in filter(is_strided, tensors):
            forms.append(self._form(tensor, strided=True))
            numbers.append(self._digests.add_undefined())
            entry = (numbers[-1], tensor, waited_for)
            self._pending.setdefault(_storage(tensor), []).append(entry)
        return forms, numbers

    def _complete(self, tensors: list[Tensor]) -> None:
        """Digest pending results that share memory with tensors about to be read or written.

        A program that uses them has waited for them.
        """
        for tensor in tensors:
            for number, result, _ in self._pending.pop(_storage(tensor), ()):
                self._digests.replace(number, result)

    def _add(self, tensors: list[Tensor], really: bool = False) -> _Added:
        """Add the tensors' digests; if ``really``, those of undefined memory too.

        None in a step that is not recorded.
        """
        forms: list[int] = []
        numbers: list[int] = []
        if self._skips:
            return forms, numbers
        for tensor in tensors:
            strided = is_strided(tensor)
            content = self._memory.content(tensor) if strided else DEFINED
            if not strided:
                with without_modes():
                    numbers.append(self._digests.add(to_digest(tensor)))
            elif self._pending and (unfinished := self._pending.get(_storage(tensor))):
                numbers.append(self._digests.add_undefined())
                unfinished.append((numbers[-1], tensor, unfinished[0][2]))
                content = DEFINED
            elif content == DEFINED or really:
                content = PARTLY if content else DEFINED
                numbers.append(self._digests.add(self._in_bytes(tensor)))
            elif content == UNDEFINED or tensor.is_quantized:
                numbers.append(self._digests.add_undefined())
            else:
                numbers.append(self._digests.add(self._memory.defined_part(tensor)))
            forms.append(self._form(tensor, strided, content))
        return forms, numbers

    @staticmethod
    def _in_bytes(tensor: Tensor) -> Tensor:
        if not tensor.is_quantized:
            return tensor
        with without_modes():
            return to_digest(tensor)

    def _form(self, tensor: Tensor, strided: bool, content: int = DEFINED) -> int:
        """Return the number of a tensor's form, which says so if it is uninitialized in part."""
        assert self._writer is not None
        # For a tensor without strides, the text of the form is the key.
        look = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device) if strided else None
        key = (look or form_of(tensor), content)
        form = self._forms.get(key)
        if form is None:
            text = form_of(tensor)
            if content == PARTLY:
                text = partly_uninitialized(text)
            form = self._forms[key] = self._writer.number(text)
        return form

    def _defined(self, tensors: list[Tensor]) -> list[Tensor | None]:
        return [None if self._is_undefined(tensor) else tensor for tensor in tensors]

    def _is_undefined(self, tensor: Tensor) -> bool:
        """Return whether nothing can be said of a tensor's content, or not yet."""
        return is_strided(tensor) and (
            _storage(tensor) in self._pending or self._memory.content(tensor) == UNDEFINED
        )

    def observe_resize(self, storage: torch.UntypedStorage, run: Callable[[], Any]) -> Any:
        """Observe the resizing of a storage. See :class:`Observer`."""
        before = storage.nbytes()
        with self._lock:
            for number, result, _ in self._pending.pop(storage._cdata, ()):
                self._digests.replace(number, result)
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
            for each in (storage, source):
                for number, result, _ in self._pending.pop(each._cdata, ()):
                    self._digests.replace(number, result)
                self._memory.look_at(each)
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


def _is_storage(value: Any) -> bool:
    return isinstance(value, (torch.UntypedStorage, torch.TypedStorage))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if is_strided(tensor) else 0
