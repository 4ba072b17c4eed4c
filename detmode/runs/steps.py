"""Steps of a run: where they end, and the states they leave, for recordings that are running."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from detmode.bits.tensors import UNINITIALIZED, is_capturing, is_foreign
from detmode.cuda.elements import in_memory, once
from detmode.distributed.rank_group import gathered
from detmode.process.dispatch import untraced, without_modes
from detmode.process.generators import default_generators
from detmode.process.undo import Lock


class _Stepped(Protocol):
    """A recording that is running."""

    def end_step(self, state: Callable[[], dict[str, list[Tensor]]]) -> None:
        """End a step; ``state`` returns the parts of the state that it leaves, by name."""

    def digest_of_steps(self) -> bytes:
        """See :func:`run_digest`."""


_lock = Lock()
_running: list[tuple[int, _Stepped]] = []
"""The recordings that are running, each with the thread that has begun it."""
_hooks: list[Any] = []


def watch(recording: _Stepped) -> None:
    """End the recording's steps from now on."""

    def add() -> None:
        _running.append((get_ident(), recording))
        if not _hooks:
            _hooks.append(register_optimizer_step_post_hook(_stepped))

    _lock.run(add)


def unwatch(recording: _Stepped) -> None:
    """End them no longer."""

    def remove() -> None:
        _running[:] = [entry for entry in _running if entry[1] is not recording]
        if not _running and _hooks:
            _hooks.pop().remove()

    _lock.run(remove)


def _here() -> list[_Stepped]:
    """Return the recordings of this thread; of a thread that has none, those of all others.

    Programs that record in their main thread may train in another, and optimizers that step in
    backward do so in autograd's threads.
    """
    thread, running = get_ident(), tuple(_running)
    return [recording for starter, recording in running if starter == thread] or [
        recording for _, recording in running
    ]


@untraced
def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for recording in _here():
        recording.end_step(partial(_state_of, optimizer))


@untraced
def end_step(**tensors: Tensor) -> None:
    """End a step in the recordings of this thread; if it has none, in all that are running.

    A step also ends where an optimizer's ``step()`` returns. A program without an optimizer calls
    this function instead, at the end of each piece of work that is to be compared as a whole.

    >>> with detmode.record("run", level="step"):
    ...     for loss in (torch.tensor(0.5), torch.tensor(0.25)):
    ...         detmode.end_step(loss=loss)

    Args:
        tensors: by name, those that a recording of level ``"step"`` digests as the state that the
            step left. Other levels digest them where they are computed.

    Raises:
        TypeError: one of them is no tensor.
    """
    state = _named_tensors(tensors)
    for recording in _here():
        recording.end_step(lambda: state)


@untraced
def run_digest(group: Any = None) -> str:
    """Return one digest of what the recording has of all steps that have ended, on all ranks.

    Two runs with the same digest were the same up to there: save it with a checkpoint, or let
    :class:`detmode.RecordedSavePlanner` do so. All ranks of the group must call it, between two
    steps.

    >>> with detmode.record("run", level="step"):
    ...     detmode.end_step(loss=torch.tensor(0.5))
    ...     digest = detmode.run_digest()
    >>> len(digest)
    32

    Args:
        group: the process group; the default group if there is one, and else this process alone.

    Returns:
        32 hexadecimal digits: the root of a hash tree whose leaves are the ranks' digests.

    Raises:
        RuntimeError: no recording is running.
    """
    leaf = leaf_of_run()
    if leaf is None:
        raise RuntimeError("run_digest: no recording is running; call it inside detmode.record()")
    return root_of(gathered(leaf, group)).hex()


def leaf_of_run() -> bytes | None:
    """Return the digest of all steps on this rank; ``None`` if no recording is running."""
    running = _here()
    return running[-1].digest_of_steps() if running else None


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root of the hash tree with these leaves; a node has one or two below it."""
    level = [hashlib.blake2b(b"\0" + leaf, digest_size=16).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = (level[place : place + 2] for place in range(0, len(level), 2))
        level = [hashlib.blake2b(b"\1" + b"".join(p), digest_size=16).digest() for p in pairs]
    return level[0]


def hash_of(tensors: list[Tensor]) -> str:
    """Return the SHA-256 hash of CPU tensors' bytes, one after the other, in hexadecimal digits.

    It takes half the time of digests that a GPU can compute, too, and that tell tensors apart.

    Args:
        tensors: strided.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = in_memory(once(tensor))
        digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))
    return digest.hexdigest()


def _state_of(optimizer: Optimizer) -> dict[str, list[Tensor]]:
    """Return the parts of the state at the end of a step: names, and tensors of no subclass.

    They are the parameters, their gradients, the optimizer's own tensors, and the states of
    PyTorch's generators (while a CUDA graph is captured, it holds theirs).
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [
        optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state
    ]
    with without_modes():
        return {
            "parameters": _plain(parameters),
            "gradients": _plain([parameter.grad for parameter in parameters]),
            "optimizer state": _plain([value for state in states for value in state.values()]),
            "generators": []
            if is_capturing()
            else [generator.get_state() for generator in default_generators().values()],
        }


def _named_tensors(tensors: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """Return tensors that the program names at the end of a step, as tensors of no subclass.

    Raises:
        TypeError: one of them is no tensor.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"end_step: {name} must be a tensor, got {type(tensor).__name__}")
    with without_modes():
        return {name: _plain([tensor]) for name, tensor in tensors.items()}


def _plain(values: list[Any]) -> list[Tensor]:
    """Return the tensors among some values; in place of one of a subclass, those inside it."""
    tensors = []
    for value in values:
        if not isinstance(value, Tensor) or isinstance(value, UNINITIALIZED):
            continue
        if is_foreign(type(value)) and hasattr(value, "__tensor_flatten__"):
            names, _ = value.__tensor_flatten__()
            tensors += _plain([getattr(value, name) for name in names])
        else:
            tensors.append(value.detach())
    return tensors
