"""Defaults of options: the table ``[tool.detmode]`` of a project's ``pyproject.toml``."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from detmode.process.checked import checked
from detmode.process.files import FileError, parsed_toml, read_file
from detmode.process.spelling import did_you_mean

OPTIONS = {
    "warn-only": bool,
    "strict": bool,
    "no-substitute": bool,
    "override": list[str],
    "intercept": str,
    "simulate": str,
    "recheck": float,
}
"""The options of ``detmode run`` that may stand there, and the types of their values."""
_CONTRARY = {"--strict": "--warn-only", "--warn-only": "--strict"}
_NAME = "pyproject.toml"
_MOST = 1 << 24


def defaults_for(folder: Path) -> dict[str, Any]:
    """Return the options that the project around a folder has chosen, by name; empty without one.

    Raises:
        FileError: the file is no TOML, or an option is unknown or has a wrong value.
    """
    for place in (folder, *folder.parents):
        if (file := place / _NAME).is_file():
            return _checked(file, _table(file))
    return {}


def as_words(project: Mapping[str, Any], known: Container[str], typed: Container[str]) -> list[str]:
    """Return a project's options that a command knows as they are typed; those typed there win."""
    words: list[str] = []
    for name, value in project.items():
        option = f"--{name}"
        if option in known and _CONTRARY.get(option) not in typed:
            values = value if isinstance(value, list) else [value]
            words += [option if v is True else f"{option}={v}" for v in values if v is not False]
    return words


def _table(file: Path) -> Any:
    try:
        content = read_file(file, _MOST).decode()
    except (OSError, ValueError):
        return {}  # nothing is asked for
    if "tool.detmode" not in content:
        return {}
    try:
        return parsed_toml(content).get("tool", {}).get("detmode", {})
    except ValueError as error:
        raise FileError(f"{file} is no TOML: {error}") from error


def _checked(file: Path, table: Any) -> dict[str, Any]:
    for name, value in dict(table).items():
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS) or f"; there are {', '.join(OPTIONS)}"
            raise FileError(f"{file}: [tool.detmode] has no option {name!r}{hint}")
        try:
            checked(OPTIONS[name], value)
        except TypeError as error:
            raise FileError(f"{file}: [tool.detmode] {name}: {error}") from error
    return dict(table)
