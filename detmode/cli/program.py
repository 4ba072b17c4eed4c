"""An unchanged Python program, run as ``python`` would run it."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import io
import linecache
import os
import signal
import sys
import threading
import traceback
import zipfile
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

import detmode
from detmode.cli.streams import flush, say, write
from detmode.reports.failure import failure_of, where

_PACKAGE = detmode.__path__[0] + os.sep


class Program:
    """A script, a folder or zip file with a ``__main__.py``, a module, or code.

    Args:
        target: the path of the script, ``"-"`` for standard input, the module's name, or the code.
        arguments: the program's ``sys.argv[1:]``.
        is_module: ``target`` is a module's name, as after ``python -m``.
        is_code: ``target`` is code, as after ``python -c``.

    Raises:
        OSError: the script cannot be read.
        ImportError: there is no such module, or nothing in it to run.
        SyntaxError, ValueError: the target is not Python code.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[str],
        *,
        is_module: bool = False,
        is_code: bool = False,
    ) -> None:
        safe_path = getattr(sys.flags, "safe_path", False)
        is_input = target == "-" and not is_module and not is_code
        is_path = not (is_module or is_code or is_input)
        is_container = is_path and (os.path.isdir(target) or zipfile.is_zipfile(target))
        if is_container or not safe_path:
            # In place of what `python` put there for the command `detmode`.
            if is_module:
                first = os.getcwd()
            elif is_container:
                first = os.path.abspath(target)
            elif is_path:
                first = os.path.dirname(os.path.realpath(target))
            else:
                first = ""
            sys.path[:] = [first, *(sys.path if safe_path else sys.path[1:])]
        self.module = ModuleType("__main__")
        if is_module or is_container:
            spec, self._code = _find(target, is_container=is_container)
            path = spec.origin or target
            self.module.__spec__ = spec
            self.module.__loader__ = spec.loader
            self.module.__package__ = spec.parent
        else:
            source: str | bytes = target
            path = "<string>" if is_code else "<stdin>"
            self.module.__loader__ = importlib.machinery.BuiltinImporter
            if is_input:
                with open(0, "rb", closefd=False) as file:
                    source = file.read()
            elif is_path:
                path = os.path.abspath(target)
                with io.open_code(path) as script:
                    source = script.read()
                self.module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
            self._code = compile(source, path, "exec", dont_inherit=True)
            self.module.__package__ = None
            if is_code and hasattr(linecache, "_register_code"):
                # From Python 3.13 on tracebacks have the source lines of such programs.
                linecache._register_code(self._code, target, path)
        if not is_code:
            self.module.__file__ = path
            self.module.__dict__.setdefault("__cached__", None)
        self.module.__dict__["__builtins__"] = sys.modules["builtins"]
        if sys.version_info < (3, 14):
            # Since then a module has them once they are asked for.
            self.module.__dict__.setdefault("__annotations__", {})
        self._argv = [path if is_module else "-c" if is_code else target, *arguments]

    def become_main(self) -> None:
        """Set ``sys.argv`` and ``__main__`` to the program's, as exit functions also expect."""
        sys.argv[:] = self._argv
        sys.modules["__main__"] = self.module

    def run(self) -> None:
        """Run it, as ``__main__``, to the end of its threads that are no daemons.

        Of a program that fails they are not waited for: it has an error to tell first.
        """
        before = set(threading.enumerate())
        try:
            exec(self._code, self.module.__dict__)
        except SystemExit as error:
            if failure_of(error) is None:
                _wait_for_threads(before)
            raise
        _wait_for_threads(before)


def _wait_for_threads(before: set[threading.Thread]) -> None:
    """Wait for the threads that are no daemons, if there are others than those before."""
    if any(not thread.daemon for thread in threading.enumerate() if thread not in before):
        # What Python itself calls at its end, once: pools end their threads only then.
        threading._shutdown()  # type: ignore[attr-defined]  # it has no types


def _find(target: str, *, is_container: bool) -> tuple[importlib.machinery.ModuleSpec, CodeType]:
    if is_container:
        spec = importlib.machinery.PathFinder.find_spec("__main__", [os.path.abspath(target)])
        what = f"'__main__' module in {target!r}"
    else:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
        what = f"module {target!r} that could be run"
    # The loader of zip files has the method without being an InspectLoader.
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    code = get_code(spec.name) if spec is not None and get_code is not None else None
    if spec is None or code is None:
        raise ImportError(f"there is no {what}")
    return spec, code


_NO_CUDA = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver on your system",
    "No CUDA GPUs are available",
    "Attempting to deserialize object on a CUDA device",
    "no NVIDIA driver",
)
"""Parts of PyTorch's messages where a program asks for a GPU that is not there."""


def lacks_cuda(error: BaseException) -> bool:
    """Return whether a program has failed because PyTorch sees no GPU."""
    return any(text in str(error) for text in _NO_CUDA)


def exit_status(error: BaseException | None) -> int:
    """Print ``error`` on stderr as ``python`` would, and return its exit status.

    Frames of detmode are left out of the traceback, and that of Ctrl-C is a line, unless
    ``DETMODE_LOG`` is ``debug``.
    """
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        write(sys.stderr, f"{error.code}\n")
        return 1
    if sys.excepthook is sys.__excepthook__:
        if isinstance(error, KeyboardInterrupt) and not _shows_everything():
            say(f"detmode: interrupted{where(error.__traceback__)}")
            return 128 + signal.SIGINT
        lines = traceback.TracebackException.from_exception(error)
        if not _shows_everything():
            _hide_own_frames(lines)
        # An error before the program's first line has no frames, and Python then prints no heading.
        alone = not lines.stack and lines.__cause__ is None and lines.__context__ is None
        text = lines.format_exception_only() if alone else lines.format()
        write(sys.stderr, "".join(text))
    else:
        sys.excepthook(type(error), error, _from_the_program_on(error.__traceback__))
    return 1


def _shows_everything() -> bool:
    return os.environ.get("DETMODE_LOG", "").lower() == "debug"


def die_of(number: signal.Signals) -> NoReturn:
    """End by a signal, as ``python`` does after Ctrl-C, so that a shell or a launcher sees it.

    What the program has registered for its exit runs first, unless the signal comes again.
    """
    signal.signal(number, signal.SIG_DFL)
    atexit._run_exitfuncs()
    flush()
    if os.name != "posix":
        os._exit(128 + number)  # what a shell makes of a signal
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)  # where another thread gets the signal, it has not ended yet


def _is_own(path: str) -> bool:
    return path.startswith(_PACKAGE)


def _hide_own_frames(lines: traceback.TracebackException) -> None:
    seen: set[int] = set()
    todo: list[traceback.TracebackException | None] = [lines]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not _is_own(frame.filename)]
        one.stack = traceback.StackSummary.from_list(frames)
        todo += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _from_the_program_on(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and _is_own(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return tb
