"""Coarse recordings: one digest a step, for each module or for each part of the state."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from detmode.bits.tensors import UNINITIALIZED, is_capturing, is_foreign
from detmode.cuda.elements import in_memory, once
from detmode.process.dispatch import without_modes
from detmode.process.generators import default_generators
from detmode.reports.timeline import NO_MODULE
from detmode.runs.trace_lines import DIGEST_BYTES
from detmode.runs.trace_writer import Part, Writer

Detail: TypeAlias = Literal["call", "module", "step"]
CALL: Final = "call"
MODULE: Final = "module"
STEP: Final = "step"
LEVELS: tuple[Detail, ...] = (CALL, MODULE, STEP)
"""The detail of a recording: digests of each tensor of each call; for each step, of the calls of
each module; or for each step, of the state that it left."""


class _RollUpWriter(Writer):
    """Writes one digest for each step and name, of all that was added under this name in the step.

    A name is that of a module or of a part of the state.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts: list[str] = []
        self._known: dict[str, int] = {}
        self._keys: dict[tuple[Any, ...], bytes] = {}
        # Since the last batch: a name, what is digested besides tensors, and the number of digests
        # of tensors; None is the end of a step.
        self._added: list[tuple[str, bytes, int] | None] = []
        self._open: dict[str, hashlib.blake2b] = {}

    def number(self, text: str) -> int:
        """Return the number that stands for a text, which is not written."""
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = len(self._texts)
            self._texts.append(text)
        return number

    def identity(self, collective: Any) -> list[int]:
        """Return nothing: a collective counts among the calls of its module."""
        return []

    def call(self, fields: list[Any]) -> None:
        """Add a call to its module's digest. See :meth:`Writer.call`."""
        overload, _, module, *sides, random, arguments = fields[:8]
        name = NO_MODULE if module is None else self._texts[module]
        count = sum(map(len, sides)) + random
        self._add(name, ([overload], *sides), arguments, count)

    def _add(self, name: str, texts: tuple[list[int], ...], arguments: str, digests: int) -> None:
        """Add so many of the next digests to a name's digest, and the texts that describe them."""
        numbers = tuple(map(tuple, texts))
        key = self._keys.get(numbers)
        if key is None:
            lines = (
                " ".join(self._texts[number] for number in numbers_of_one)
                for numbers_of_one in numbers
            )
            key = self._keys[numbers] = "\n".join(lines).encode(errors="surrogatepass")
        whole = key + b"\n" + arguments.encode(errors="surrogatepass")
        self._added.append((name, whole, digests))

    def end_step(self, digests: int, parts: Iterable[Part] = ()) -> None:
        """Add the parts of the state, and the end of a step."""
        for part in parts:
            self._add(*part)
        self._added.append(None)

    def flush(self, digests: bytes) -> None:
        """Hand over the digests of the steps that have ended. See :meth:`Writer.flush`."""
        at, content = 0, bytearray()
        for entry in self._added:
            if entry is None:
                content += self._end(len(content))
                continue
            name, key, count = entry
            end = at + count * DIGEST_BYTES
            opened = self._open.get(name)
            if opened is None:
                opened = self._open[name] = hashlib.blake2b(digest_size=DIGEST_BYTES)
            opened.update(len(key).to_bytes(8, "little") + key + digests[at:end])
            at = end
        self._added.clear()
        super().flush(bytes(content))

    def _end(self, begin: int) -> bytes:
        """End a step; return its digests, in the order in which its names came first."""
        numbers = [super(_RollUpWriter, self).number(name) for name in self._open]
        digests = b"".join(opened.digest() for opened in self._open.values())
        self._open.clear()
        self._lines.append(f'{{"step":[{",".join(map(str, numbers))}]}}')
        self._ends.append((begin + len(digests)) // DIGEST_BYTES)
        return digests

    def close(self, ended: bool) -> None:
        """Write what came after the last step as a step too, and close."""
        if self._open:
            super().flush(self._end(0))
        super().close(ended)


def writer_of(level: Detail) -> type[Writer]:
    """Return the class that writes recordings of a level."""
    return Writer if level == CALL else _RollUpWriter


def state_of(optimizer: Optimizer) -> dict[str, list[Tensor]]:
    """Return the parts of the state at the end of a step: names, and tensors of no subclass.

    They are the parameters, their gradients, the optimizer's own tensors, and the states of
    PyTorch's generators (while a CUDA graph is captured, it holds theirs).
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [
        optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state
    ]
    with without_modes():
        return {
            "parameters": _plain(parameters),
            "gradients": _plain([parameter.grad for parameter in parameters]),
            "optimizer state": _plain([value for state in states for value in state.values()]),
            "generators": []
            if is_capturing()
            else [generator.get_state() for generator in default_generators().values()],
        }


def named_tensors(tensors: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """Return tensors that the program names at the end of a step, as tensors of no subclass.

    Raises:
        TypeError: one of them is no tensor.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"end_step: {name} must be a tensor, got {type(tensor).__name__}")
    with without_modes():
        return {name: _plain([tensor]) for name, tensor in tensors.items()}


def hash_of(tensors: list[Tensor]) -> str:
    """Return the SHA-256 hash of CPU tensors' bytes, one after the other, in hexadecimal digits.

    It takes half the time of digests that a GPU can compute, too, and that tell tensors apart.

    Args:
        tensors: strided.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = in_memory(once(tensor))
        digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))
    return digest.hexdigest()


def _plain(values: list[Any]) -> list[Tensor]:
    """Return the tensors among some values; in place of one of a subclass, those inside it."""
    tensors = []
    for value in values:
        if not isinstance(value, Tensor) or isinstance(value, UNINITIALIZED):
            continue
        if is_foreign(type(value)) and hasattr(value, "__tensor_flatten__"):
            names, _ = value.__tensor_flatten__()
            tensors += _plain([getattr(value, name) for name in names])
        else:
            tensors.append(value.detach())
    return tensors
