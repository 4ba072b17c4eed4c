"""Reading the files of a run, which others may have written.

Neither the size nor the types nor the texts of what is read are trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detmode.process.files import parsed_json, read_file

MOST_BYTES_OF_JSON = 1 << 24


def read_json(path: Path) -> Any:
    """Return the JSON value in a file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not JSON, or larger than anything this package writes.
    """
    return parsed_json(read_file(path, MOST_BYTES_OF_JSON))
