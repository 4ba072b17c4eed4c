"""Reproducible random numbers: seeds, data loader workers, saved generator states."""

from __future__ import annotations

import importlib
import operator
import random
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import get_worker_info

_LARGEST = 2**32 - 1
"""The largest seed that NumPy accepts; Python and PyTorch accept it too."""

_ALWAYS = ("python", "torch")
_WHERE_PRESENT = ("numpy", "cuda")
_CUDA_BYTES = (8, 16)
"""The sizes of the states of CUDA's generators; older ones lack the offset."""


def seed_everything(seed: int) -> torch.Generator:
    """Seed the global generators of Python, NumPy and PyTorch (on all devices).

    NumPy is seeded if it can be imported, whether or not the program has imported it yet. CUDA is
    not initialised: PyTorch keeps the seed until it is. Generators that the program creates (a
    ``numpy.random.Generator``, a ``random.Random``, a ``torch.Generator``) are not seeded.

    >>> generator = detmode.seed_everything(0)
    >>> first = torch.rand(2)
    >>> generator = detmode.seed_everything(0)
    >>> torch.equal(torch.rand(2), first)
    True

    Args:
        seed: 0 to 2**32 - 1.

    Returns:
        A new CPU generator, seeded with ``seed``, for a ``DataLoader`` or a sampler. Drawing from
        it does not advance PyTorch's global generator.

    Raises:
        TypeError: ``seed`` is not an integer.
        ValueError: ``seed`` is out of range.
    """
    seed = _checked(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_random.seed(seed)
    return _generator(seed)


def seed_worker(worker_id: int) -> None:
    """Seed Python's and NumPy's global generators in a worker of a ``DataLoader``.

    For ``DataLoader(worker_init_fn=seed_worker)``. The seed is the one that PyTorch gave the
    worker: a number drawn from the loader's generator once per epoch, plus ``worker_id``. A worker
    that is a thread shares the process's global generators, which are left unchanged.

    >>> data = torch.utils.data.DataLoader(range(9), worker_init_fn=detmode.seed_worker)

    Args:
        worker_id: as ``DataLoader`` passes it.

    Raises:
        RuntimeError: called outside a worker, where it would seed the program's own generators.
    """
    worker = get_worker_info()
    if worker is None:
        raise RuntimeError(
            "seed_worker() was called outside a DataLoader worker; pass it on instead: "
            "DataLoader(..., worker_init_fn=detmode.seed_worker)"
        )
    if getattr(worker, "worker_method", "multiprocessing") == "thread":
        return
    seed = worker.seed % (_LARGEST + 1)
    random.seed(seed)
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_random.seed(seed)


def dataloader_kwargs(seed: int) -> dict[str, Any]:
    """Return arguments with which a ``DataLoader`` gives the same batches in every run.

    With ``DataLoader(data, shuffle=True, num_workers=4, **dataloader_kwargs(0))`` the order of
    samples and the seeds of workers come from a generator that nothing else uses.

    >>> def order():
    ...     options = detmode.dataloader_kwargs(0)
    ...     loader = torch.utils.data.DataLoader(range(9), shuffle=True, **options)
    ...     return [int(number) for number in loader]
    >>> order() == order()
    True

    Args:
        seed: 0 to 2**32 - 1. Ranks of a distributed run need different seeds.

    Returns:
        ``worker_init_fn``, which is :func:`seed_worker`, and ``generator``, a new CPU generator.
        Two loaders with the same generator would affect each other, so call it for each loader.

    Raises:
        TypeError: ``seed`` is not an integer.
        ValueError: ``seed`` is out of range.
    """
    return {"worker_init_fn": seed_worker, "generator": _generator(_checked(seed))}


def rng_state() -> dict[str, Any]:
    """Return the state of every global generator, to restore with :func:`set_rng_state`.

    It holds only tensors, numbers, strings, tuples, lists and dictionaries, so that
    ``torch.load(..., weights_only=True)`` reads it from a checkpoint.

    >>> state = detmode.rng_state()
    >>> first = torch.rand(2)
    >>> detmode.set_rng_state(state)
    >>> torch.equal(torch.rand(2), first)
    True

    Returns:
        By name: ``"python"``, ``"torch"`` (the CPU), ``"numpy"`` if NumPy can be imported, and
        ``"cuda"``, one state for each device, if CUDA is initialised. Generators of other
        devices are not included.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_state = numpy_random.get_state(legacy=False)
        state["numpy"] = tree_map(lambda leaf: getattr(leaf, "tolist", lambda: leaf)(), numpy_state)
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore the state of every global generator.

    A generator that is not in ``state`` is left unchanged, so delete a key to skip a generator.
    CUDA is initialised if ``state`` holds its generators.

    >>> state = detmode.rng_state()
    >>> first = torch.rand(2)
    >>> detmode.set_rng_state(state)
    >>> torch.equal(torch.rand(2), first)
    True

    Args:
        state: the result of :func:`rng_state`. Its tensors may have been loaded to any device.

    Raises:
        TypeError: ``state`` is not a mapping.
        ValueError: ``state`` did not come from :func:`rng_state`, is damaged, or holds a generator
            that this process does not have: NumPy's of that kind, or those of more CUDA devices.
            No generator was set.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be what rng_state() gives, not {type(state).__name__}")
    missing = [name for name in _ALWAYS if name not in state]
    unknown = [name for name in state if name not in (*_ALWAYS, *_WHERE_PRESENT)]
    if missing or unknown:
        raise ValueError(
            f"state must be what rng_state() gives: it lacks {missing} and has {unknown}"
        )
    if "numpy" in state:
        _check_numpy(state["numpy"])
    if isinstance(state.get("cuda"), (list, tuple)):
        _check_cuda(state["cuda"])
    # Nothing is set before all has been read.
    steps = [_read(name, state[name]) for name in state]
    for step in steps:
        step()


def _read(name: str, state: Any) -> Callable[[], object]:
    """Read the state of a generator; return a function that sets it.

    Raises:
        ValueError: it is not one.
    """
    try:
        return _READERS[name](state)
    except Exception as error:
        raise ValueError(
            f"state[{name!r}] is not what rng_state() gives ({type(error).__name__}: {error}); "
            "no generator was set; use the state of another checkpoint"
        ) from error


def _read_python(state: Any) -> Callable[[], object]:
    version, words, gauss = state
    whole = version, tuple(words), gauss
    random.Random().setstate(whole)
    return partial(random.setstate, whole)


def _read_torch(state: Any) -> Callable[[], object]:
    on_host = state.cpu()
    torch.Generator().set_state(on_host)
    return partial(torch.set_rng_state, on_host)


def _read_numpy(state: Any) -> Callable[[], object]:
    numpy_random = importlib.import_module("numpy.random")
    whole = tree_map(_as_array, state, is_leaf=lambda leaf: isinstance(leaf, list))
    bit_generator = getattr(numpy_random, state["bit_generator"])()
    numpy_random.RandomState(bit_generator).set_state(whole)
    return partial(numpy_random.set_state, whole)


def _read_cuda(states: Any) -> Callable[[], object]:
    on_host = [state.cpu() for state in states]
    if not all(state.dtype == torch.uint8 and state.numel() in _CUDA_BYTES for state in on_host):
        raise TypeError(f"a CUDA generator's state has {_CUDA_BYTES[-1]} bytes")
    return partial(_set_cuda, on_host)


def _set_cuda(states: list[torch.Tensor]) -> None:
    # Initialisation seeds CUDA's generators, so a state set before it would be lost.
    torch.cuda.init()
    torch.cuda.set_rng_state_all(states)


_READERS: dict[str, Callable[[Any], Callable[[], object]]] = {
    "python": _read_python,
    "torch": _read_torch,
    "numpy": _read_numpy,
    "cuda": _read_cuda,
}


def _checked(seed: int) -> int:
    try:
        if isinstance(seed, bool):
            raise TypeError
        value = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed must be an int, not {type(seed).__name__}") from None
    if not 0 <= value <= _LARGEST:
        raise ValueError(
            f"seed must be from 0 to 2**32 - 1, which Python, NumPy and PyTorch all accept, "
            f"but is {value}"
        )
    return value


def _check_cuda(states: Any) -> None:
    if len(states) > torch.cuda.device_count():
        raise ValueError(
            f"state holds generators of {len(states)} CUDA devices, but this process sees "
            f"{torch.cuda.device_count()}; make more visible, or delete state['cuda']"
        )


def _check_numpy(state: Any) -> None:
    """Check that this process has NumPy's generator of that kind."""
    numpy_random = _numpy_random()
    if numpy_random is None:
        raise ValueError(
            "state holds NumPy's generator, but NumPy cannot be imported; install it, or delete "
            "state['numpy']"
        )
    here = numpy_random.get_state(legacy=False)["bit_generator"]
    kind = state.get("bit_generator") if isinstance(state, Mapping) else here
    if kind != here:
        raise ValueError(
            f"state holds NumPy's global generator of kind {kind}, but here it is {here}; call "
            "numpy.random.set_bit_generator as before, or delete state['numpy']"
        )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(seed)


def _numpy_random() -> ModuleType | None:
    """Return ``numpy.random``, or ``None`` without NumPy.

    It is imported here if necessary: imported later, its global generator would be unseeded.
    """
    try:
        return importlib.import_module("numpy.random")
    except ImportError:
        return None


def _as_array(value: Any) -> Any:
    """Convert a list back to an array; bit generators convert it to their own word size."""
    is_list = isinstance(value, list)
    return importlib.import_module("numpy").array(value, dtype="uint64") if is_list else value
