"""Launches on a GPU: NVRTC compiles an entry at its first launch, CuPy's driver calls run it.

CuPy's own compilation is not used, because it adds `-ftz=true`: denormals, which ATen's CUDA
kernels keep, would become zeros.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from detmode.cuda.cache import CachedFile, take
from detmode.cuda.signature import Bound, KernelSignature
from detmode.cuda.source import NVRTC_OPTIONS, Source, compile_entries
from detmode.process.undo import Lock

# Static and dynamic shared memory that a block may have before the kernel's limit is raised.
_SHARED_DEFAULT = 48 * 1024
# The driver's CU_STREAM_CAPTURE_MODE_RELAXED.
_RELAXED = 2


def extra() -> str:
    """Return the extra for this PyTorch, `"cuda12"` or `"cuda13"`, by its CUDA's major version.

    CuPy and PyTorch then share one major version of the CUDA runtime and NVRTC, and one driver
    serves both. A PyTorch without CUDA gives the newer.
    """
    version = torch.version.cuda
    return "cuda12" if version is not None and version.split(".")[0] == "12" else "cuda13"


def unavailable() -> str | None:
    """Return why launches do not work on this machine's GPUs, with the remedy; None if they do."""
    if sys.platform == "darwin":
        return (
            "macOS has no CUDA; simulate='cuda' runs the CUDA kernels on the host, and "
            "detmode.audit says what would happen on a GPU."
        )
    if torch.version.cuda is None:
        return "PyTorch was built without CUDA; install a CUDA build of PyTorch (pytorch.org)."
    if not torch.cuda.is_available():
        return "PyTorch finds no usable GPU; check the driver with nvidia-smi."
    remedy = f"run pip install 'detmode[{extra()}]'"
    try:
        import cupy
        from cupy.cuda import nvrtc
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); {remedy}."
    except Exception as error:
        return f"CuPy does not load ({error}); {remedy}."
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "CuPy finds no GPU; check CUDA_VISIBLE_DEVICES and the driver with nvidia-smi."
    except Exception as error:
        return f"CuPy cannot use the driver ({error}); {remedy}, CuPy for PyTorch's CUDA version."
    try:
        nvrtc.getVersion()
    except Exception as error:
        return f"CuPy finds no NVRTC ({error}); {remedy}, or set CUDA_PATH to a CUDA toolkit."
    return None


def _arch(capability: tuple[int, int]) -> str:
    """Return the target: machine code for this GPU if NVRTC supports it, else older PTX."""
    from cupy.cuda import nvrtc

    number = capability[0] * 10 + capability[1]
    # CuPy 13 does not list them; NVRTC then reports an unknown one itself.
    listed = getattr(nvrtc, "getSupportedArchs", None)
    supported = tuple(int(arch) for arch in listed()) if listed is not None else (number,)
    if number in supported:
        return f"sm_{number}"
    older = [arch for arch in supported if arch < number]
    return f"compute_{max(older)}" if older else f"sm_{number}"


def compiled(source: Source, entry: str, arch: str) -> CachedFile:
    """The file of `entry`'s code, made where the cache lacks it; its note is the entry's name.

    The key is the content: text, entry, architecture, options and NVRTC's version.
    """
    from cupy.cuda import nvrtc

    parts = (source.text, entry, arch, *NVRTC_OPTIONS, repr(nvrtc.getVersion()))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    suffix = "cubin" if arch.startswith("sm_") else "ptx"

    def make() -> tuple[bytes, str]:
        code, lowered = compile_entries(source, arch, (entry,))
        return code, lowered[entry]

    return take("cuda", f"{source.path.parent.name}-{source.path.stem}-{key}.{suffix}", make)


class _Slots(threading.local):
    """One thread's argument values of one entry, in words of 8 bytes, and the pointers to them."""

    def __init__(self, signature: KernelSignature) -> None:
        values = (ctypes.c_ulonglong * signature.n_words)()
        first = ctypes.addressof(values)
        addresses = [first + 8 * offset for offset in signature.offsets]
        self._pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        # One look into the thread's own attributes gives all that a launch needs.
        self.all = values, ctypes.addressof(self._pointers)


class _Kernel:
    """One entry on one device, loaded."""

    def __init__(self, source: Source, entry: str, index: int) -> None:
        import cupy

        arch = _arch(torch.cuda.get_device_capability(index))
        file = compiled(source, entry, arch)
        # RawModule keeps the machine code loaded for as long as this object lives.
        self.raw = cupy.RawModule(path=file.loaded_from).get_function(file.note)
        self.function: int = self.raw.kernel.ptr
        self.is_new = file.is_new
        self.shared = _SHARED_DEFAULT - int(self.raw.shared_size_bytes)
        signature = source.signature(entry)
        self.put = signature.put
        self.slots = _Slots(signature)
        self.set_device: Any = cupy.cuda.runtime.setDevice
        self.launch_kernel: Any = cupy.cuda.driver.launchKernel

    def raise_limit(self, shared: int) -> None:
        """Let a block have so much shared memory."""
        # Another thread may have raised the limit further by now; it must not be lowered.
        if shared > self.shared:
            self.raw.max_dynamic_shared_size_bytes = shared
            self.shared = shared


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _exchange_capture_mode(mode: int) -> int:
    """Give this thread a mode of captures; returns the mode that it had."""
    exchanged = ctypes.c_int(mode)
    problem = _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(exchanged))
    if problem:
        raise RuntimeError(f"the CUDA driver refuses a mode of captures (error {problem})")
    return exchanged.value


@contextmanager
def _beside_captures() -> Iterator[None]:
    """Let this thread load code while others capture, as PyTorch's allocator may allocate then.

    Otherwise the driver refuses it, and ends each capture in PyTorch's default mode, "global".
    """
    mode = _exchange_capture_mode(_RELAXED)
    try:
        yield
    finally:
        _exchange_capture_mode(mode)


_kernels: dict[tuple[Source, str, int], _Kernel] = {}
_lock = Lock()


def launch_blocks(
    source: Source,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    bound: Bound,
    shared: int,
    index: int,
) -> None:
    """Puts one launch on the current stream of the GPU `index` and returns.

    The first launch of an entry on a device compiles it or takes it from the cache, and loads it.

    Raises:
        RuntimeError: launching is impossible here (see `detmode.cuda.unavailable`), or a first
            launch is inside a CUDA graph capture.
        CompileError: NVRTC rejects the file.
    """
    # PyTorch's own functions, below what it does in Python: its tensors are there, so CUDA is
    # initialized, and a Stream object takes longer than a launch.
    if index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            launch_blocks(source, entry, grid, block, bound, shared, index)
        return
    kernel = _kernels.get((source, entry, index))
    if kernel is None:
        kernel = _load(source, entry, index)
    # The driver's calls need the device's context on this OS thread; torch may not have set it.
    kernel.set_device(index)
    values, address = kernel.slots.all
    words, tensors = bound
    kernel.put(values, words, tensors)
    if shared > kernel.shared:
        _lock.run(kernel.raise_limit, shared)
    stream = torch._C._cuda_getCurrentRawStream(index)
    gx, gy, gz = grid
    x, y, z = block
    kernel.launch_kernel(kernel.function, gx, gy, gz, x, y, z, shared, stream, address, 0)


@functools.cache
def most_shared(index: int) -> int:
    """Bytes of dynamic shared memory that a block on the GPU `index` may have, its limit raised.

    Raises:
        RuntimeError: launching is impossible here (see `detmode.cuda.unavailable`).
    """
    problem = unavailable()
    if problem is not None:
        raise RuntimeError(f"No kernel can be launched. {problem}")
    import cupy

    return int(cupy.cuda.Device(index).attributes["MaxSharedMemoryPerBlockOptin"])


def load(source: Source, entry: str, device: torch.device) -> bool:
    """Load an entry as its first launch on `device` would; true if that compiled it.

    Raises:
        RuntimeError: as `launch_blocks`.
        CompileError: NVRTC rejects the file.
    """
    index = device.index if device.index is not None else torch.cuda.current_device()
    if (source, entry, index) in _kernels:
        return False
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return load(source, entry, device)
    return _load(source, entry, index).is_new


def loaded(source: Source, entry: str, index: int) -> _Kernel:
    """Return an entry as it is loaded on the GPU `index`."""
    return _kernels.get((source, entry, index)) or _load(source, entry, index)


def runtime_functions() -> tuple[Any, Any, Any]:
    """Return CUDA's functions that set the thread's device, and fill and copy memory on a stream.

    A kind of 3 copies within a device.
    """
    from cupy.cuda import runtime

    return runtime.setDevice, runtime.memsetAsync, runtime.memcpyAsync


def _load(source: Source, entry: str, index: int) -> _Kernel:
    problem = unavailable()
    if problem is not None:
        raise RuntimeError(f"{source.path.name}: {entry} cannot be launched. {problem}")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{source.path.name}: {entry} is launched for the first time inside a CUDA graph "
            "capture, where no code can be loaded; run the captured code once before the capture, "
            "or call detmode.warm"
        )
    return _lock.run(_load_once, source, entry, index)


def _load_once(source: Source, entry: str, index: int) -> _Kernel:
    key = source, entry, index
    kernel = _kernels.get(key)
    if kernel is None:
        import cupy

        cupy.cuda.runtime.setDevice(index)
        with _beside_captures():
            kernel = _kernels[key] = _Kernel(source, entry, index)
    return kernel
