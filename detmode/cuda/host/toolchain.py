"""The C++ compiler of this machine, which builds for the host runner."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from detmode.cuda.source import CompileError

_PATIENCE = 600
"""The seconds that a compiler may take."""
_FIRST_PATIENCE = 60
"""The seconds within which it must identify itself."""
_INTERVAL = 0.1
"""The seconds between two questions whether it is wanted."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that has been run successfully.

    Args:
        command: the command; ``$CXX`` may have arguments, or a launcher such as ccache.
        macros: its predefined macros: version, architecture, and effects of its arguments.
    """

    command: tuple[str, ...]
    macros: str

    @property
    def is_clang(self) -> bool:
        """True if it takes clang's flags."""
        return "#define __clang__ " in self.macros

    def run(
        self,
        arguments: Sequence[str],
        timeout: float = _PATIENCE,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> subprocess.CompletedProcess[str]:
        """Start it with more arguments, and wait for its end.

        An interrupt from the terminal reaches only this process, which may be to go on.

        Args:
            arguments: follow those of the command.
            timeout: the seconds that it may take.
            is_unwanted: asked now and then; once true, the compiler is ended.

        Raises:
            CompileError: it cannot be started, does not end, or is unwanted.
        """
        command = [*self.command, *arguments]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,
            )
        except OSError as error:
            raise CompileError(f"{self} cannot be started: {error.strerror}") from None
        deadline = time.monotonic() + timeout
        with process:
            try:
                while time.monotonic() < deadline and not is_unwanted():
                    with suppress(subprocess.TimeoutExpired):
                        output = process.communicate(timeout=_INTERVAL)
                        return subprocess.CompletedProcess(command, process.returncode, *output)
            finally:
                if process.returncode is None:
                    _end(process)
        raise CompileError(f"{self} did not end in {timeout} seconds")

    def __str__(self) -> str:
        return f"the C++ compiler {shlex.join(self.command)!r}"


def _end(process: subprocess.Popen[str]) -> None:
    """End a compiler with the programs that it has started, which its own end would leave."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)  # on which it removes its temporary files
        process.wait(1)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def require_compiler() -> Compiler:
    """Return the C++ compiler: that of ``CXX`` if it is set, else g++, clang++ or c++.

    Raises:
        CompileError: there is none, or ``CXX`` is not a compiler; one line with the remedy.
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        return _chosen_compiler(chosen)
    path = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if path is None:
        raise CompileError("the host runner needs a C++ compiler; install g++ or set CXX")
    return _answering((path,))


def compiler() -> str | None:
    """Return the C++ compiler's command, quoted for a shell; None if there is no working one."""
    try:
        return shlex.join(require_compiler().command)
    except CompileError:
        return None


def unavailable() -> str | None:
    """Return why the host runner does not work here, with the remedy; None if it works."""
    try:
        require_compiler()
    except CompileError as error:
        reason = str(error)
        return f"{reason[0].upper()}{reason[1:]}."
    return None


def _chosen_compiler(chosen: str) -> Compiler:
    try:
        program, *arguments = shlex.split(chosen)
        path = shutil.which(program)
        if path is None:
            raise CompileError(f"there is no program {program!r}")
        return _answering((os.path.abspath(path), *arguments))
    except (CompileError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise CompileError(
            f"CXX is {chosen!r}: {reason}; set it to a C++ compiler, or unset it"
        ) from None


@functools.cache
def _answering(command: tuple[str, ...]) -> Compiler:
    run = Compiler(command, "").run(("-x", "c++", "-E", "-dM", os.devnull), _FIRST_PATIENCE)
    if run.returncode != 0 or "#define __cplusplus " not in run.stdout:
        raise CompileError(f"{shlex.join(command)!r} does not answer as a C++ compiler does")
    return Compiler(command, run.stdout)


def sanitizer_environment() -> dict[str, str]:
    """Environment variables under which a new process runs sanitized builds.

    Raises:
        CompileError: there is no C++ compiler, or it has no libasan.
    """
    # libstdc++ too: ASan wraps the throwing of exceptions, which it looks up when it starts.
    libraries = [_runtime_library(name) for name in ("libasan.so", "libstdc++.so.6")]
    return {
        "DETMODE_HOST_SANITIZE": "1",
        "LD_PRELOAD": " ".join(libraries),
        # Python itself leaks by design.
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def _runtime_library(name: str) -> str:
    compiler = require_compiler()
    library = compiler.run([f"-print-file-name={name}"]).stdout.strip()
    if not os.path.isabs(library):
        raise CompileError(f"{compiler} has no {name}; install the sanitizer runtime of g++")
    return library
