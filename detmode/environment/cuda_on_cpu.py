"""CUDA's device names mean the CPU: for programs that name ``"cuda"``, where there is no GPU.

Most training scripts do: ``model.cuda()``, ``device="cuda"``, ``torch.cuda.synchronize()``. Inside
the block such calls work on CPU tensors. Only names are taken over: a tensor still says that it is
on the CPU, and what no CPU can do (CUDA graphs, NCCL, kernels of extensions) fails as before.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn
import torch.utils._device
import torch.utils.data
from torch.amp.autocast_mode import autocast
from torch.overrides import TorchFunctionMode

from detmode.process.threads import follow_threads
from detmode.process.undo import Undo

_CPU = torch.device("cpu")
_NAME = "CPU in place of CUDA"
_MEMORY = 80 << 30


@contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Let CUDA's device names mean the CPU in the block, in this thread and those it starts.

    >>> with cuda_on_cpu():
    ...     torch.ones(2, device="cuda:0").device
    device(type='cpu')
    """
    undo = Undo()
    try:
        for owner, name, value in _replacements():
            undo.note(functools.partial(setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        follow_threads(_OnCpu, undo)
        with _OnCpu():
            yield
    finally:
        undo.run()


def _on_cpu(device: Any) -> Any:
    """Return the CPU for a name, an index or a device of CUDA; what is none is returned as is."""
    if isinstance(device, torch.device):
        return _CPU if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    return _CPU if type(device) is int else device


_STAYS = frozenset({torch.Tensor.cuda, torch.Tensor.pin_memory})


class _OnCpu(TorchFunctionMode):
    """Gives what names CUDA as its device the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _STAYS:
            return args[0]
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        # Of other functions a number is none of a device.
        first = 1 if func is torch.Tensor.to else len(args)
        return func(
            *args[:first],
            *(
                _on_cpu(arg) if number >= first or isinstance(arg, torch.device) else arg
                for number, arg in enumerate(args[first:], first)
            ),
            **kwargs,
        )


class _Event:
    """An event of a device that has done everything as soon as it is called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._time = 0.0

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: _Event) -> float:
        return (end_event._time - self._time) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    wait = record_event = synchronize


class _Stream(_Event):
    """The only stream."""

    cuda_stream = 0

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record()
        return event

    def wait_stream(self, stream: Any) -> None:
        return

    wait_event = wait_stream


class _LikePyTorchs(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator.plain)


class _Generator(metaclass=_LikePyTorchs):
    plain = torch.Generator

    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator.plain(_on_cpu(device))


def _first_on_cpu(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a method whose arguments, or the one of this name, may be devices."""

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = _on_cpu(kwargs[name])
        return plain(self, *map(_on_cpu, args[:1]), *args[1:], **kwargs)

    return method


def _autocast(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            # The default of CUDA, as the rules see the dtypes.
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        plain(self, device_type, dtype, *args, **kwargs)

    return init


def _load(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {saved: _on_cpu(place) for saved, place in map_location.items()}
        elif not callable(map_location):
            map_location = "cpu" if map_location is None else _on_cpu(map_location)
        return plain(f, map_location, *args, **kwargs)

    return load


def _unpinned(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.pin_memory = False  # memory is pinned for a GPU

    return init


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield an owner, the name of an attribute, and its value inside the block."""
    for name, value in _of_cuda().items():
        if hasattr(torch.cuda, name):
            yield torch.cuda, name, value
    context = torch.utils._device.DeviceContext
    yield context, "__init__", _first_on_cpu(context.__init__, "device")
    yield torch.nn.Module, "to", _first_on_cpu(torch.nn.Module.to, "device")
    yield autocast, "__init__", _autocast(autocast.__init__)
    yield torch, "load", _load(torch.load)
    yield torch, "Generator", _Generator
    loader = torch.utils.data.DataLoader
    yield loader, "__init__", _unpinned(loader.__init__)


def _of_cuda() -> dict[str, Any]:
    """Return what stands for the attributes of ``torch.cuda``."""

    def always(value: Any) -> Callable[..., Any]:
        # For each name another one: the compiler has rules by function.
        return lambda *_, **__: value

    stream = _Stream()
    properties = SimpleNamespace(
        name=_NAME, major=9, minor=0, total_memory=_MEMORY, multi_processor_count=1
    )
    values: dict[str, Any] = {
        "is_available": True,
        "is_initialized": False,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": _NAME,
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "mem_get_info": (_MEMORY, _MEMORY),
        "memory_summary": "",
        "current_stream": stream,
        "default_stream": stream,
        "utilization": 0,
    }
    done = (
        *("_lazy_init", "init", "synchronize", "empty_cache", "ipc_collect", "set_device"),
        *("set_stream", "reset_peak_memory_stats", "reset_max_memory_allocated"),
        *("reset_accumulated_memory_stats", "manual_seed", "manual_seed_all"),
        *("seed", "seed_all", "set_per_process_memory_fraction"),
    )
    return {
        **{name: always(value) for name, value in values.items()},
        **{name: always(None) for name in done},
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]) if states else None,
        "Event": _Event,
        "Stream": _Stream,
        **{name: type(name, (nullcontext,), {}) for name in ("stream", "device", "device_of")},
    }
