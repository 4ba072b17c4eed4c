"""The places of lines: of a file, or of a notebook's cell, by the number that IPython gave it."""

from __future__ import annotations

import re
import sys

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
