"""Dumps: the inputs and outputs of single calls on disk, as plain arrays.

A dump is a folder ``dumps/OPERATOR@INDEX`` of a trace. ``call.json`` names the call and describes
its arrays, which are in ``0.npy``, ``1.npy``, ... in the same folder. The folder is renamed into
place when it is complete. Nothing that is read is trusted or executed.
docs/trace-format.md documents the format.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from detmode.bits.tensors import form_of, has_data, parts
from detmode.cuda.elements import once, plain
from detmode.process.checked import checked
from detmode.process.dispatch import without_modes
from detmode.process.text import text_of
from detmode.runs.trace_file import TraceError, read_head
from detmode.table.rule_table import resolve

FORMAT = "detmode-dump"
VERSION = 1
FOLDER = "dumps"
CHUNK = 1 << 18
"""The number of elements in memory at once."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
_OF_NUMPY = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_CALL = re.compile(r"(\w+)::(\w+)\.(\w+)@(\d{1,18})", re.ASCII)
_FOLDER = re.compile(r"\w+\.\w+\.\w+@\d{1,18}", re.ASCII)
_ARRAY = re.compile(r"(input|output|mutated) \d{1,9}( [a-z_]{1,32})?", re.ASCII)
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, order=True)
class CallName:
    """One call of a run.

    Args:
        overload: "aten::addmm.default".
        index: which of the overload's calls, counted from 0.
    """

    overload: str
    index: int

    @classmethod
    def of(cls, text: str) -> CallName:
        """Parse "aten::addmm.default@3"; without an overload name, "default" is assumed.

        Raises:
            ValueError: the text has another form, or names an ATen overload that does not exist.
        """
        operator, at, index = text.rpartition("@")
        if "." not in operator:
            operator += ".default"
        matched = _CALL.fullmatch(f"{operator}{at}{index}")
        if matched is None:
            raise ValueError(f"{text!r}: give it as OPERATOR@INDEX, e.g. aten::addmm.default@3")
        # The program itself may register operators of other namespaces.
        if matched[1] == "aten" and resolve(operator) is None:
            raise ValueError(f"{text!r}: this PyTorch has no overload {operator}")
        return cls(operator, int(index))

    @property
    def folder(self) -> str:
        """The name of the dump's folder."""
        return str(self).replace("::", ".")

    def __str__(self) -> str:
        return f"{self.overload}@{self.index}"


@dataclass(frozen=True)
class _Array:
    """The description of one array in ``call.json``.

    Args:
        name: "input 0", "output 1", "mutated 0"; for a tensor with several components, with the
            component: "input 0 indices".
        form: the tensor's dtype, shape, strides and device, as in the trace.
        dtype: the dtype of the elements, as PyTorch names it: "bfloat16".
        shape: the shape of the array: 1 along dimensions in which the tensor repeats itself.
    """

    name: str
    form: str
    dtype: str
    shape: tuple[int, ...]


class DumpWriter:
    """Writes the requested calls when they are made.

    Args:
        path: the trace's folder.
        calls: the calls to write.
    """

    def __init__(self, path: str | os.PathLike[str], calls: Iterable[CallName]) -> None:
        self.missed: dict[CallName, str] = {
            call: "the run did not make that call" for call in sorted(set(calls))
        }
        """The calls that are not written, and why."""
        self._folder = Path(path, FOLDER)
        self._seen = dict.fromkeys((call.overload for call in self.missed), 0)

    def begin(self, overload: str, number: int) -> _Dump | None:
        """Return a dump to write if the call about to be made was requested, else ``None``."""
        seen = self._seen.get(overload)
        if seen is None:
            return None
        call = CallName(overload, seen)
        return _Dump(self._folder, call, number) if call in self.missed else None

    def made(self, overload: str, dump: _Dump | None) -> None:
        """Count a call that was made, and close its dump."""
        if overload in self._seen:
            self._seen[overload] += 1
        if dump is not None:
            failure = dump.close()
            if failure is None:
                del self.missed[dump.call]
            else:
                self.missed[dump.call] = failure


class _Dump:
    """A dump that is being written.

    A failed write is not an error of the program: the dump is discarded, and :meth:`close` returns
    the reason.
    """

    def __init__(self, folder: Path, call: CallName, number: int) -> None:
        self.call = call
        self._number = number
        self._path = folder / call.folder
        self._partial = folder / f".{call.folder}"
        self._arrays: list[_Array] = []
        self._failure: str | None = None

    def add(self, side: str, tensors: list[Tensor | None]) -> None:
        """Write a side's tensors as they are now; ``None`` is one with undefined elements."""
        for position, tensor in enumerate(tensors):
            if self._failure is None and tensor is not None and has_data(tensor):
                try:
                    with without_modes(), torch.no_grad():
                        for part, values in parts(tensor).items():
                            name = f"{side} {position} {part}".rstrip()
                            self._write(name, form_of(tensor), once(values))
                except (OSError, RuntimeError) as error:
                    self._give_up(error)

    def close(self) -> str | None:
        """Complete the dump; return the reason if it failed, else ``None``."""
        if self._failure is None:
            head = {
                **{"format": FORMAT, "version": VERSION},
                **{"overload": self.call.overload, "index": self.call.index},
                **{"number": self._number, "arrays": [asdict(array) for array in self._arrays]},
            }
            try:
                self._partial.mkdir(parents=True, exist_ok=True)
                (self._partial / "call.json").write_text(json.dumps(head, indent=1) + "\n")
                self._partial.replace(self._path)
            except OSError as error:
                self._give_up(error)
        return self._failure

    def discard(self) -> None:
        """Delete the partial dump."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def _give_up(self, error: BaseException) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        self._failure = f"it could not be written: {reason}"
        self.discard()

    def _write(self, name: str, form: str, values: Tensor) -> None:
        dtype = str(values.dtype).removeprefix("torch.")
        array = _Array(name, form, dtype, tuple(values.shape))
        header = {
            "descr": _numpy_dtype(array).str,
            "fortran_order": False,
            "shape": array.shape,
        }
        self._partial.mkdir(parents=True, exist_ok=True)
        with (self._partial / f"{len(self._arrays)}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            _write_elements(file, values)
        self._arrays.append(array)


def _write_elements(file: IO[bytes], values: Tensor) -> None:
    as_bytes = plain(values).view(torch.uint8)
    step = CHUNK * values.itemsize
    for begin in range(0, as_bytes.numel(), step):
        file.write(as_bytes[begin : begin + step].cpu().numpy().data)


def _numpy_dtype(array: _Array) -> np.dtype[Any]:
    """Return NumPy's dtype of the elements, or unsigned integers of the same size."""
    if array.dtype in _OF_NUMPY:
        return np.dtype(array.dtype)
    return np.dtype(f"u{_DTYPES[array.dtype].itemsize}")


class DumpReader:
    """Reads a dump.

    Args:
        path: its folder.

    Raises:
        TraceError: the folder is not a dump.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / "call.json"
        try:
            head = read_head(file, FORMAT, VERSION)
        except OSError as error:
            raise TraceError(f"cannot read {file}: {error.strerror}") from error
        try:
            self.call = CallName(text_of(head["overload"]), checked(int, head["index"]))
            self.number = checked(int, head["number"])
            arrays = [_array(fields) for fields in head["arrays"]]
        except (KeyError, TypeError, ValueError):
            raise TraceError(f"{file} does not describe the call of a dump") from None
        self.arrays = {array.name: (number, array) for number, array in enumerate(arrays)}
        if self.call.folder != path.name or len(self.arrays) != len(arrays):
            raise TraceError(f"{file} describes another call, or an array twice")

    def chunks(self, name: str) -> Iterator[Tensor]:
        """Return the elements of an array in row-major order, in chunks of shape (n,).

        Raises:
            TraceError: the file does not match ``call.json``.
        """
        number, array = self.arrays[name]
        file = self.path / f"{number}.npy"
        return self._chunks(file, _DTYPES[array.dtype], _mapped(file, array))

    @staticmethod
    def _chunks(file: Path, dtype: torch.dtype, array: np.memmap[Any, Any]) -> Iterator[Tensor]:
        # Read rather than mapped, because the pages of a map stay in memory.
        kind, offset, size = array.dtype, array.offset, array.size
        for begin in range(0, size, CHUNK):
            count = min(CHUNK, size - begin)
            elements = np.fromfile(file, kind, count, offset=offset + begin * kind.itemsize)
            if len(elements) < count:
                raise TraceError(f"{file} was truncated while it was read")
            yield torch.from_numpy(elements).view(dtype)


def _mapped(file: Path, array: _Array) -> np.memmap[Any, Any]:
    """Map the array of a file.

    Raises:
        TraceError: the file does not match its description.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that an old Python wrote
            if not file.is_file():  # opening a pipe would block
                raise FileNotFoundError
            # Reads no pickles: their dtype cannot be mapped.
            mapped = np.lib.format.open_memmap(file, mode="r")
    except FileNotFoundError:
        raise TraceError(f"there is no file {file}") from None
    except Exception as error:  # NumPy's parser may raise anything
        raise TraceError(f"{file} is not an array: it is truncated, or not a .npy file") from error
    if (mapped.dtype, mapped.shape) != (_numpy_dtype(array), array.shape):
        raise TraceError(f"{file} is not the {array.dtype}{list(array.shape)} of call.json")
    if not mapped.flags.c_contiguous:
        raise TraceError(f"{file} is not in row-major order")
    return mapped


def dumps_of(path: Path) -> list[DumpReader]:
    """Return the dumps of a trace, in the order of their calls.

    Raises:
        TraceError: one of them cannot be read.
    """
    try:
        names = sorted(os.listdir(path / FOLDER))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TraceError(f"cannot read {path / FOLDER}: {error.strerror}") from error
    # A name that begins with a dot is a partial dump.
    readers = [DumpReader(path / FOLDER / name) for name in names if _FOLDER.fullmatch(name)]
    return sorted(readers, key=lambda reader: reader.number)


def _array(value: Any) -> _Array:
    name, form, dtype, shape = (value[key] for key in ("name", "form", "dtype", "shape"))
    if len(checked(list[int], shape)) > _MOST_DIMENSIONS:
        raise TypeError
    if text_of(dtype) not in _DTYPES or _ARRAY.fullmatch(name) is None:
        raise ValueError
    return _Array(name, text_of(form), dtype, tuple(shape))
