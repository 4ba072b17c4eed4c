"""Kernels as programs write them with Triton, in a form that varies and in one that does not.

They are written as programs write them: without ``TRITON_INTERPRET``, with masks, ``constexpr``
arguments and the usual idioms. `CASES` says what each is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def histogram(bins, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(bins + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def weighted_histogram(bins, weights, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bin_ = tl.load(bins + at, mask=at < n, other=0)
    tl.atomic_add(out + bin_, tl.load(weights + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def scatter_add(index, source, out, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(source + row * columns + column, mask=column < columns)
    place = out + tl.load(index + row) * columns + column
    tl.atomic_add(place, value, mask=column < columns)


@triton.jit
def segment_add(first, order, source, out, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(tl.load(first + row), tl.load(first + row + 1)):
        value = tl.load(order + at) * columns + column
        total += tl.load(source + value, mask=column < columns, other=0.0)
    tl.store(out + row * columns + column, total, mask=column < columns)


@triton.jit
def softmax_backward(grad, result, out, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at, mask = row * columns + column, column < columns
    g = tl.load(grad + at, mask=mask, other=0.0)
    y = tl.load(result + at, mask=mask, other=0.0)
    tl.store(out + at, y * (g - tl.sum(g * y, axis=0)), mask=mask)


@triton.jit
def softmax_backward_in_pieces(grad, result, total, out, columns, BLOCK: tl.constexpr):
    """Adds a row's products without an atomic, by several programs."""
    row = tl.program_id(0)
    at = row * columns + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g, y = tl.load(grad + at), tl.load(result + at)
    tl.store(total + row, tl.load(total + row) + tl.sum(g * y, axis=0))
    tl.store(out + at, y * (g - tl.load(total + row)))


@triton.jit
def gamma_gradient_with_lock(grad, x, lock, out, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    mask = column < columns
    g = tl.load(grad + row * columns + column, mask=mask, other=0.0)
    part = g * tl.load(x + row * columns + column, mask=mask, other=0.0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + column, part + tl.load(out + column, mask=mask), mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def gamma_gradient_relaxed_lock(grad, x, lock, out, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    mask = column < columns
    g = tl.load(grad + row * columns + column, mask=mask, other=0.0)
    part = g * tl.load(x + row * columns + column, mask=mask, other=0.0)
    while tl.atomic_cas(lock, 0, 1, sem="relaxed") == 1:
        pass
    tl.store(out + column, part + tl.load(out + column, mask=mask), mask=mask)
    tl.atomic_xchg(lock, 0, sem="relaxed")


@triton.jit
def gamma_gradient_by_last(grad, x, partial, ticket, out, rows, columns, BLOCK: tl.constexpr):
    """The program that draws the last ticket adds all partial rows, in their order."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    mask = column < columns
    g = tl.load(grad + row * columns + column, mask=mask, other=0.0)
    part = g * tl.load(x + row * columns + column, mask=mask, other=0.0)
    tl.store(partial + row * columns + column, part, mask=mask)
    if tl.atomic_add(ticket, 1) == rows - 1:
        total = tl.zeros((BLOCK,), tl.float32)
        for at in range(rows):
            total += tl.load(partial + at * columns + column, mask=mask, other=0.0)
        tl.store(out + column, total, mask=mask)


@triton.jit
def split_k(a, b, out, k, SIZE: tl.constexpr, PIECE: tl.constexpr, ATOMIC: tl.constexpr):
    """A product of SIZE x k and k x SIZE; each program takes a piece of k."""
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    ka = tl.program_id(1) * PIECE + tl.arange(0, PIECE)[None, :]
    kb = tl.program_id(1) * PIECE + tl.arange(0, PIECE)[:, None]
    part = tl.dot(tl.load(a + i * k + ka), tl.load(b + kb * SIZE + j), input_precision="ieee")
    if ATOMIC:
        tl.atomic_add(out + i * SIZE + j, part)
    else:
        tl.store(out + tl.program_id(1) * SIZE * SIZE + i * SIZE + j, part)


@triton.jit
def permute_by_counter(expert, counter, capacity, out, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(expert + token)
    slot = tl.atomic_add(counter + chosen, 1)
    tl.store(out + chosen * capacity + slot, token)


@triton.jit
def permute_by_expert(expert, capacity, out, n, BLOCK: tl.constexpr):
    """Each program gathers the tokens of one expert, in their order."""
    mine = tl.program_id(0)
    count = 0
    for start in range(0, n, BLOCK):
        token = start + tl.arange(0, BLOCK)
        hit = (tl.load(expert + token, mask=token < n, other=-1) == mine).to(tl.int32)
        slot = count + tl.cumsum(hit, 0) - 1
        tl.store(out + mine * capacity + slot, token, mask=hit == 1)
        count += tl.sum(hit, 0)


@triton.jit
def top_1(x, out, n, BLOCK: tl.constexpr):
    """An integer maximum of value and place, so that the first of equal values wins."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0).to(tl.int64)
    tl.atomic_max(out, tl.max(value * 4294967296 + 4294967295 - at, axis=0))


@triton.jit
def above(x, threshold, count, out, n, BLOCK: tl.constexpr):
    """The places of large values, in the order in which programs find them."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    hit = (tl.load(x + at, mask=at < n, other=0) > threshold).to(tl.int32)
    first = tl.atomic_add(count, tl.sum(hit, 0))
    tl.store(out + first + tl.cumsum(hit, 0) - 1, at, mask=hit == 1)


@triton.jit
def cumsum(x, ready, prefix, out, BLOCK: tl.constexpr, SEM: tl.constexpr):
    """Waits for the sum of the programs before."""
    mine = tl.program_id(0)
    at = mine * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    before = 0.0
    if mine > 0:
        while tl.atomic_add(ready + mine - 1, 0, sem=SEM) == 0:
            pass
        before = tl.load(prefix + mine - 1)
    tl.store(prefix + mine, before + tl.sum(value, 0))
    tl.atomic_xchg(ready + mine, 1, sem=SEM)
    tl.store(out + at, before + tl.cumsum(value, 0))


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n if MASKED else at < n + BLOCK
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, tl.load(x + at, mask=mask) / (1 - p), 0.0), mask=mask)


CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})]


@triton.autotune(CONFIGS, key=["n"])
@triton.heuristics({"ROUNDS": lambda arguments: triton.cdiv(arguments["n"], arguments["BLOCK"])})
@triton.jit
def total(x, out, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    found = tl.zeros((BLOCK,), x.dtype.element_ty)
    for each in range(ROUNDS):
        at = each * BLOCK + tl.arange(0, BLOCK)
        found += tl.load(x + at, mask=at < n, other=0)
    tl.store(out, tl.sum(found, 0))


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and the verdict that it deserves.

    ``all_orders`` says whether every order is covered; ``found`` is a part of the verdict's line.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Callable[[], dict[str, Any]]
    verdict: str = "order-independent"
    all_orders: bool = False
    found: str = ""
    thorough: bool = False


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0), dtype=torch.int32)


def segments() -> dict[str, Any]:
    index = integers(4, 16)
    counts = torch.bincount(index, minlength=4).cumsum(0)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), counts])
    order = index.sort(stable=True).indices
    return {
        "first": first,
        "order": order,
        "source": random(16, 10),
        "out": torch.full((4, 10), 7.0),
        "columns": 10,
        "BLOCK": 16,
    }


def rows(**more: Any) -> dict[str, Any]:
    return {"grad": random(4, 10), "x": random(4, 10), "columns": 10, "BLOCK": 16, **more}


def experts(**more: Any) -> dict[str, Any]:
    return {"expert": integers(3, 64), "capacity": 64, "out": torch.full((3, 64), -1), **more}


def chain(sem: str) -> dict[str, Any]:
    return {
        "x": random(48), "ready": torch.zeros(3, dtype=torch.int32), "prefix": torch.empty(3),
        "out": torch.empty(48),
        "BLOCK": 16, "SEM": sem,
    }  # fmt: skip


def matrices(out: torch.Tensor, atomic: bool) -> dict[str, Any]:
    return {
        "a": random(16, 64), "b": random(64, 16), "out": out, "k": 64, "SIZE": 16, "PIECE": 16,
        "ATOMIC": atomic,
    }  # fmt: skip


CASES: dict[str, Case] = {
    "histogram-counts": Case(
        histogram,
        (8,),
        lambda: {
            "bins": integers(4, 100), "out": torch.zeros(4, dtype=torch.int32), "n": 100,
            "BLOCK": 16,
        },
        all_orders=True,
    ),
    "histogram-weighted": Case(
        weighted_histogram,
        (8,),
        lambda: {
            "bins": integers(4, 100), "weights": random(100), "out": torch.zeros(4), "n": 100,
            "BLOCK": 16,
        },
        "varies",
        found="out[",
    ),
    "scatter_add-atomic": Case(
        scatter_add,
        (16,),
        lambda: {
            "index": integers(4, 16), "source": random(16, 10), "out": torch.zeros(4, 10),
            "columns": 10, "BLOCK": 16,
        },
        "varies",
        found="out[",
    ),
    "scatter_add-segments": Case(segment_add, (4,), segments, all_orders=True),
    "softmax_backward-row": Case(
        softmax_backward,
        (4,),
        lambda: {
            "grad": random(4, 10), "result": random(4, 10).softmax(1), "out": torch.empty(4, 10),
            "columns": 10, "BLOCK": 16,
        },
        all_orders=True,
    ),
    "softmax_backward-pieces": Case(
        softmax_backward_in_pieces,
        (2, 2),
        lambda: {
            "grad": random(2, 32), "result": random(2, 32).softmax(1), "total": torch.zeros(2),
            "out": torch.empty(2, 32), "columns": 32, "BLOCK": 16,
        },
        "race",
        found="program (0, 1, 0) loads element 0 of 'total', which program (0, 0, 0) stores to",
    ),
    "gamma_gradient-lock": Case(
        gamma_gradient_with_lock,
        (4,),
        lambda: rows(lock=torch.zeros(1, dtype=torch.int32), out=torch.zeros(10)),
        "varies",
        found="out[",
    ),
    "gamma_gradient-relaxed_lock": Case(
        gamma_gradient_relaxed_lock,
        (4,),
        lambda: rows(lock=torch.zeros(1, dtype=torch.int32), out=torch.zeros(10)),
        "race",
        found="nothing orders the two",
    ),
    "gamma_gradient-partial": Case(
        gamma_gradient_by_last,
        (4,),
        lambda: rows(
            partial=torch.empty(4, 10), ticket=torch.zeros(1, dtype=torch.int32),
            out=torch.empty(10), rows=4,
        ),
        all_orders=True,
        thorough=True,
    ),
    "split_k-atomic": Case(
        split_k, (1, 4), lambda: matrices(torch.zeros(16, 16), True), "varies", found="out["
    ),
    "split_k-partial": Case(
        split_k, (1, 4), lambda: matrices(torch.zeros(4, 16, 16), False), all_orders=True
    ),
    "permutation-counter": Case(
        permute_by_counter,
        (4,),
        lambda: experts(counter=torch.zeros(3, dtype=torch.int32), BLOCK=16),
        "varies",
        found="out[",
    ),
    "permutation-expert": Case(
        permute_by_expert, (3,), lambda: experts(n=64, BLOCK=16), all_orders=True
    ),
    "top_k-maximum": Case(
        top_1,
        (4,),
        lambda: {
            "x": integers(9, 60), "out": torch.zeros(1, dtype=torch.int64), "n": 60, "BLOCK": 16,
        },
        all_orders=True,
    ),
    "top_k-slots": Case(
        above,
        (4,),
        lambda: {
            "x": integers(9, 60), "threshold": 4, "count": torch.zeros(1, dtype=torch.int32),
            "out": torch.full((60,), -1), "n": 60, "BLOCK": 16,
        },
        "varies",
        found="out[",
    ),
    "cumsum-look_back": Case(
        cumsum, (3,), lambda: chain("acq_rel"), all_orders=True
    ),
    "cumsum-relaxed": Case(cumsum, (3,), lambda: chain("relaxed"), "race", found="'prefix'"),
    "dropout-seed": Case(
        dropout,
        (4,),
        lambda: {
            "x": random(60), "out": torch.empty(60), "n": 60, "p": 0.5, "seed": 7, "BLOCK": 16,
            "MASKED": True,
        },
        all_orders=True,
    ),
    "dropout-no_mask": Case(
        dropout,
        (4,),
        lambda: {
            "x": random(60), "out": torch.empty(60), "n": 60, "p": 0.5, "seed": 7, "BLOCK": 16,
            "MASKED": False,
        },
        "out of bounds",
        found="program (3, 0, 0) loads element 60 of 'x', which has 60",
    ),
    "autotuned_sum-int32": Case(
        total,
        (1,),
        lambda: {"x": integers(9, 100), "out": torch.zeros(1, dtype=torch.int32), "n": 100},
        all_orders=True,
    ),
    "autotuned_sum-float32": Case(
        total,
        (1,),
        lambda: {"x": random(100), "out": torch.empty(1), "n": 100},
        "varies",
        found="config {'BLOCK': 16}",
    ),
}  # fmt: skip
