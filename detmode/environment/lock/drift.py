"""The differences of two locks, each with its remedy."""

from __future__ import annotations

from typing import NamedTuple

from detmode.environment.known import Choice, how_to_set
from detmode.environment.lock.lock_file import Sections
from detmode.process.interface import COMMAND
from detmode.process.text import in_a_line

_ABSENT = {
    "variables": "not set",
    "generators": "not seeded",
    "settings_at_end": "as at the start",
}
"""The sections in which a choice that is missing is one too. In others it is not known."""

_INSTALL = "pip install {name}=={value}"
_PYTORCH = "install the PyTorch that brings {name} {value}"
_VERSIONS = {
    "cublas": _PYTORCH,
    "cuda": _PYTORCH,
    "cudnn": _PYTORCH,
    "cupy": "install CuPy {value}",
    "nccl": _PYTORCH,
    "python": "use Python {value}",
}
_REMEDIES = {
    "cpu": "export ATEN_CPU_CAPABILITY={value}, on a CPU that has it",
    "driver": "install the driver {value}",
    "gpus": "run on the GPUs {value}",
    "rules": "use the same detmode and the same packages with rules",
    "mode": "run with the same options: {value}",
    "ranks": "start {value} ranks",
}
_OF_SECTION = {
    "versions": "version of {}",
    "generators": "seed of {}",
    "settings_at_end": "{} at the end of the program",
    "triton": "Triton's configuration of {}",
    "inductor": "Inductor's choice for {}",
}
"""The titles of a section's choices; those of other sections are names, or titles of their own."""
_TITLES = {
    "cpu": "CPU instructions",
    "gpus": "GPUs",
    "rules": "rule table",
    "ranks": "number of ranks",
    "mode": "options of the mode",
}


class Drift(NamedTuple):
    """A choice that is not as a lock has it.

    Attributes:
        name: of the choice.
        locked: the lock's value.
        here: the value here.
        remedy: the action that brings the lock's value back.
    """

    name: str
    locked: str
    here: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: locked {self.locked}, here {self.here}; {self.remedy}"


class DriftError(RuntimeError):
    """A program makes a choice that is not the one in its lock."""


def differences(locked: Sections, here: Sections) -> tuple[Drift, ...]:
    """Return the differences of an environment from a lock: missing sections, other choices.

    A lock without a section would allow any choice in it.
    """
    return (*_unlocked(locked, here), *drifts(locked, here))


def _unlocked(locked: Sections, here: Sections) -> tuple[Drift, ...]:
    """Return the sections of an environment that a lock lacks, or in which it has nothing."""
    remedy = "write the lock again, by 'detmode lock' or 'detmode run --write-lock'"
    return tuple(
        Drift(f"section [{name}]", "nothing", f"{len(choices)} choices", remedy)
        for name, choices in sorted(here.items())
        if name not in locked or (choices and name not in _ABSENT and not locked[name])
    )


def drifts(locked: Sections, here: Sections) -> tuple[Drift, ...]:
    """Return the choices of the sections that both have, and that differ."""
    differing: list[Drift] = []
    for section in sorted(locked.keys() & here.keys()):
        mine, theirs = here[section], locked[section]
        names = theirs.keys() | mine.keys() if section in _ABSENT else theirs.keys() & mine.keys()
        for name in sorted(names):
            if theirs.get(name) != mine.get(name):
                differing.append(drift(section, name, theirs.get(name), mine.get(name)))
    return tuple(differing)


def drift(section: str, name: str, locked: Choice | None, here: Choice | None) -> Drift:
    """Return the difference of a choice; ``None`` stands for a value that is not there."""
    absent = _ABSENT.get(section, "not in it")
    if (section, name) == ("run", "mode"):
        locked, here = (COMMAND.options_of(str(value)) for value in (locked, here))
    first, second = (absent if value is None else _text(value) for value in (locked, here))
    title = _OF_SECTION[section].format(name) if section in _OF_SECTION else _TITLES.get(name, name)
    return Drift(*map(in_a_line, (title, first, second, _remedy(section, name, locked))))


def _text(value: Choice) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value)


def _remedy(section: str, name: str, locked: Choice | None) -> str:
    if section == "variables":
        if locked is None:
            return f"unset {name}"
        return f"export {name}={locked} before Python starts"
    if section in ("settings", "compiler_options"):
        return how_to_set(name, locked) if locked is not None else f"leave {name} alone"
    if section == "settings_at_end":
        if locked is None:
            return "have the program leave it alone"
        return f"in the program: {how_to_set(name, locked)}"
    if section == "generators":
        return "seed it as in the locked run, by the same call" if locked else "do not seed it"
    if section == "triton":
        return "the kernel or its configurations are others: write the lock again"
    if section == "inductor":
        return "compile with the caches of the locked run, or write the lock again"
    value = "none" if locked is None else _text(locked)
    if section == "versions":
        if value == "none":
            return f"use an environment without {name}"
        return _VERSIONS.get(name, _INSTALL).format(name=name, value=value)
    return _REMEDIES.get(name, "write the lock again").format(value=value)
