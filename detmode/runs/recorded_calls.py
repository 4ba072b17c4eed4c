"""The calls of a recording: what each reads, writes and allocates, and the tensors' digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from detmode.bits.digest_batches import Digests
from detmode.bits.effects import Effects, effects_of
from detmode.bits.tensors import bytes_of, form_of, is_capturing, is_strided, to_digest
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import without_modes
from detmode.runs.collectives import Collective, numbered
from detmode.runs.compiled_graphs import running
from detmode.runs.description import generator_state
from detmode.runs.dump_file import DumpWriter
from detmode.runs.trace_file import partly_uninitialized
from detmode.runs.unwritten import DEFINED, PARTLY, UNDEFINED, Memory
from detmode.table.call_site import CallSite
from detmode.table.names import overload_name

Added: TypeAlias = tuple[list[int], list[int]]
"""For each tensor, the number of its form in the trace, and the number of its digest."""
Sides: TypeAlias = tuple[Added, Added, Added]
"""The inputs of a call, its outputs, and the arguments that it has written."""


@dataclass(slots=True)
class _Call:
    """A call that is recorded, and what is known before it is made."""

    name: str
    effects: Effects
    args: tuple[Any, ...]
    inputs: list[Tensor]
    written: list[Tensor]
    buffers: list[Tensor]
    """Arguments that it writes, which a compiled graph has just allocated."""
    content: int
    """The content of the memory that it reads."""
    before: Added | None
    """Its inputs; ``None`` for a call that does not wait for them."""
    sizes: list[tuple[torch.UntypedStorage, int]]
    """The storages that it may resize, and their bytes."""
    seeded: Tensor | None
    """The state of its generator."""
    collective: Collective | None
    dump: Any


class _Tensors:
    """Digests tensors, with what is known of their memory.

    Args:
        memory: of the run.
        skips: whether the run is in a step that is not recorded, so that nothing is added.

    Attributes:
        number: returns the number that stands for a text in the trace; to be set.
    """

    number: Callable[[str], int]

    def __init__(self, memory: Memory, *, skips: bool) -> None:
        self.digests = Digests()
        self.skips = skips
        # By storage, the results of collectives that no call has used yet: the numbers of their
        # digests, and whether the caller waited for them.
        self.pending: dict[int, list[tuple[int, Tensor, bool]]] = {}
        self._memory = memory
        self._forms: dict[Any, int] = {}

    def add(self, tensors: Iterable[Tensor], *, really: bool = False) -> Added:
        """Add the tensors' digests; if ``really``, those of undefined memory too."""
        forms: list[int] = []
        numbers: list[int] = []
        if self.skips:
            return forms, numbers
        for tensor in tensors:
            strided = is_strided(tensor)
            content = self._memory.content(tensor) if strided else DEFINED
            if not strided:
                numbers.append(self._add_converted(tensor))
            elif self.pending and (unfinished := self.pending.get(_storage_of(tensor))):
                numbers.append(self.digests.add_undefined())
                unfinished.append((numbers[-1], tensor, unfinished[0][2]))
                content = DEFINED
            elif content == DEFINED or really:
                content = PARTLY if content else DEFINED
                add = self._add_converted if tensor.is_quantized else self.digests.add
                numbers.append(add(tensor))
            elif content == UNDEFINED or tensor.is_quantized:
                numbers.append(self.digests.add_undefined())
            else:
                numbers.append(self.digests.add(self._memory.defined_part(tensor)))
            forms.append(self.form(tensor, content, strided=strided))
        return forms, numbers

    def _add_converted(self, tensor: Tensor) -> int:
        with without_modes():
            return self.digests.add(to_digest(tensor))

    def add_pending(self, tensors: list[Tensor], waited_for: bool) -> Added:
        """Add the results of a collective, which are digested when they are next used."""
        if self.skips:
            return [], []
        forms, numbers = self.add(tensor for tensor in tensors if not is_strided(tensor))
        for tensor in filter(is_strided, tensors):
            forms.append(self.form(tensor))
            numbers.append(self.digests.add_undefined())
            entry = (numbers[-1], tensor, waited_for)
            self.pending.setdefault(_storage_of(tensor), []).append(entry)
        return forms, numbers

    def complete(self, tensors: Iterable[Tensor]) -> None:
        """Digest pending results that share memory with tensors about to be read or written.

        A program that uses them has waited for them.
        """
        for tensor in tensors:
            self.complete_storage(_storage_of(tensor))

    def complete_storage(self, storage: int) -> None:
        for number, result, _ in self.pending.pop(storage, ()):
            self.digests.replace(number, result)

    def awaited(self) -> list[Tensor]:
        return [result for _, result, waited in chain(*self.pending.values()) if waited]

    def defined(self, tensors: list[Tensor]) -> list[Tensor | None]:
        """Return ``None`` for each tensor of whose content nothing can be said, or not yet."""
        return [None if self._is_undefined(tensor) else tensor for tensor in tensors]

    def _is_undefined(self, tensor: Tensor) -> bool:
        return is_strided(tensor) and (
            _storage_of(tensor) in self.pending or self._memory.content(tensor) == UNDEFINED
        )

    def form(self, tensor: Tensor, content: int = DEFINED, *, strided: bool = True) -> int:
        """Return the number of a tensor's form, which says so if it is uninitialized in part."""
        # For a tensor without strides, the text of the form is the key.
        look = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device) if strided else None
        key = (look or form_of(tensor), content)
        form = self._forms.get(key)
        if form is None:
            text = form_of(tensor)
            if content == PARTLY:
                text = partly_uninitialized(text)
            form = self._forms[key] = self.number(text)
        return form


class CallRecorder:
    """Records what calls read and write, and follows the memory of the run.

    Args:
        memory: of the run.
        dumps: the calls whose tensors are written too.
        skips: whether the run begins in a step that is not recorded.
    """

    def __init__(self, memory: Memory, dumps: DumpWriter, *, skips: bool) -> None:
        self.tensors = _Tensors(memory, skips=skips)
        self.unsaid: Counter[str] = Counter()
        """The calls whose results are undefined, as they read undefined memory, by their lines."""
        self.doubtful: Counter[str] = Counter()
        """Those that read memory that is undefined in part, likewise."""
        self.follows_all = True
        """False once a call was made whose reading of memory is not known to the byte."""
        self._memory, self._dumps = memory, dumps
        self._collectives: Counter[Any] = Counter()

    def begin(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int,
    ) -> _Call:
        """Record what a call is about to read; ``number`` is the call's in the trace."""
        tensors, effects, name = self.tensors, effects_of(func), overload_name(func)
        inputs, written = effects.read(args, kwargs), effects.written(args, kwargs)
        if effects.takes_storages:
            inputs += [bytes_of(value) for value in args if _is_storage(value)]
        seeded = generator_state(inputs, kwargs) if effects.seeded else None
        graph = running.graph
        buffers = graph.undefined_buffers(written) if graph is not None else []
        self._memory.allocated(buffers)
        is_captured = bool(inputs) and inputs[0].is_cuda and is_capturing()
        if graph is not None or is_captured:
            self.follows_all = False
        # A view of an unfinished result does not wait for it.
        is_late = effects.waits or effects.aliases
        if tensors.pending and not is_late:
            # Gloo itself copies a result into place, while another thread waits for it.
            tensors.complete(inputs[1:] if effects.copies else [*inputs, *written])
        read = effects.without_unread(inputs, args, kwargs)
        content = self._memory.read_by(effects, read, written)
        before = None if is_late else tensors.add(inputs, really=effects.gives_value)
        resized = filter(is_strided, written if effects.allocates else ())
        sizes = [
            (tensor.untyped_storage(), tensor.untyped_storage().nbytes()) for tensor in resized
        ]
        collective = None
        if effects.asynchronous:
            collective = numbered(effects, args, kwargs, self._collectives)
        dump = None if tensors.skips else self._dumps.begin(name, number)
        if dump is not None:
            dump.add("input", tensors.defined(inputs))
        return _Call(
            *(name, effects, args, inputs, written, buffers, content, before, sizes),
            *(seeded, collective, dump),
        )

    def give_up(self, call: _Call) -> None:
        """Forget a call that has raised."""
        self._memory.written(call.buffers)
        if call.dump is not None:
            call.dump.discard()

    def end(self, call: _Call, result: Any, place: CallSite) -> Sides:
        """Record what a call has written; return its inputs, its outputs, and what it wrote."""
        outputs = results_of(result, call.written)
        if not call.effects.is_atens and (call.inputs or outputs):  # a profiler's have neither
            self.follows_all = False
        known, fresh = self._fresh(call, outputs)
        if call.before is None:
            if call.effects.waits or fresh:
                self.tensors.complete(call.inputs)
                self._memory.look(call.inputs)
            call.before = self.tensors.add(call.inputs)
        self._follow(call, fresh)
        # What is an argument's memory is followed already.
        undefined = (result[number] for number in call.effects.undefined)
        unwritten = [tensor for tensor in undefined if _storage_of(tensor) not in known]
        if unwritten:
            self._memory.allocated(unwritten, is_result=False)
            # One of them may contain another output.
            self._memory.written(_without(outputs, unwritten))
        sides = (call.before, *self._written_by(call, outputs))
        if call.content != DEFINED and not self.tensors.skips:
            is_unsaid = call.content == UNDEFINED and not call.effects.gives_value
            counts = self.unsaid if is_unsaid else self.doubtful
            counts[f"{call.name} at {place.site.text}"] += 1
        # What comes next in a graph may write them, which is not seen.
        self._memory.written(call.buffers)
        return sides

    def _fresh(self, call: _Call, outputs: list[Tensor]) -> tuple[set[int], list[Tensor]]:
        """Return the storages of a call's inputs, and its results in memory of their own.

        Returning a view of an input does not write it. Both are empty where nobody needs them.
        """
        effects = call.effects
        matters = effects.allocates or effects.undefined or call.before is None
        if not matters and self._memory.is_defined:
            return set(), []
        known = {_storage_of(tensor) for tensor in call.inputs}
        return known, [tensor for tensor in outputs if _storage_of(tensor) not in known]

    def _follow(self, call: _Call, fresh: list[Tensor]) -> None:
        memory, effects = self._memory, call.effects
        if effects.allocates:
            for storage, size in call.sizes:
                memory.resized(storage, size)
            memory.new(fresh)
            return
        is_undefined = call.content == UNDEFINED
        memory.called(effects, call.inputs, call.written, fresh, is_undefined)
        results = [*fresh, *call.written]
        if call.content == PARTLY and memory.spread(effects, call.inputs, results):
            call.content = DEFINED  # as far as it is recorded
            self.follows_all = False

    def _written_by(self, call: _Call, outputs: list[Tensor]) -> tuple[Added, Added]:
        tensors, effects, dump = self.tensors, call.effects, call.dump
        if effects.asynchronous:
            waited_for = effects.is_waited_for(call.args)
            after = tensors.add_pending(outputs, waited_for)
            mutated = tensors.add_pending(call.written, waited_for)
        else:
            after, mutated = tensors.add(outputs), tensors.add(call.written)
            if dump is not None:
                dump.add("output", tensors.defined(outputs))
                dump.add("mutated", tensors.defined(call.written))
        if not tensors.skips:
            self._dumps.made(call.name, dump)
        return after, mutated


def results_of(result: Any, written: list[Tensor]) -> list[Tensor]:
    """Return the tensors of a result that are none of the arguments."""
    return _without(tensors_in((result,)), written)


def _without(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if not any(tensor is without for without in others)]


def _is_storage(value: Any) -> bool:
    return isinstance(value, (torch.UntypedStorage, torch.TypedStorage))


def _storage_of(tensor: Tensor) -> int:
    """Return what tensors that share memory have in common; 0 if it has no strides."""
    return tensor.untyped_storage()._cdata if is_strided(tensor) else 0
