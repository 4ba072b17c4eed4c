"""Shared by the tests of a GPU's surroundings: one call of each operator, and things around it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from timing import tensors_of as tensors_in

from detmode import DeterministicMode
from detmode.table.conditions import has_strides
from detmode.table.rule_table import resolve
from detmode.verify.cases import Case, call, cases, tensors_of
from tests.shared import needs

DEVICES = (pytest.param("cpu", marks=needs.compiler), pytest.param("cuda", marks=pytest.mark.cuda))
"""The host runner and the GPU, for tests that say something on both."""
CYCLES = 20_000_000
"""About 10 ms of a GPU: longer than the host takes for a call and what is around it."""


def chosen() -> list[Case]:
    """For each functional operator its case with the most elements, in float32 where it has that.

    No argument is expanded or sparse: the tests write to them.
    """

    def size(case: Case) -> int:
        tensors = tensors_in(case.sample.arguments(case.dtype))
        dense = all(has_strides(tensor) and 0 not in tensor.stride() for tensor in tensors)
        return sum(tensor.numel() for tensor in tensors) if dense else -1

    by_op: dict[str, tuple[list[Case], list[Case]]] = {}
    for case in cases():
        func = resolve(case.sample.op)
        if func is not None and not func._schema.is_mutable:
            by_op.setdefault(case.sample.op, ([], []))[case.dtype != torch.float32].append(case)
    found = []
    for groups in by_op.values():
        # Arguments are made only of what can be chosen: of all cases that takes seconds.
        largest = (max(group, key=size) for group in groups if group)
        found += islice((case for case in largest if size(case) >= 0), 1)
    return found


def arguments_of(case: Case, seed: int = 0) -> dict[str, Any]:
    """The case's arguments on the GPU."""
    return case.sample.arguments(case.dtype, "cuda", seed)


def substituted(case: Case, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The substitute's result on the current stream; nothing waits for it."""
    with DeterministicMode() as mode:
        result = call(case.sample, arguments)
    assert any(record.action == "substitute" for record in mode.records)
    return tensors_of(result)


def by_substitutes(run: Callable[[], Any], device: str, **options: Any) -> Any:
    """The result of ``run`` by substitutes alone, on a GPU or by the host runner."""
    with DeterministicMode(simulate="cuda" if device == "cpu" else None, **options) as mode:
        result = run()
    assert {row.action for row in mode.records} == {"substitute"}
    return result


def poison(byte: int) -> None:
    """Leave memory in the allocator's hands that is full of one byte, in small and large blocks."""
    blocks = [
        torch.full((n_bytes,), byte, dtype=torch.uint8, device="cuda")
        for n_bytes, count in ((512, 256), (1 << 19, 32), (1 << 24, 8))
        for _ in range(count)
    ]
    del blocks


@contextmanager
def held_up() -> Iterator[None]:
    """Whatever the block puts on the current stream begins only after a while."""
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    yield


CHOSEN = chosen()
