"""The source text of a line of code, as its file has it now."""

from __future__ import annotations

import linecache
import os
from functools import lru_cache


@lru_cache(1 << 10)
def source_of(site: str) -> str:
    """Return the text of the line that a site names as "file:line"; empty where it is not known.

    Only regular files of Python are read: a report may come from elsewhere, with any name in it.
    """
    file, _, line = site.rpartition(":")
    if file.endswith(".py") and line.isdecimal() and len(line) < 8 and os.path.isfile(file):
        return linecache.getline(file, int(line)).strip()
    return ""
