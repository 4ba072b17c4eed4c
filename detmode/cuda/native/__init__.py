"""The player in C++: built with the compiler at hand, kept in the cache, and loaded once.

``DETMODE_NATIVE=0`` switches it off. Where it cannot be built or loaded, one line says why, and all
calls are made in Python.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import logging
import os
import platform
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import torch

from detmode.cuda.cache import CachedFile, find, take
from detmode.cuda.host.toolchain import require_compiler
from detmode.cuda.source import CompileError
from detmode.process.files import temporary_folder
from detmode.process.undo import Lock
from detmode.process.versions import SUPPORTED, parse_version

VARIABLE = "DETMODE_NATIVE"
"""The environment variable that switches the player on and off."""

_DELAY = 10
"""Seconds after which it is built: a program that ends sooner would have no use for it."""
_PATIENCE = 3
"""Seconds that the end of a process waits for the end of what builds."""

_SOURCE = Path(__file__).with_name("player.cpp")
"""Of the library. It includes the headers beside it."""
_PYTHON = (3, 10), (3, 14)
"""The oldest and the newest CPython whose frames the player reads."""
_logger = logging.getLogger("detmode")

Player = ctypes.PyDLL
"""The library. Its functions are those at the end of ``player.cpp``; they hold the GIL."""


def is_wanted() -> bool:
    """Return whether the environment leaves the player on.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    return _chosen() != "0"


def launches_on(device_type: str) -> bool:
    """Return whether the player makes launches on a type of device: on GPUs only if it is asked to.

    There it has not run yet.
    """
    return device_type == "cpu" or _chosen() == "1"


def _chosen() -> str:
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"{VARIABLE}={value!r} is neither 0 nor 1: 0 switches the player in C++ off"
        )
    return value


def problem() -> str | None:
    """Return why the player cannot run here, whatever compiler there is; None if it may."""
    if sys.platform != "linux":
        return f"it runs on Linux, and this is {platform.system()}"
    has_lock = not sysconfig.get_config_var("Py_GIL_DISABLED")
    is_known = _PYTHON[0] <= sys.version_info[:2] <= _PYTHON[1] and has_lock
    if platform.python_implementation() != "CPython" or not is_known:
        here = f"{platform.python_implementation()} {platform.python_version()}"
        known = "{}.{} to {}.{}".format(*_PYTHON[0], *_PYTHON[1])
        here += "" if has_lock else " without the GIL"
        return f"it reads the frames of CPython {known} with the GIL, and this is {here}"
    is_known = SUPPORTED[0] <= parse_version(torch.__version__) <= SUPPORTED[1]
    if not is_known or not hasattr(torch.library, "get_kernel"):
        newest = "{}.{}".format(*SUPPORTED[1])
        return f"it is for PyTorch 2.9 to {newest}, and this is {torch.__version__}"
    return None


class _State:
    """The player in this process.

    Attributes:
        player: the loaded library.
        failure: the reason why there is none, and will be none.
        thread: builds it.
        ends: set when the process ends, and what builds is to end, too.
    """

    def __init__(self) -> None:
        self.player: Player | None = None
        self.failure: str | None = None
        self.thread: threading.Thread | None = None
        self.ends = threading.Event()


_state = _State()
_lock = Lock()


def player() -> Player | None:
    """Return the player; None while it is built, which begins here, and where it cannot be."""
    if _state.player is None and _state.failure is None:
        _lock.run(_begin)
    return _state.player


def build() -> bool:
    """Build the player, if the cache lacks it, and load it; true if that built it.

    Raises:
        RuntimeError: it cannot run here.
        CompileError: there is no compiler, or it rejects the source.
    """
    reason = problem()
    if reason is not None:
        raise RuntimeError(f"the player in C++ cannot run here: {reason}")
    file = take("native", _name(), _compiled)
    _lock.run(_load, file)
    return file.is_new


def prepare() -> bool | None:
    """Build and load the player as :func:`build` does; None, with a warning, where that fails."""
    try:
        return build()
    except (CompileError, RuntimeError, OSError) as error:
        _fail(str(error))
    return None


def _begin() -> None:
    """Load the player if the cache has it, else build it in the background."""
    if _state.thread is not None and _state.thread.is_alive():
        return
    reason = problem()
    if reason is not None:
        _fail(reason)
        return
    try:
        file = find("native", _name())
        if file is not None:
            _load(file)
            return
    except (CompileError, OSError) as error:
        _fail(str(error))
        return
    # A forked child has no such thread, and begins again.
    _state.ends = threading.Event()
    _state.thread = threading.Thread(target=_prepare_later, name="detmode-native", daemon=True)
    _state.thread.start()


def _prepare_later() -> None:
    if not _state.ends.wait(0 if _chosen() else _DELAY):
        prepare()


@atexit.register
def _end_build() -> None:
    """End what builds, whose compiler and folder would outlive the process."""
    thread = _state.thread
    if thread is not None and thread.is_alive():
        _state.ends.set()
        thread.join(_PATIENCE)


def _fail(reason: str) -> None:
    if _state.failure is None and not _state.ends.is_set():
        _state.failure = reason
        # Where it cannot run at all, nobody has left anything out.
        level = logging.INFO if not _chosen() and reason == problem() else logging.WARNING
        _logger.log(level, "calls are made in Python, which takes longer: %s", reason)


@functools.cache
def _flags() -> tuple[str, ...]:
    includes = os.path.join(os.path.dirname(torch.__file__), "include")
    folders = (
        includes,
        os.path.join(includes, "torch", "csrc", "api", "include"),
        sysconfig.get_path("include"),
    )
    abi = int(torch.compiled_with_cxx11_abi())
    return (
        *("-std=c++20", "-O1", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        *(f"-I{folder}" for folder in folders),
    )


def _name() -> str:
    """Return the file's name in the cache, with a hash of all that the library depends on."""
    compiler = require_compiler()
    sources = (_SOURCE, *sorted(_SOURCE.parent.glob("*.h")))
    parts = (
        *(source.read_text(encoding="utf-8") for source in sources),
        *(*compiler.command, compiler.macros, *_flags()),
        *(torch.__version__, str(torch.version.git_version), sys.version),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return f"player-{key}.so"


def _compiled() -> tuple[bytes, str]:
    """Return the library's content, and no note."""
    compiler = require_compiler()
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CompileError(
            "there are no headers of Python, with which the player in C++ would be built: install "
            f"them (python{sys.version_info[0]}.{sys.version_info[1]}-dev), or set {VARIABLE}=0"
        )
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    with temporary_folder() as folder:
        output = folder / "player.so"
        run = compiler.run(
            [
                *(*_flags(), "-shared", str(_SOURCE), "-o", str(output), f"-L{libraries}"),
                *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
            ],
            is_unwanted=_state.ends.is_set,
        )
        if run.returncode != 0:
            lines = run.stderr.strip().splitlines()
            first = next((line for line in lines if "error" in line), (lines or ["no output"])[-1])
            raise CompileError(f"{compiler} does not build the player: {first.strip()}")
        return output.read_bytes(), ""


_Word = ctypes.c_int64
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "op": (ctypes.c_int, [ctypes.c_char_p] * 3),
    "register_for_modes": (None, []),
    "mode_op": (ctypes.c_int, [ctypes.c_char_p] * 2),
    "level": (None, [ctypes.c_void_p] * 2),
    "share": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "prepare": (None, [ctypes.c_int] * 2),
    "register": (None, [ctypes.c_int]),
    "unregister": (None, [ctypes.c_int]),
    "table": (ctypes.py_object, [ctypes.c_uint64, ctypes.py_object]),
    "table_of": (ctypes.c_void_p, [ctypes.py_object]),
    "activate": (None, [ctypes.c_void_p]),
    "turn": (None, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]),
    "marks": (None, [ctypes.c_int] * 2),
    "n_logged": (ctypes.POINTER(ctypes.c_uint32), []),
    "take": (ctypes.c_int, [ctypes.POINTER(ctypes.c_uint32)]),
    "after_fork": (None, []),
    "holds": (None, [ctypes.POINTER(ctypes.POINTER(ctypes.c_int)), ctypes.c_int]),
    "native_here": (ctypes.c_int, []),
    "native_elsewhere": (ctypes.c_int, []),
    "replayed": (ctypes.c_uint64, []),
    "host_step": (None, [ctypes.py_object]),
    "know": (None, [ctypes.c_void_p, ctypes.c_int]),
    "forget": (None, [ctypes.c_void_p]),
    "join": (None, [ctypes.c_uint64, ctypes.c_int]),
    "pending": (ctypes.c_int, [ctypes.c_uint64]),
    "add_plan": (
        None,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(_Word), ctypes.c_size_t],
    ),
    "add_entry": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]),
    "note": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_uint32]),
    "noted": (ctypes.c_uint32, []),
}
"""Of each function, without its prefix, the types of its result and of its arguments."""


def _load(file: CachedFile) -> None:
    if _state.player is not None:
        return
    try:
        library = ctypes.PyDLL(file.loaded_from)
    except OSError as error:
        raise CompileError(f"the player does not load: {error}") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"dm_{name}")
        function.restype, function.argtypes = result, arguments
    _state.player = library
