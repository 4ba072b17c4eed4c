"""Every entry point of every `.cu` file compiles for every architecture, without a GPU."""

import importlib.util
import re
from pathlib import Path

import pytest

from detmode.cuda import rows
from detmode.cuda.source import Source, compile_for
from tests.shared import needs
from tests.shared.selection import PROFILE, families, todays_forms

PACKAGES = (rows, *families().values())
ARCHITECTURES = ("sm_90", "sm_75", "sm_80", "sm_100")[: PROFILE.architectures]


def sources() -> list[Source]:
    """The sources of all families and of what they share, found in their modules."""
    found = []
    for package in PACKAGES:
        for path in sorted(Path(package.__path__[0]).glob("*.py")):
            module = importlib.import_module(f"{package.__name__}.{path.stem}")
            found += [value for value in vars(module).values() if isinstance(value, Source)]
    return list({source.path: source for source in found}.values())


SOURCES = [
    pytest.param(name, source, id=f"{name}-{source.path.name}")
    for source in sources()
    for name in (source.path.parent.name,)
]
EVERY_SOURCE = pytest.mark.parametrize(("family", "source"), SOURCES)


@needs.nvrtc
@pytest.mark.parametrize(("family", "source"), todays_forms(SOURCES))
def test_every_kernel_compiles(family: str, source: Source) -> None:
    """NVRTC takes every kernel, by one name expression each, for the oldest architecture."""
    first = {entry.partition("<")[0]: entry for entry in reversed(source.entries)}
    assert compile_for(source, "compute_75", list(first.values()))


@pytest.mark.thorough
@needs.nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@EVERY_SOURCE
def test_every_entry_compiles(
    family: str, source: Source, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC takes every name expression of the source, finds its lowered name and warns of nothing.

    It warns of bounds that it does not keep: of more threads than a multiprocessor holds.
    """
    from cupy.cuda import nvrtc

    logs, destroy = list[str](), nvrtc.destroyProgram

    def destroyed(program: int) -> None:
        logs.append(nvrtc.getProgramLog(program).strip("\0\n"))
        destroy(program)

    monkeypatch.setattr(nvrtc, "destroyProgram", destroyed)
    assert compile_for(source, arch)
    assert logs == [""]


def test_every_file_belongs_to_a_source() -> None:
    """No `.cu` file is left out of the compile test."""
    known = {source.path.resolve() for source in sources()}
    files = {path for package in PACKAGES for path in Path(package.__path__[0]).glob("*.cu")}
    assert sorted(str(path) for path in files if path.resolve() not in known) == [], (
        "name these files in a detmode.cuda.Source of the module that launches them"
    )


@EVERY_SOURCE
def test_every_kernel_has_an_entry(family: str, source: Source) -> None:
    """A template that no name expression instantiates would not be compiled at all."""
    entered = {re.match(r"\w+", entry)[0] for entry in source.entries}
    left_out = sorted(source.kernels.keys() - entered)
    assert left_out == [], f"add their name expressions to {source!r}"
