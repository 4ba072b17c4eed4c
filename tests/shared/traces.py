"""Recordings, and such with any bytes in their files."""

import ctypes
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from torch import Tensor

import detmode
from detmode import TraceError, diff, record
from detmode.runs.dump_file import DumpReader, dumps_of
from detmode.runs.trace_file import Reader, TraceCall
from detmode.sites.observers import observer

if TYPE_CHECKING:  # a machine may lack it
    from hypothesis import strategies as st

PIECES = [b"[" * 3000, b"-1", b"1e999", b"{}", b"'O'", b"|O", b"null", b"9" * 5000, b"True"]


def check_hostile_copy(
    first: Path, second: Path, files: str, data: "st.DataObject", folder: Path
) -> None:
    """Replace bytes in a file of a copy of the second run; compare the first run with the copy.

    It is shown, or refused with one line; any other error is raised.
    """
    from hypothesis import strategies as st

    copy = folder / str(uuid4())  # Hypothesis seeds Python's generator anew
    shutil.copytree(second, copy)
    part = data.draw(st.sampled_from(sorted(copy.glob(files))))
    content = bytearray(part.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(content)))
        end = min(len(content), begin + data.draw(st.integers(0, 8)))
        content[begin:end] = data.draw(st.one_of(st.binary(max_size=8), st.sampled_from(PIECES)))
    part.write_bytes(content)
    said = str(copy)
    try:
        comparison = diff(first, copy)
        json.loads(comparison.to_json())
        assert str(comparison)
    except TraceError as error:
        said = str(error)
    assert str(copy) in said
    assert "\n" not in said
    shutil.rmtree(copy)


def calls(path: Path, *overloads: str) -> list[TraceCall]:
    """The recorded calls, of some overloads or of all."""
    return [call for call in Reader(path).calls() if not overloads or call.overload in overloads]


def compared(
    tmp_path: Path, program: Callable[[Any, record], object], *values: Any
) -> detmode.Comparison:
    """The comparison of two runs of a program, each with a value of its own."""
    folders = [tmp_path / name for name in ("run", "other")]
    for folder, value in zip(folders, values):
        program(value, record(folder))
    return diff(*folders)


def dumped(path: Path, call: str, run: Callable[[], object]) -> DumpReader:
    """The dump of one call of a run."""
    with record(path, dump=[call]) as recording:
        run()
    assert recording.not_dumped == {}
    (dump,) = dumps_of(path)
    return dump


def new(numel: int, byte: int) -> Tensor:
    """Memory that nobody has written, and that holds these bytes."""
    recording = observer()
    assert isinstance(recording, record)
    held = torch.empty(0)
    # What the allocator does, below the dispatcher's sight.
    storage = torch.UntypedStorage(4 * numel)
    ctypes.memset(storage.data_ptr(), byte, 4 * numel)
    made = recording.observe(
        torch.ops.aten.empty.memory_format, ([numel],), {}, lambda size: held.set_(storage)
    )
    assert isinstance(made, Tensor)
    return made
