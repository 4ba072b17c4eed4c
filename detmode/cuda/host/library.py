"""Compiles a source for the host runner, and calls what was compiled."""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from detmode.blocks import Lock
from detmode.cuda.source import CompileError, Source, cache_directory

__all__ = ["Build", "Library", "compile", "compiler", "default_build", "sanitizer_environment"]

HEADERS = tuple(Path(__file__).parent / name for name in ("runtime.h", "races.h"))

# -ffp-contract=off: `a * b + c` rounds twice, so that the host's bits are those that the rounding
# intrinsics name. -fno-strict-aliasing: nvcc does not use the rule either.
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
_MESSAGE_BYTES = 2048


class Build(enum.Enum):
    """What is compiled into a library beside the kernels."""

    PLAIN = "plain"
    SANITIZE = "sanitize"
    """AddressSanitizer and UndefinedBehaviorSanitizer; a finding ends the process."""
    RACES = "races"
    """Every access is compared with earlier ones: see races.h."""

    def compile_flags(self, version: str) -> tuple[str, ...]:
        """Flags for the compiler that says `version` of itself."""
        if self is Build.SANITIZE:
            return (*self.link_flags(), "-fno-omit-frame-pointer", "-g1")
        if self is Build.RACES:
            volatile = ("-mllvm", "-tsan-distinguish-volatile=1")
            if "clang" not in version:
                volatile = ("--param", "tsan-distinguish-volatile=1")
            return ("-fsanitize=thread", *volatile, "-DDETMODE_RACES=1", "-g1")
        return ()

    def link_flags(self) -> tuple[str, ...]:
        """Flags for the linker: races.h stands for the thread sanitizer's library."""
        if self is Build.SANITIZE:
            return (
                "-fsanitize=address,undefined",
                "-fno-sanitize=vptr",
                "-fno-sanitize-recover=undefined",
            )
        return ()


@functools.cache
def compiler() -> str | None:
    """The C++ compiler's path: `$CXX`, else g++, clang++ or c++; None where there is none."""
    chosen = os.environ.get("CXX", "").strip()
    names = ([shlex.split(chosen)[0]] if chosen else []) + ["g++", "clang++", "c++"]
    return next((path for path in map(shutil.which, names) if path is not None), None)


@functools.cache
def _compiler_version(path: str) -> str:
    return subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False
    ).stdout.splitlines()[0]


def default_build() -> Build:
    """What `DETMODE_HOST_SANITIZE=1` or `DETMODE_HOST_RACES=1` asks for, or `Build.PLAIN`."""
    for build in (Build.SANITIZE, Build.RACES):
        if os.environ.get(f"DETMODE_HOST_{build.name}", "0") not in ("", "0"):
            return build
    return Build.PLAIN


def sanitizer_environment() -> dict[str, str]:
    """Environment variables under which a new process runs sanitized builds.

    Raises:
        CompileError: there is no C++ compiler, or it has no libasan.
    """
    path = _require_compiler()
    # libstdc++ too: ASan wraps the throwing of exceptions, which it looks up when it starts.
    libraries = [_runtime_library(path, name) for name in ("libasan.so", "libstdc++.so.6")]
    return {
        "DETMODE_HOST_SANITIZE": "1",
        "LD_PRELOAD": " ".join(libraries),
        # Python itself leaks by design.
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def _runtime_library(path: str, name: str) -> str:
    library = subprocess.run(
        [path, f"-print-file-name={name}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not os.path.isabs(library):
        raise CompileError(f"{path} has no {name}; install the sanitizer runtime of g++")
    return library


def translation_unit(source: Source) -> str:
    """The C++ text for the host: the runner, the source, a table of its entries, one C function."""
    rows = []
    for entry in source.entries:
        trampoline = f"detmode_host::Trampoline<&{entry}>"
        rows.append(f'    {{"{entry}", &{trampoline}::call, {trampoline}::kinds.text}},')
    table = "\n".join(rows)
    return f"""#include "runtime.h"
namespace {{
{source.text}
#line 1 "entries"
const detmode_host::Entry detmode_entries[] = {{
{table}
}};
}}  // namespace
extern "C" __attribute__((visibility("default"))) const char* detmode_kinds(int entry) {{
  return detmode_entries[entry].kinds;
}}
extern "C" __attribute__((visibility("default"))) int detmode_launch(
    int entry, const unsigned* grid, const unsigned* block, long long shared,
    const detmode_host::Argument* arguments, int n_arguments, detmode_host::Buffer* buffers,
    const int* positions, int n_buffers, int shuffled, unsigned long long seed, char* message,
    int message_bytes) {{
  detmode_host::Launch launch = {{&detmode_entries[entry], grid, block, shared, arguments,
                                 n_arguments, buffers, positions, n_buffers, shuffled, seed,
                                 message, message_bytes}};
  return detmode_host::run(launch);
}}
"""


class Library:
    """A compiled source. One launch at a time: the runner's state is static."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path), mode=getattr(os, "RTLD_LOCAL", 0))
        self._library.detmode_kinds.restype = ctypes.c_char_p
        self._launch: Any = self._library.detmode_launch
        self._launch.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_longlong,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_ulonglong,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        self._kinds: dict[int, list[tuple[str, str]]] = {}
        self._lock = Lock()

    def kinds(self, position: int) -> list[tuple[str, str]]:
        """For each kernel parameter its kind ("p", "c", "b", "i", "d") and the pointee's code."""
        known = self._kinds.get(position)
        if known is None:
            text = self._library.detmode_kinds(position).decode()
            known = list(zip(text[::2], text[1::2], strict=True))
            self._kinds[position] = known
        return known

    def launch(self, *arguments: object) -> tuple[int, str]:
        """Runs one launch; returns the status of runtime.h and its message."""
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status: int = self._lock.run(self._launch, *arguments, message, _MESSAGE_BYTES)
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
        known = (place for place in places if not place.startswith(("runtime.h", "races.h", "?")))
        return next(known, match[0])

    return _PLACE.sub(line, message)


_loaded: dict[tuple[int, Build], tuple[Source, Library]] = {}
_compile_lock = Lock()


def compile(source: Source, build: Build = Build.PLAIN) -> Library:
    """Compiles all entries of `source` for the host, or takes them from the cache, and loads them.

    The cache key is the content: source, includes, runner, compiler and flags. Files appear by
    renaming, so several processes may share the cache.

    Args:
        source: the `.cu` file.
        build: `Build.SANITIZE` is for a process that has libasan loaded from its start (see
            `sanitizer_environment`).

    Raises:
        CompileError: there is no C++ compiler, or it rejects the file (the message holds its log),
            or a sanitized build has no libasan.
    """
    key = (id(source), build)
    known = _loaded.get(key)
    if known is not None:
        return known[1]
    return _compile_lock.run(_load, source, build)


def _load(source: Source, build: Build) -> Library:
    key = (id(source), build)
    known = _loaded.get(key)
    if known is None:
        known = _loaded[key] = (source, Library(_build(source, build)))
    return known[1]


def _require_compiler() -> str:
    path = compiler()
    if path is None:
        raise CompileError("the host runner needs a C++ compiler; install g++ or set CXX")
    return path


def _build(source: Source, build: Build) -> Path:
    path = _require_compiler()
    if build is Build.SANITIZE and not hasattr(ctypes.CDLL(None), "__asan_init"):
        # Loading the library would end the process.
        raise CompileError(
            "a sanitized build needs libasan in the process from its start; run Python in a "
            "subprocess with the variables of detmode.cuda.host.sanitizer_environment(), "
            "LD_PRELOAD among them"
        )
    version = _compiler_version(path)
    flags = (*FLAGS, *build.compile_flags(version), f"-I{HEADERS[0].parent}", "-c")
    text = translation_unit(source)
    sha = hashlib.sha256()
    for part in (text, *(header.read_text() for header in HEADERS), path, version, *flags):
        sha.update(part.encode() + b"\0")
    directory = cache_directory("host")
    target = directory / f"{source.path.parent.name}-{source.path.stem}-{sha.hexdigest()[:32]}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as temporary:
        unit, made = (Path(temporary) / f"unit.{suffix}" for suffix in ("cpp", "so"))
        unit.write_text(text, encoding="utf-8")
        compiled = str(unit.with_suffix(".o"))
        for command in (
            [path, *flags, "-o", compiled, str(unit)],
            [path, "-shared", *build.link_flags(), "-o", str(made), compiled],
        ):
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise CompileError(
                    f"{source.path} does not compile for the host runner\n{run.stderr.strip()}"
                )
        os.replace(made, target)
    return target
