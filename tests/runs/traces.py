"""Recordings with any bytes in their files."""

import json
import shutil
from pathlib import Path
from uuid import uuid4

from hypothesis import strategies as st

from detmode import TraceError, diff

PIECES = [b"[" * 3000, b"-1", b"1e999", b"{}", b"'O'", b"|O", b"null", b"9" * 5000, b"True"]


def check_hostile_copy(
    first: Path, second: Path, files: str, data: st.DataObject, folder: Path
) -> None:
    """Replace bytes in a file of a copy of the second run; compare the first run with the copy.

    It is shown, or refused with one line; any other error is raised.
    """
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
