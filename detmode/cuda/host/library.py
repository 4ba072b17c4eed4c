"""Compiles a source for the host runner, and calls what was compiled."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from detmode.cuda.cache import CachedFile, take
from detmode.cuda.host.toolchain import Compiler, require_compiler
from detmode.cuda.source import INCLUDE_DIRECTORY, CompileError, Source
from detmode.process.files import temporary_folder
from detmode.process.undo import Lock

HEADERS = tuple(sorted(Path(__file__).parent.rglob("*.h")))
_RUNNER = tuple(header.name for header in HEADERS)
_CONVERSIONS = tuple(INCLUDE_DIRECTORY / name for name in ("dtype.cuh", "types.cuh"))

# -ffp-contract=off: `a * b + c` rounds twice, so that the host's bits match the rounding
# intrinsics. -fno-strict-aliasing: nvcc does not use the rule either.
FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    # Distributions that turn these on would reject a change of stacks.
    "-U_FORTIFY_SOURCE",
    *(("-fcf-protection=none",) if platform.machine() in ("x86_64", "AMD64") else ()),
)
_SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr",
    "-fno-sanitize-recover=undefined",
)
_MESSAGE_BYTES = 2048


Build: TypeAlias = Literal["plain", "sanitize", "races"]
"""The instrumentation that is compiled into a library: none; AddressSanitizer and
UndefinedBehaviorSanitizer, where a finding ends the process; or every access is compared with
earlier ones (see races.h)."""


def _flags_of(build: Build, is_clang: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the flags of a build for the compiler, and for the linker."""
    if build == "plain":
        return (), ()
    if build == "sanitize":
        return (*_SANITIZERS, "-fno-omit-frame-pointer", "-g1"), _SANITIZERS
    volatile = ("--param", "tsan-distinguish-volatile=1")
    if is_clang:
        volatile = ("-mllvm", "-tsan-distinguish-volatile=1")
    # races.h stands for the thread sanitizer's library. Most time goes to the comparing, so that
    # compiling for less pays.
    return ("-fsanitize=thread", *volatile, "-DDETMODE_RACES=1", "-g1", "-Og"), ()


def default_build() -> Build:
    """Return the build that `DETMODE_HOST_SANITIZE=1` or `DETMODE_HOST_RACES=1` selects."""
    builds: tuple[Build, ...] = ("sanitize", "races")
    for build in builds:
        if os.environ.get(f"DETMODE_HOST_{build.upper()}", "0") not in ("", "0"):
            return build
    return "plain"


def _translation_unit(source: Source, entries: Sequence[str]) -> str:
    """The C++ text for the host: the runner, the source, a table of entries, one C function."""
    rows = []
    for entry in entries:
        of = f"detmode_host::Trampoline<&{entry}>"
        rows.append(f'    {{"{entry}", &{of}::call, {of}::kinds.text, {of}::sizes}},')
    table = "\n".join(rows)
    variables = "".join(
        f'    {{"{name}", const_cast<void*>(static_cast<const volatile void*>(&{name})), '
        f"sizeof({name})}},\n"
        for name in source.exported
    )
    return f"""{source.prelude}#include "runtime.h"
{source.postlude}namespace {{
{source.text}
#line 1 "entries"
const detmode_host::Entry detmode_entries[] = {{
{table}
}};
const detmode_host::Variable detmode_variables[] = {{
{variables}    {{nullptr, nullptr, 0}}
}};
}}  // namespace
extern "C" __attribute__((visibility("default"))) int detmode_size(int entry, int parameter) {{
  return detmode_entries[entry].sizes[parameter];
}}
extern "C" __attribute__((visibility("default"))) long long detmode_variable(int i, void** at) {{
  *at = detmode_variables[i].address;
  return detmode_variables[i].bytes;
}}
extern "C" __attribute__((visibility("default"))) const char* detmode_kinds(int entry) {{
  return detmode_entries[entry].kinds;
}}
extern "C" __attribute__((visibility("default"))) int detmode_launch(
    int entry, const unsigned* grid, const unsigned* block, long long shared,
    const detmode_host::Argument* arguments, int n_arguments, detmode_host::Buffer* buffers,
    const int* positions, int n_buffers, int shuffled, unsigned long long seed,
    detmode_host::Watch* watch, detmode_host::Stacks* stacks, char* message, int message_bytes) {{
  detmode_host::Launch launch = {{&detmode_entries[entry], grid, block, shared, arguments,
                                 n_arguments, buffers, positions, n_buffers, shuffled, seed,
                                 detmode_variables, {len(source.exported)}, watch, stacks,
                                 message, message_bytes}};
  return detmode_host::run(launch);
}}
"""


class _Stacks(ctypes.Structure):
    """Those of CUDA threads, as in state.h."""

    _fields_ = [("n", ctypes.c_int), ("at", ctypes.c_void_p * 8192)]


_free_stacks: dict[Build, list[_Stacks]] = {build: [] for build in get_args(Build)}
"""Of each launch that ended, for the next one: of any library, whose address space is one."""


class Library:
    """Compiled entries of a source. One launch at a time: the runner's state is static."""

    def __init__(self, file: CachedFile, build: Build) -> None:
        self._kept = file  # its path leads there while this lives
        self._free_stacks = _free_stacks[build]
        self.path = file.path
        self.is_new = file.is_new
        try:
            self._library = ctypes.CDLL(file.loaded_from, mode=getattr(os, "RTLD_LOCAL", 0))
        except OSError as error:
            raise CompileError(
                f"{file.path} cannot be loaded ({error}); where its file system forbids to run "
                "files, set DETMODE_CACHE to a folder on another one"
            ) from None
        self._library.detmode_kinds.restype = ctypes.c_char_p
        self._launch: Any = self._library.detmode_launch
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._launch.argtypes = [
            *(number, pointer, pointer, ctypes.c_longlong, pointer, number, pointer, pointer),
            *(number, number, ctypes.c_ulonglong, pointer, ctypes.POINTER(_Stacks)),
            *(ctypes.c_char_p, number),
        ]
        self._library.detmode_variable.restype = ctypes.c_longlong
        self._kinds: dict[int, list[tuple[str, str]]] = {}
        self._lock = Lock()

    def kinds(self, position: int) -> list[tuple[str, str]]:
        """For each kernel parameter its kind, one of "pcbids", and the code of its pointee."""
        known = self._kinds.get(position)
        if known is None:
            text = self._library.detmode_kinds(position).decode()
            known = list(zip(text[::2], text[1::2], strict=True))
            self._kinds[position] = known
        return known

    def sizes(self, position: int, parameters: int) -> list[int]:
        """The bytes of each kernel parameter."""
        return [self._library.detmode_size(position, i) for i in range(parameters)]

    def variable(self, number: int) -> memoryview:
        """The memory of one of the source's `exported` variables."""
        address = ctypes.c_void_p()
        size = self._library.detmode_variable(number, ctypes.byref(address))
        return memoryview((ctypes.c_ubyte * size).from_address(address.value or 0)).cast("B")

    def line_of(self, place: int) -> str | None:
        """The source's ``"file:line"`` of a place in the library; None without addr2line."""
        line = _with_lines(f"+{place:#x}", self.path)
        return None if line.startswith("+") else line

    def launch(self, *arguments: object) -> tuple[int, str]:
        """Runs one launch; returns the status of state.h and its message."""
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        try:
            stacks = self._free_stacks.pop()
        except IndexError:  # each is in use, by launches of other OS threads
            stacks = _Stacks()
        status: int = self._lock.run(self._launch, *arguments, stacks, message, _MESSAGE_BYTES)
        self._free_stacks.append(stacks)
        return status, _with_lines(message.value.decode(errors="replace"), self.path)


_PLACE = re.compile(r"\+0x([0-9a-f]+)")


def _with_lines(message: str, library: Path) -> str:
    """`message` with file and line for each offset into the library, where addr2line is there."""
    tool = shutil.which("addr2line")
    if tool is None:
        return message

    def line(match: re.Match[str]) -> str:
        frames = subprocess.run(
            [tool, "-i", "-e", str(library), match[1]], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        # Innermost first; what the runner stands for has its caller's line.
        places = [frame.partition(" ")[0].rpartition("/")[2] for frame in frames]
        known = (place for place in places if not place.startswith((*_RUNNER, "?")))
        return next(known, match[0])

    return _PLACE.sub(line, message)


_loaded: dict[tuple[int, Build, tuple[str, ...]], tuple[Source, Library]] = {}
_compile_lock = Lock()


def compile(
    source: Source, build: Build = "plain", entries: tuple[str, ...] | None = None
) -> Library:
    """Compiles entries of `source` for the host, or takes them from the cache, and loads them.

    The cache key is the content: source, includes, runner, compiler and flags. Files appear by
    renaming, so several processes may share the cache.

    Args:
        source: the `.cu` file.
        build: `"sanitize"` is for a process that has libasan loaded from its start (see
            `sanitizer_environment`).
        entries: those that `Source.together` names for one of them; default all.

    Raises:
        CompileError: there is no C++ compiler, or it rejects the file (the message holds its log),
            or a sanitized build has no libasan.
    """
    entries = source.entries if entries is None else entries
    known = _loaded.get((id(source), build, entries))
    if known is not None:
        return known[1]
    return _compile_lock.run(_load, source, build, entries)


def load(source: Source, entries: tuple[str, ...]) -> bool:
    """Load entries as the first launch of one of them would; true if that compiled them.

    Raises:
        CompileError: as `compile`.
    """
    build = default_build()
    return (id(source), build, entries) not in _loaded and compile(source, build, entries).is_new


def _load(source: Source, build: Build, entries: tuple[str, ...]) -> Library:
    key = (id(source), build, entries)
    known = _loaded.get(key)
    if known is None:
        known = _loaded[key] = (source, Library(_build(source, build, entries), build))
    return known[1]


def _build(source: Source, build: Build, entries: Sequence[str]) -> CachedFile:
    compiler = require_compiler()
    if build == "sanitize" and not hasattr(ctypes.CDLL(None), "__asan_init"):
        # Loading the library would end the process.
        raise CompileError(
            "a sanitized build needs libasan in the process from its start; run Python in a "
            "subprocess with the variables of detmode.cuda.host.sanitizer_environment(), "
            "LD_PRELOAD among them"
        )
    folder = Path(__file__).parent
    paths = [f"-I{directory}" for directory in (folder, folder / "cuda_headers", INCLUDE_DIRECTORY)]
    of_build, link_flags = _flags_of(build, compiler.is_clang)
    flags = (*FLAGS, *of_build, *paths, "-c")
    text = _translation_unit(source, entries)
    headers = [header.read_text(encoding="utf-8") for header in (*HEADERS, *_CONVERSIONS)]
    sha = hashlib.sha256()
    for part in (text, *headers, *compiler.command, compiler.macros, *flags):
        sha.update(part.encode() + b"\0")

    def make() -> tuple[bytes, str]:
        return _compiled(compiler, source.path, text, flags, link_flags), ""

    name = f"{source.path.parent.name}-{source.path.stem}-{sha.hexdigest()[:32]}.so"
    return take("host", name, make)


def _compiled(
    compiler: Compiler, path: Path, text: str, flags: Sequence[str], link_flags: Sequence[str]
) -> bytes:
    try:
        with temporary_folder() as folder:
            unit, compiled, shared_object = (
                folder / f"unit.{suffix}" for suffix in ("cpp", "o", "so")
            )
            unit.write_text(text, encoding="utf-8")
            for arguments in (
                [*flags, "-o", str(compiled), str(unit)],
                ["-shared", *link_flags, "-o", str(shared_object), str(compiled)],
            ):
                run = compiler.run(arguments)
                if run.returncode != 0:
                    log = run.stderr.strip() or f"{compiler} ended with {run.returncode}"
                    raise CompileError(f"{path} does not compile for the host runner\n{log}")
            return shared_object.read_bytes()
    except OSError as error:
        raise CompileError(f"{path} cannot be compiled for the host runner: {error}") from None
