"""For test suites: assert that a function gives the same bits under varied conditions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args, overload

import torch
from torch import Tensor

from detmode import cuda
from detmode.mode.filled_memory import FilledMemory
from detmode.process.dispatch import compiled_as_outside, without_modes
from detmode.testing.repeats import (
    Values,
    captured,
    differences,
    first_divergence,
    remember_generators,
    snapshot,
)

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

Varied: TypeAlias = Literal["threads", "addresses", "memory", "schedule"]
VARIED: tuple[Varied, ...] = get_args(Varied)
"""The conditions that :func:`assert_reproducible` varies between runs."""

_BYTES = (0xFF, 0x00, 0x5A)
"""The content of uninitialized memory in each run: NaN or -1, zeros, large numbers."""
_SIZES = tuple(1 << power for power in range(6, 23, 2))
"""Sizes in bytes of the blocks that are allocated and freed, so that later ones lie elsewhere."""

P = ParamSpec("P")
T = TypeVar("T")


# No signature can have keywords beside those of another function: only the last one checks these.
@overload
def assert_reproducible(
    fn: Callable[..., T], /, *args: Any, runs: int, vary: Collection[Varied] = VARIED, **kwargs: Any
) -> T: ...
@overload
def assert_reproducible(
    fn: Callable[..., T], /, *args: Any, vary: Collection[Varied], **kwargs: Any
) -> T: ...
@overload
def assert_reproducible(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


def assert_reproducible(  # type: ignore[misc]  # a keyword of fn might be `runs` with another type
    fn: Callable[..., T],
    /,
    *args: Any,
    runs: int = 3,
    vary: Collection[Varied] = VARIED,
    **kwargs: Any,
) -> T:
    """Run a function several times from the same state and require the same bits each time.

    The return value is compared, and so are the arguments after the call: their values, and the
    ``.grad`` of leaf tensors. Each run gets copies of the arguments (including a module, or the
    object of a bound method) and the same states of the random generators. Other objects that the
    function captures are not copied: the message names those that differ as the runs begin.

    >>> from detmode.testing import assert_reproducible
    >>> assert_reproducible(torch.cumsum, torch.ones(3), 0)
    tensor([1., 2., 3.])

    Args:
        fn: the function, a module, or a method.
        args: its arguments, as far as ``copy.deepcopy`` copies them; tensors must be leaves.
        runs: the number of runs, at least 2.
        vary: the conditions that differ between the runs, some of :data:`VARIED`: ``"threads"``,
            the number of PyTorch's CPU threads; ``"addresses"``, where the allocators put tensors,
            which get memory that was used before; ``"memory"``, the content of the memory that
            ``torch.empty`` and similar operators return, in the body of a custom operator too;
            ``"schedule"``, the order in which the host runner runs CUDA threads, inside a mode with
            ``simulate="cuda"``. With ``"memory"`` a compiled function runs eagerly.
        kwargs: its keyword arguments.

    Returns:
        What the first run returned.

    Raises:
        AssertionError: the results differ; it names the tensors and the first operator at which
            two recorded runs diverge.
        TypeError: the result cannot be compared, or an argument cannot be copied.
        ValueError: ``runs`` or ``vary`` is impossible, or there is nothing to compare.
    """
    _check(runs, vary)
    restore_generators, threads = remember_generators(), torch.get_num_threads()
    results: list[T] = []

    def run(number: int, inside: AbstractContextManager[object]) -> Values:
        copied = _copied((fn, args, kwargs))
        restore_generators()
        with _surroundings(number, frozenset(vary), threads), inside:
            result = copied[0](*copied[1], **copied[2])
        if not results:
            results.append(result)
        return _seen(result, *copied)

    try:
        first = run(0, nullcontext())
        if all(value is None for value in first.values()):
            raise ValueError(
                "nothing to compare: the function returned None, and its arguments hold no tensor"
            )
        for number in range(1, runs):
            lines = differences(first, run(number, nullcontext()))
            if lines:
                divergence = first_divergence(run, (0, number, number), partial(captured, fn))
                raise AssertionError(_message(lines, number, vary, divergence))
    finally:
        restore_generators()
    return results[0]


def _check(runs: int, vary: Collection[str]) -> None:
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 2:
        raise ValueError(f"runs must be an int of at least 2, got {runs!r}")
    unknown = [vary] if isinstance(vary, str) else sorted(set(vary) - set(VARIED))
    if unknown:
        raise ValueError(f"vary takes a collection of {', '.join(VARIED)}; got {unknown[0]!r}")


def _copied(value: Any) -> Any:
    try:
        with without_modes():
            return copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"each run needs a copy of the function's arguments, and copying raised "
            f"{type(error).__name__}: {error}; detach tensors that are no leaves, and make what "
            "cannot be copied inside the function"
        ) from error


def _seen(result: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
    """Return the outcome of a run: its result, and the arguments after it."""
    of = getattr(fn, "__self__", fn)
    seen = snapshot(result, "result")
    if isinstance(of, torch.nn.Module):
        seen |= snapshot(of, type(of).__name__, strict=False, grads=True)
    for number, value in enumerate(args):
        seen |= snapshot(value, f"args[{number}]", strict=False, grads=True)
    for name, value in kwargs.items():
        seen |= snapshot(value, name, strict=False, grads=True)
    return seen


def _message(lines: list[str], number: int, vary: Collection[str], divergence: str) -> str:
    varied = ", ".join(name for name in VARIED if name in vary) or "nothing"
    head = f"run {number} gave different bits from run 0 (varied: {varied})"
    return "\n".join([head, *(f"  {line}" for line in lines), divergence])


@contextmanager
def _surroundings(number: int, vary: frozenset[str], threads: int) -> Iterator[None]:
    """Set the conditions of the run of a number, and restore the previous ones."""
    with ExitStack() as undo:
        if "threads" in vary:
            undo.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads((threads, 1, threads + 1)[number % 3])
        if "addresses" in vary:
            with without_modes():
                held = _churn(number)
            undo.callback(held.clear)
        if "schedule" in vary:
            undo.enter_context(cuda.host.schedule(number or None))
        if "memory" in vary:
            undo.enter_context(compiled_as_outside())
            undo.enter_context(FilledMemory(_BYTES[number % len(_BYTES)]))
        yield


def _churn(number: int) -> list[Tensor]:
    """Fill blocks of many sizes and free most of them; return those to hold during the run."""
    held: list[Tensor] = []
    devices = ["cpu", *(["cuda"] if torch.cuda.is_initialized() else [])]
    byte = _BYTES[number % len(_BYTES)]
    for device in devices:
        blocks = [
            torch.full((size + 64 * number,), byte, dtype=torch.uint8, device=device)
            for size in _SIZES
            for _ in range(3)
        ]
        held += blocks[number % 3 :: 3]
    return held
