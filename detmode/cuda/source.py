"""A `.cu` file with its includes, as one text.

The text is what both compilers see, NVRTC for a GPU and g++ for the host runner, and what both
caches are keyed by: with the includes expanded, a changed header recompiles.
"""

from __future__ import annotations

import functools
import re
import struct
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from detmode.cuda.dtypes import COMPLEX, CTYPES, FLOATING, INTEGRAL, OPMATH, REDUCED
from detmode.cuda.signature import KernelSignature, Parameter, kernels_of

INCLUDE_DIRECTORY = Path(__file__).parent / "include"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?P<name>"[^"]+"|<[^>]+>)')
_TYPE = re.compile(rf"\b(?:{'|'.join(CTYPES.values())})(?!\w)")
_INTEGERS = frozenset(CTYPES[dtype] for dtype in INTEGRAL)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b")

# Denormals stay, and division and square root round correctly, as in ATen's CUDA kernels: these are
# NVRTC's defaults, which CuPy's own compilation (RawModule(code=...)) overrides with -ftz=true.
# By default NVRTC fuses `a * b + c` where it likes; here it rounds twice, as on the host.
NVRTC_OPTIONS = (
    "--std=c++17",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--fmad=false",
)


class CompileError(RuntimeError):
    """A `.cu` file does not compile; the message holds the compiler's log."""


class Source:
    """The CUDA C++ file `name` beside the Python file `anchor`, and its entry points.

    Constructing one is free: reading and compiling wait for the first launch.

    Args:
        anchor: `__file__` of the module that launches the entries.
        name: the file's name, in the folder of `anchor`.
        entries: every NVRTC name expression of the file, such as `"scale<float>"` or
            `"gather<half, int64_t>"`. A template that no entry names is never compiled.

    Raises:
        TypeError: `entries` is not a sequence of str.
        ValueError: an entry is listed twice, or there is none.
    """

    # On the host, other people's sources need more: see detmode/cuda/host/foreign.py.
    prelude = ""
    """The text before the host runner."""
    postlude = ""
    """The text between the host runner and the source."""
    exported: tuple[str, ...] = ()
    """The variables that a launch on the host starts anew."""

    def __init__(self, anchor: str, name: str, entries: Sequence[str]) -> None:
        if isinstance(entries, str) or not all(isinstance(entry, str) for entry in entries):
            raise TypeError("Source(): argument 'entries' must be a sequence of str")
        repeated = sorted({entry for entry in entries if list(entries).count(entry) > 1})
        if repeated:
            raise ValueError(f"Source(): entries of {name} listed twice: {', '.join(repeated)}")
        if not entries:
            raise ValueError(f"Source(): {name} has no entries; list its name expressions")
        self.path = Path(anchor).parent / name
        self.entries: tuple[str, ...] = tuple(entries)
        self.positions: dict[str, int] = {entry: i for i, entry in enumerate(self.entries)}
        self.signatures: dict[str, KernelSignature] = {}

    def __repr__(self) -> str:
        return f"Source({str(self.path)!r}, {len(self.entries)} entries)"

    @property
    def name(self) -> str:
        """The file and its folder, such as `"rows/sort.cu"`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @functools.cached_property
    def text(self) -> str:
        """The file with its includes expanded, each at most once, and the sizes of what it takes.

        Both compilers refuse a struct of another size than a launch packs.
        """
        text = expand(self.path)
        parameters = chain.from_iterable(kernels_of(text).values())
        sizes = {item.kind: 8 * len(item.members) for item in parameters if item.members}
        asserted = (
            f'static_assert(sizeof({name}) == {size}, "{name} has hidden members or padding");\n'
            for name, size in sorted(sizes.items())
        )
        return text + "".join(asserted)

    @functools.cached_property
    def _of_types(self) -> dict[frozenset[str], tuple[str, ...]]:
        types: dict[frozenset[str], tuple[str, ...]] = {}
        for entry in self.entries:
            key = _compiled_with(entry)
            types[key] = (*types.get(key, ()), entry)
        return types

    def together(self, entry: str) -> tuple[str, ...]:
        """The entries that the host runner compiles with `entry`: those of the same types.

        A program computes in one or two dtypes, and a compiler takes as long for each. Integers of
        all widths are compiled together: for all it takes about as long as for two.
        """
        return self._of_types[_compiled_with(entry)]

    @functools.cached_property
    def kernels(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters of each `__global__` function of the text."""
        return kernels_of(self.text)

    def signature(self, entry: str) -> KernelSignature:
        """The parameters of `entry`, read from the text once.

        Raises:
            ValueError: `entry` is unknown, the text does not declare its kernel, or a parameter is
                of a type that no launch passes.
        """
        known = self.signatures.get(entry)
        if known is None:
            self.position(entry)
            kernel = entry.partition("<")[0]
            where = f"{self.path.name}: {entry}"
            if kernel not in self.kernels:
                raise ValueError(f"{where}: the file declares no __global__ function {kernel!r}")
            known = self.signatures[entry] = KernelSignature(where, self.kernels[kernel])
        return known

    def entries_for(self, dtype: torch.dtype) -> tuple[str, ...]:
        """The entries that a launch with a result of `dtype` may choose, whatever its sizes.

        Of a kernel with an entry for float32, those that name the dtype, or, where none does, the
        type that it is computed in. Other kernels go by an index, or by words of bits.
        """
        kernels: dict[str, dict[str, set[str]]] = {}
        for entry in self.entries:
            kernels.setdefault(entry.partition("<")[0], {})[entry] = _types(entry)
        chosen: list[str] = []
        for types in kernels.values():
            named = set().union(*types.values())
            wanted = CTYPES[dtype]
            if wanted not in named and dtype in OPMATH:
                wanted = CTYPES[OPMATH[dtype]]
            chosen += [entry for entry in types if "float" not in named or wanted in types[entry]]
        return tuple(chosen)

    def position(self, entry: str) -> int:
        """The place of `entry` in `entries`.

        Raises:
            ValueError: `entry` is not one of them.
        """
        try:
            return self.positions[entry]
        except KeyError:
            known = ", ".join(self.entries[:8]) + (", ..." if len(self.entries) > 8 else "")
            raise ValueError(
                f"{self.path.name} has no entry {entry!r}; add it to the entries of its Source "
                f"({known})"
            ) from None


def _types(entry: str) -> set[str]:
    """The types of the dtype that an entry is for.

    A type beside a reduced one is that of sums, and an integer beside a float that of positions.
    """
    named = set(_TYPE.findall(entry))
    for group in (REDUCED, FLOATING + COMPLEX, INTEGRAL):
        types = named & {CTYPES[dtype] for dtype in group}
        if types:
            return types
    return set()


def _compiled_with(entry: str) -> frozenset[str]:
    """The types of an entry; for one of integers those of all integers."""
    types = frozenset(_types(entry))
    return _INTEGERS if types and types <= _INTEGERS else types


def sources_of(function: Callable[..., Any]) -> tuple[Source, ...]:
    """The sources that a function may launch: those in its module, and in modules that it imports.

    Only modules of the function's own package and of this one are searched.
    """
    while isinstance(function, functools.partial):
        function = function.func
    packages = {name.partition(".")[0] for name in (function.__module__, __name__)}
    sources: dict[Source, None] = {}
    modules = [function.__module__]
    for module in modules:
        for value in vars(sys.modules[module]).values():
            if isinstance(value, Source):
                sources[value] = None
            name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", "")
            if name in sys.modules and name not in modules and name.partition(".")[0] in packages:
                modules.append(name)
    return tuple(sources)


def expand(path: Path) -> str:
    """The text of `path` with each `#include "..."` expanded once, by `#line` still in its file.

    An included file is looked for beside the including file, then in `detmode/cuda/include`.

    Raises:
        CompileError: an included file is missing, or the name is in angle brackets.
    """
    lines: list[str] = []
    _expand(path, set(), lines)
    return "\n".join(lines) + "\n"


def _expand(path: Path, seen: set[Path], lines: list[str]) -> None:
    seen.add(path.resolve())
    lines.append(f'#line 1 "{path.name}"')
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if _PRAGMA_ONCE.match(line):
            lines.append("")
            continue
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(line)
            continue
        quoted = include["name"]
        if quoted.startswith("<"):
            raise CompileError(
                f"{path}:{number}: {quoted} is a system header, which NVRTC does not have; "
                "include a file of detmode/cuda/include instead"
            )
        name = quoted.strip('"')
        candidates = (path.parent / name, INCLUDE_DIRECTORY / name)
        file = next((c for c in candidates if c.is_file()), None)
        if file is None:
            raise CompileError(f'{path}:{number}: included file "{name}" not found')
        if file.resolve() in seen:
            lines.append("")
            continue
        _expand(file, seen, lines)
        lines.append(f'#line {number + 1} "{path.name}"')


def compile_for(source: Source, arch: str, entries: Sequence[str] | None = None) -> bytes:
    """Compiles entries of `source` with NVRTC for one GPU architecture. Needs no GPU, no driver.

    Args:
        source: the `.cu` file.
        arch: `"sm_90"` for machine code (CUBIN), `"compute_90"` for PTX.
        entries: the name expressions to instantiate; default all of `source.entries`.

    Returns:
        The CUBIN or PTX.

    Raises:
        CompileError: NVRTC rejects the file; the message holds NVRTC's log.
        ImportError: CuPy is not installed.
        ValueError: `arch` has another form, or an entry is unknown.
    """
    return compile_entries(source, arch, source.entries if entries is None else entries)[0]


def compile_entries(
    source: Source, arch: str, entries: Sequence[str]
) -> tuple[bytes, dict[str, str]]:
    """Compile like `compile_for`, and also return each entry's name in the machine code."""
    from cupy.cuda import nvrtc

    if not re.fullmatch(r"(sm|compute)_\d+[a-z]?", arch):
        raise ValueError(f"arch must be like 'sm_90' or 'compute_90', but got {arch!r}")
    for entry in entries:
        source.position(entry)
    program = nvrtc.createProgram(source.text, source.path.name, (), ())
    try:
        for entry in entries:
            nvrtc.addNameExpression(program, entry)
        try:
            nvrtc.compileProgram(program, (*NVRTC_OPTIONS, f"--gpu-architecture={arch}"))
            lowered = {entry: str(nvrtc.getLoweredName(program, entry)) for entry in entries}
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise CompileError(
                f"{source.path} does not compile for {arch}: {error}\n{log}"
            ) from None
        code = nvrtc.getCUBIN(program) if arch.startswith("sm_") else nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    code = code if isinstance(code, bytes) else str(code).encode()
    return (_whole_elf(code) if arch.startswith("sm_") else code), lowered


def _whole_elf(code: bytes) -> bytes:
    """Return the CUBIN with its missing last byte.

    CuPy takes a CUBIN for a string and cuts its last byte off. It is the highest one of the
    alignment in the last program header, so zero; tools that check the headers refuse the file.
    """
    programs, sections = struct.unpack_from("<2Q", code, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<4H", code, 54)
    end = max(programs + program_size * program_count, sections + section_size * section_count)
    return code + bytes(max(end - len(code), 0))
