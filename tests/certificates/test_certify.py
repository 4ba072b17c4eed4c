"""``detmode.certify`` of CUDA C++: a table of kernels, each with the verdict that is right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import detmode
from detmode.cuda import CompileError

FILE = Path(__file__).with_name("kernels.cu")

pytestmark = pytest.mark.skipif(
    detmode.cuda.unavailable("cpu") is not None, reason="needs a C++ compiler"
)


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def integers(n: int, below: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(below, (n,), generator=generator, dtype=torch.int32)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def counters(*shape: int) -> torch.Tensor:
    return zeros(*shape, dtype=torch.int32)


class Case(NamedTuple):
    """One launch.

    Args:
        kernel: the entry.
        verdict: the right one.
        grid: blocks.
        block: threads.
        arguments: makes them.
        more: further arguments of ``certify``.
        says: a part of the summary.
    """

    kernel: str
    verdict: str
    grid: Any
    block: Any
    arguments: Callable[[], dict[str, Any]]
    more: dict[str, Any] = {}
    says: str = ""


def split_k(**more: Any) -> dict[str, Any]:
    return {"a": floats(512), "b": floats(512), "out": zeros(1), "n": 512, **more}


def scan(dtype: torch.dtype) -> dict[str, Any]:
    x = floats(256) if dtype.is_floating_point else integers(256, 10)
    tiles = {"own": zeros(8, dtype=dtype), "prefix": zeros(8, dtype=dtype)}
    return {
        "x": x,
        "out": torch.empty_like(x),
        **tiles,
        "state": counters(8),
        "ticket": counters(1),
    }


ORDERED, VARIES, RACE = "order-independent", "varies", "race"
SOFTMAX = {"grad": floats(4, 64), "y": floats(4, 64).softmax(1), "columns": 64}

CASES = (
    Case(
        "histogram",
        ORDERED,
        4,
        64,
        lambda: {"bins": integers(250, 7), "counts": counters(7), "n": 250, "n_bins": 7},
        {"shared_memory": 28},
        "all orders",
    ),
    Case(
        "histogram_of_weights",
        VARIES,
        4,
        64,
        lambda: {"bins": integers(250, 7), "x": floats(250), "sums": zeros(7), "n": 250},
    ),
    Case(
        "scatter_by_owner",
        ORDERED,
        2,
        32,
        lambda: {
            "index": integers(99, 50),
            "x": floats(99),
            "out": zeros(50),
            "n": 99,
            "n_out": 50,
        },
        {"outputs": ["out"]},
        "all orders of blocks (20 schedules)",
    ),
    Case(
        "scatter_any",
        RACE,
        2,
        64,
        lambda: {"index": integers(99, 50), "x": floats(99), "out": zeros(50), "n": 99},
        says="writes 4 bytes of argument 'out'",
    ),
    Case("softmax_backward", ORDERED, 4, 64, lambda: {**SOFTMAX, "out": zeros(4, 64)}),
    Case("softmax_backward_atomic", VARIES, 4, 64, lambda: {**SOFTMAX, "out": zeros(4, 64)}),
    Case(
        "gamma_by_column",
        ORDERED,
        2,
        4,
        lambda: {
            "grad": floats(9, 32),
            "x": floats(9, 32),
            "out": zeros(32),
            "rows": 9,
            "columns": 8,
        },
    ),
    Case(
        "gamma_by_rows",
        VARIES,
        3,
        32,
        lambda: {
            "grad": floats(9, 32),
            "x": floats(9, 32),
            "out": zeros(32),
            "rows": 9,
            "columns": 32,
        },
    ),
    Case(
        "split_k_last_block",
        ORDERED,
        4,
        64,
        lambda: split_k(parts=zeros(4), has_fence=True),
        says="all orders",
    ),
    Case(
        "split_k_last_block",
        RACE,
        4,
        64,
        lambda: split_k(parts=zeros(4), has_fence=False),
        says="argument 'parts'",
    ),
    Case("split_k_atomic", VARIES, 4, 64, split_k, says="out[0]"),
    Case(
        "permute_by_rank",
        ORDERED,
        2,
        32,
        lambda: {"expert": integers(60, 4), "rows": counters(60), "n": 60, "n_experts": 4},
        {"outputs": ["rows"]},
    ),
    Case(
        "permute_by_counter",
        VARIES,
        2,
        32,
        lambda: {
            "expert": integers(60, 2).sort().values,
            "first": torch.tensor([0, int((integers(60, 2) == 0).sum())], dtype=torch.int32),
            "used": counters(2),
            "rows": counters(60),
            "n": 60,
        },
    ),
    Case(
        "top_k", ORDERED, 1, 32, lambda: {"x": floats(99), "indices": counters(5), "n": 99, "k": 5}
    ),
    Case(
        "above_threshold",
        VARIES,
        2,
        64,
        lambda: {
            "x": floats(99),
            "indices": counters(99),
            "count": counters(1),
            "n": 99,
            "threshold": 0.5,
        },
    ),
    Case("scan_of_integers", ORDERED, 8, 32, lambda: scan(torch.int32)),
    Case("scan_of_floats", VARIES, 8, 32, lambda: scan(torch.float32)),
    Case(
        "transpose",
        ORDERED,
        (2, 2),
        (8, 8),
        lambda: {"x": floats(16, 16), "out": zeros(16, 16), "size": 16, "has_barrier": True},
        {"outputs": ["out"]},
    ),
    Case(
        "transpose",
        RACE,
        (2, 2),
        (8, 8),
        lambda: {"x": floats(16, 16), "out": zeros(16, 16), "size": 16, "has_barrier": False},
        says="shared memory",
    ),
    Case(
        "stencil",
        ORDERED,
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        {"constants": {"weights": torch.tensor([0.25, 0.5, 0.25])}},
    ),
    Case(
        "stencil",
        "fault",
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        {"outputs": ["out"]},
        "output out[0] is never written",
    ),
    Case("stencil_in_place", RACE, 2, 32, lambda: {"x": floats(64), "n": 64}),
    Case(
        "stencil_past_the_end",
        "out of bounds",
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        says="reads 4 bytes out of bounds",
    ),
    Case(
        "shift_past_the_end",
        "out of bounds",
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        says="256 bytes after the start of argument 'out', which has 256",
    ),
    Case(
        "maximum_by_swaps",
        ORDERED,
        2,
        32,
        lambda: {"x": floats(64), "out": counters(1), "n": 64},
    ),
    Case(
        "sum_under_lock",
        VARIES,
        2,
        16,
        lambda: {"x": floats(32), "out": zeros(1), "lock": counters(1), "n": 32},
    ),
    Case("waits_for_the_next", ORDERED, 4, 32, lambda: {"state": counters(4)}),
    Case("waits_for_ever", "fault", 2, 32, lambda: {"state": counters(1)}, says="2 blocks spin"),
    Case(
        "divergent_barrier", "fault", 1, 32, lambda: {"out": zeros(32)}, says="barrier divergence"
    ),
    Case(
        "add_pairs",
        VARIES,
        2,
        32,
        lambda: {"x": floats(128).half(), "out": zeros(2, dtype=torch.float16), "n": 64},
    ),
    Case(
        "mean_of_grid",
        ORDERED,
        3,
        64,
        lambda: {"x": floats(192), "parts": zeros(3), "out": zeros(192)},
    ),
)


def certificate(case: Case) -> detmode.Certificate:
    return detmode.certify(
        FILE, case.arguments(), entry=case.kernel, grid=case.grid, block=case.block, **case.more
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel}-{case.verdict}")
def test_verdicts(case):
    """Every kernel of the table is judged right, and the reason names what is wrong with it."""
    found = certificate(case)
    assert found.verdict == case.verdict, found
    assert case.says in found.summary


def test_arguments_are_left_alone():
    """A certificate runs on copies; the arguments keep their bits."""
    case = next(case for case in CASES if case.kernel == "split_k_atomic")
    arguments = case.arguments()
    detmode.certify(FILE, arguments, entry=case.kernel, grid=4, block=64, repeats=2)
    assert arguments["out"].tolist() == [0.0]
