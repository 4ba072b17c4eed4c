"""Compiles a source for the host runner, and calls what was compiled."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from detmode.cuda.source import CompileError, Source, cache_directory

__all__ = ["Library", "compile", "compiler", "sanitize_by_default", "sanitizer_environment"]

RUNTIME = Path(__file__).parent / "runtime.h"

# -ffp-contract=off: `a * b + c` rounds twice, so that the host's bits are those that the rounding
# intrinsics name. -fno-strict-aliasing: nvcc does not use the rule either.
FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
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
SANITIZE_FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g1",
)
_MESSAGE_BYTES = 2048


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


def sanitize_by_default() -> bool:
    """Whether `DETMODE_HOST_SANITIZE=1` is set."""
    return os.environ.get("DETMODE_HOST_SANITIZE", "0") not in ("", "0")


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
    """A compiled source. One launch at a time: its shared variables are static."""

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
        self._lock = threading.Lock()

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
        with self._lock:
            status: int = self._launch(*arguments, message, _MESSAGE_BYTES)
        return status, message.value.decode(errors="replace")


_loaded: dict[tuple[int, bool], tuple[Source, Library]] = {}
_compile_lock = threading.Lock()


def compile(source: Source, sanitize: bool = False) -> Library:
    """Compiles all entries of `source` for the host, or takes them from the cache, and loads them.

    The cache key is the content: source, includes, runner, compiler and flags. Files appear by
    renaming, so several processes may share the cache.

    Args:
        source: the `.cu` file.
        sanitize: build with `-fsanitize=address,undefined`, for a process that has libasan loaded
            from its start (see `sanitizer_environment`). A finding ends the process.

    Raises:
        CompileError: there is no C++ compiler, or it rejects the file (the message holds its log),
            or a sanitized build has no libasan.
    """
    key = (id(source), sanitize)
    known = _loaded.get(key)
    if known is not None:
        return known[1]
    with _compile_lock:
        known = _loaded.get(key)
        if known is None:
            known = (source, Library(_build(source, sanitize)))
            _loaded[key] = known
    return known[1]


def _require_compiler() -> str:
    path = compiler()
    if path is None:
        raise CompileError("the host runner needs a C++ compiler; install g++ or set CXX")
    return path


def _build(source: Source, sanitize: bool) -> Path:
    path = _require_compiler()
    if sanitize and not hasattr(ctypes.CDLL(None), "__asan_init"):
        # Loading the library would end the process.
        raise CompileError(
            "a sanitized build needs libasan in the process from its start; run Python in a "
            "subprocess with the variables of detmode.cuda.host.sanitizer_environment(), "
            "LD_PRELOAD among them"
        )
    flags = FLAGS + (SANITIZE_FLAGS if sanitize else ())
    text = translation_unit(source)
    sha = hashlib.sha256()
    for part in (text, RUNTIME.read_text(encoding="utf-8"), path, _compiler_version(path), *flags):
        sha.update(part.encode() + b"\0")
    directory = cache_directory("host")
    target = directory / f"{source.path.parent.name}-{source.path.stem}-{sha.hexdigest()[:32]}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as build:
        unit = Path(build) / "unit.cpp"
        unit.write_text(text, encoding="utf-8")
        made = Path(build) / "unit.so"
        run = subprocess.run(
            [path, *flags, f"-I{RUNTIME.parent}", "-o", str(made), str(unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise CompileError(
                f"{source.path} does not compile for the host runner\n{run.stderr.strip()}"
            )
        os.replace(made, target)
    return target
