"""Lines of files, or of a notebook's cells by the number that IPython gave them."""

from __future__ import annotations

import linecache
import os
import re
import sys
from functools import lru_cache

_NUMBER = re.compile(r"\[(\d+)\]")


def place_in(file: str, line: int | str) -> str:
    """Return "file:line", or "cell 3, line 2" where the file is what IPython made of a cell."""
    cell = _cell_of(file)
    return f"{file}:{line}" if cell is None else f"cell {cell}, line {line}"


def _cell_of(file: str) -> str | None:
    """Return the number of a cell; of one that was run again, the latest."""
    # A program that has not imported IPython has no cells.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # ("Cell", "In[3]"), as IPython itself shows it in a traceback.
    known = shell.compile.format_code_name(file) if shell is not None else None
    number = known and _NUMBER.search(known[1])
    return number[1] if number else None


@lru_cache(1 << 10)
def source_of(site: str) -> str:
    """Return the text of the line that a site names as "file:line"; empty where it is not known.

    Only regular files of Python are read: a report may come from elsewhere, with any name in it.
    """
    file, _, line = site.rpartition(":")
    if file.endswith(".py") and line.isdecimal() and len(line) < 8 and os.path.isfile(file):
        return linecache.getline(file, int(line)).strip()
    return ""
