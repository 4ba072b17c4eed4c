"""A baseline: the calls of a test suite that are known to vary, so that only new ones fail.

The file is JSON, sorted, one offender per line::

    {"format": "detmode-baseline", "version": 1, "offenders": [
    {"overload": "aten::histc.default", "file": "src/model.py", "code": "h = torch.histc(x)"}
    ]}

An offender is identified by its operator, its file and the text of its line. The line's number does
not count, so that edits above it do not matter.
"""

from __future__ import annotations

import json
import linecache
import reprlib
from collections.abc import Iterable
from pathlib import Path, PurePath

from detmode.process.files import FileError, parsed_json, read_file, replace_file
from detmode.table.call_site import installed_part

FORMAT = "detmode-baseline"
VERSION = 1
_MOST_BYTES = 1 << 26

Key = tuple[str, str, str]
"""Overload, file and the text of the line."""


def key_of(overload: str, site: str, root: Path) -> Key:
    """Return the key that identifies an offender.

    Args:
        overload: ``"aten::histc.default"``.
        site: "file:line", or whatever is known instead.
        root: the folder that file names are relative to; installed files are relative to their
            ``site-packages``.
    """
    file, _, line = site.rpartition(":")
    if not file or not line.isdigit():
        return overload, site, ""
    linecache.checkcache(file)
    return overload, _portable(file, root), linecache.getline(file, int(line)).strip()


def _portable(file: str, root: Path) -> str:
    path = PurePath(installed_part(file) or file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def read(path: Path) -> frozenset[Key]:
    """Return the offenders of a baseline file.

    Raises:
        FileError: there is no such file, or it is not a baseline.
    """
    try:
        data = parsed_json(read_file(path, _MOST_BYTES))
    except OSError as error:
        raise FileError(
            f"cannot read the baseline {path}: {error.strerror}; "
            "write it with --detmode-update-baseline"
        ) from error
    except ValueError as error:
        raise FileError(f"the baseline {path} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileError(f"{path} is not a baseline of detmode")
    if data.get("version") != VERSION:
        version = reprlib.repr(data.get("version"))
        raise FileError(
            f"the baseline {path} has version {version}, and this detmode reads "
            f"{VERSION}: write it again with --detmode-update-baseline"
        )
    try:
        return frozenset(_key(**fields) for fields in data["offenders"])
    except (TypeError, KeyError) as error:
        raise FileError(
            f"the baseline {path} has an offender without overload, file and code, which are "
            "texts: write it again with --detmode-update-baseline"
        ) from error


def _key(*, overload: str, file: str, code: str) -> Key:
    key = overload, file, code
    if not all(isinstance(part, str) for part in key):
        raise TypeError
    return key


def write(path: Path, offenders: Iterable[Key]) -> None:
    """Write a baseline file atomically: a concurrent reader sees the old file or the new one.

    Raises:
        FileError: it cannot be written.
    """
    lines = [
        json.dumps(dict(zip(("overload", "file", "code"), key)), ensure_ascii=False)
        for key in sorted(set(offenders))
    ]
    head = f'{{"format": "{FORMAT}", "version": {VERSION}, "offenders": ['
    text = "\n".join([head, *([",\n".join(lines)] if lines else []), "]}\n"])
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise FileError(f"cannot write the baseline {path}: {error.strerror}") from error
