"""``assert_reproducible``: what it varies, compares, says, and leaves behind."""

import dataclasses
import itertools
import os
import random
import re
import types
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

import detmode
from detmode import cuda
from detmode.mode.filled_memory import FilledMemory
from detmode.testing.reproducible import VARIED, assert_reproducible
from tests.shared import needs

WITHOUT_THREADS = ("addresses", "memory", "schedule")
_calls = itertools.count()


@torch.library.custom_op("detmode_testing::vary", mutates_args=())
def vary(x: Tensor) -> Tensor:
    """Adds to one element what no two calls add."""
    y = x.clone()
    y.view(-1)[0] += 1 + next(_calls)
    return y


@vary.register_fake
def _(x):
    return torch.empty_like(x)


def test_the_result_of_the_first_run():
    """The result of fn comes back; its arguments are as they were, and its keywords reach it."""
    x = torch.arange(3.0)
    result = assert_reproducible(lambda x, *, by: x.mul_(by), x, by=2)
    assert result.tolist() == [0, 2, 4]
    assert x.tolist() == [0, 1, 2]


@dataclasses.dataclass
class Output:
    loss: object
    hidden: object = None


def changing(function, *values):
    """A function that is called with one value after another, and begins again."""
    turns = itertools.cycle(values)
    return lambda *arguments: function(next(turns))


def one_of_three(turn):
    x = torch.zeros(2, 3, dtype=torch.float64)
    x[1, 0], x[1, 1] = turn / 4, torch.nan if turn else 0.0
    return x


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda x: vary(x), "result: 1 of 3 elements differ (float32[3]), the largest"),
        (lambda x: {"a": [x, vary(x)]}, "result['a'][1]: 1 of 3 elements differ"),
        (lambda x: [x.copy_(vary(x))][1:], "args[0]: 1 of 3 elements differ"),
        (lambda x: vary(x).sum().item(), "result: 5.0 and 6.0"),
        (lambda x: vary(x).numpy(), "result: array of float32[3] and array of float32[3]"),
        (lambda x: x[: next(_calls)].tolist(), "result[1]: only in one of the runs"),
        (lambda x: torch.zeros(1 + next(_calls)), "result: float32[2] and float32[3]"),
        (lambda x: torch.tensor([1.0, 1 / (2 - next(_calls) or 0.5)]), "1 of 2 elements differ"),
        (lambda x: -0.0 if next(_calls) % 2 else 0.0, "result: -0.0 and 0.0"),
        (changing(lambda turn: turn * 1j, 1.0, 2.0), "result: 1j and 2j"),
        (changing(lambda turn: complex(1, turn), 0.0, -0.0), "result: (1+0j) and (1-0j)"),
        (lambda x: str(next(_calls)), "result: '1' and '2'"),
        (
            changing(one_of_three, 0.0, 1.0),
            "result: 2 of 6 elements differ (float64[2, 3]), the largest difference is 0.25, "
            "1 of them are NaN or Inf, first at [1, 0]",
        ),
        (changing(lambda zero: torch.tensor([zero]), 0.0, -0.0), "the largest difference is 0"),
        (
            changing(lambda turn: torch.eye(3).to_sparse() * turn, 0.0, 1.0),
            "result.values: 3 of 3 elements differ",
        ),
        (lambda x: Output(1.5, (vary(torch.ones(1)),)), "result.hidden[0]: 1 of 1"),
        (lambda x: (x.requires_grad_() * vary(x.detach())).sum().backward(), "args[0].grad: 1 of"),
    ],
)
def test_what_differs(function, line):
    """The message names each value that differs, with its path, and by how much."""
    global _calls
    _calls = itertools.count(1)
    with pytest.raises(AssertionError, match="run 1 gave different bits from run 0") as error:
        assert_reproducible(function, torch.ones(3))
    assert line in str(error.value)


@pytest.mark.parametrize(
    "function",
    [
        changing(lambda x: x, torch.zeros(2, 3), torch.zeros(3, 2).t()),
        lambda x: torch.full((3,), torch.nan),
        lambda x: [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()],
        lambda x: torch.eye(3).to_sparse_csc(),
        lambda x: Output(torch.ones(1), torch.ones(3).max(0)),
        lambda x: (torch.rand(2), random.random(), np.random.rand(3)),
        # A resize keeps what was there, and what is filled is not read.
        lambda x: (torch.ones(4).resize_(2), torch.empty(4).fill_(2.0)),
    ],
)
def test_what_does_not_differ(function):
    """A stride is no difference, a NaN is itself; all parts and fields are the same.

    Each run begins with the same states of all generators; afterwards they are as before.
    """
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
    assert_reproducible(function, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[2]) == before[1:]


def test_gradients_are_compared():
    """A step that returns nothing is compared by the gradients and buffers that it leaves."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

    def step(model, x):
        model(x).square().sum().backward()

    assert_reproducible(step, model, torch.rand(4, 3), vary=WITHOUT_THREADS)
    assert model[0].weight.grad is None
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize("method", [lambda model: model, lambda model: model.forward])
def test_a_module_is_copied(method):
    """The state of a module, or of a method's object, is the same in each run."""
    model = torch.nn.BatchNorm1d(3, momentum=0.5)
    assert_reproducible(method(model), torch.rand(4, 3), vary=WITHOUT_THREADS)
    assert model.num_batches_tracked == 0


def test_what_is_captured_is_named():
    """A model that a closure changes is not copied, and the message says what differed."""
    weight = torch.zeros(3)
    with pytest.raises(AssertionError, match="captured weight: 3 of 3 elements differ"):
        assert_reproducible(lambda: weight.add_(1).clone())
    assert_reproducible(lambda: weight.clone())


def test_what_differs_from_outside_is_no_guess():
    """Tensors in an unknown object cannot be named; the message says that no call made them."""
    holder = types.SimpleNamespace(weight=torch.zeros(3))
    with pytest.raises(AssertionError, match="no call before it gave other bits") as error:
        assert_reproducible(lambda: holder.weight.add_(1).clone())
    assert "the inputs already differed when they entered the run" in str(error.value)


def test_fresh_memory_is_filled():
    """A read of memory that nobody has written shows, and the operator that reads is named."""
    with pytest.raises(AssertionError) as error:
        assert_reproducible(lambda x: (x + torch.empty(3)).sum(), torch.ones(3))
    named = r"aten::add.Tensor at .*test_reproducible.py:\d+ reads uninitialized memory"
    assert re.search(named, str(error.value))


@pytest.mark.parametrize("byte", [3, 200])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(5, dtype=x.dtype),
        torch.empty_like,
        lambda x: x.new_empty(5),
        lambda x: x.new_empty_strided((2, 2), (1, 2)),
        lambda x: torch.empty_strided((2, 2), (1, 2), dtype=x.dtype),
        lambda x: torch.empty_permuted((2, 3), (1, 0), dtype=x.dtype),
    ],
    ids=["empty", "like", "new", "new_strided", "strided", "permuted"],
)
def test_fresh_memory_has_the_byte(make, byte):
    """Each function's memory has the content of the run, whatever the allocator left there."""
    with FilledMemory(byte):
        memory = make(torch.ones(5, dtype=torch.uint8))
    assert memory.unique().tolist() == [byte]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool])
def test_fresh_memory_differs(dtype):
    """Of any dtype, it has another content in each run."""
    with pytest.raises(AssertionError, match="elements differ"):
        assert_reproducible(lambda: torch.empty(4, dtype=dtype), vary=["memory"])


@pytest.mark.parametrize("byte", [3, 200])
def test_fresh_memory_in_a_branch(byte):
    """The body of a higher-order operator gets memory with that content as well."""
    x = torch.ones(9, dtype=torch.uint8)
    with FilledMemory(byte):
        y = torch.cond(torch.tensor(True), torch.empty_like, torch.clone, (x,))
    assert y.tolist() == [byte] * 9


@pytest.mark.parametrize("byte", [3, 200])
def test_fresh_memory_in_an_operator_of_the_program(byte):
    """The body of a custom operator gets memory with that content, and a read of it shows."""
    with torch.library._scoped_library("detmode_reproducible", "FRAGMENT"):

        @torch.library.custom_op("detmode_reproducible::grow", mutates_args=())
        def grow(x: torch.Tensor, size: int) -> torch.Tensor:
            return x.new_empty(size).clone()

        call = torch.ops.detmode_reproducible.grow
        with FilledMemory(byte):
            assert call(torch.ones(1, dtype=torch.uint8), 9).tolist() == [byte] * 9
        # The system gives so many bytes as zeros, each time.
        with pytest.raises(AssertionError, match="elements differ"):
            assert_reproducible(lambda x: call(x, 1 << 22), torch.ones(1), vary=["memory"])


def test_threads_are_varied_and_restored():
    """Runs get different numbers of threads, with vary=() the same; afterwards it is as before."""
    before = torch.get_num_threads()
    with pytest.raises(AssertionError, match=rf"result: {before} and \d+"):
        assert_reproducible(torch.get_num_threads)
    assert torch.get_num_threads() == before
    assert assert_reproducible(torch.get_num_threads, vary=()) == before
    with pytest.raises(AssertionError, match="varied: threads"):
        assert_reproducible(torch.get_num_threads, vary=["threads"])


def test_what_fn_raises():
    """An exception of the function comes through, and everything is restored."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    runs = itertools.count()

    def function():
        torch.rand(1)
        if next(runs) == 1:
            raise LookupError("planted")
        return torch.ones(1)

    with pytest.raises(LookupError, match="planted"):
        assert_reproducible(function)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_the_operator_is_named():
    """The message ends with the first operator at which two recorded runs diverge, and its line."""

    def function(x):
        y = x * 2
        y = vary(y)  # here
        return (y + 1).sum()

    with pytest.raises(AssertionError) as error:
        assert_reproducible(function, torch.ones(3))
    here = function.__code__.co_firstlineno + 2
    assert f"the runs diverge at detmode_testing::vary.default at {__file__}:{here}" in str(
        error.value
    )
    assert "the same inputs gave different outputs" in str(error.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="by fork")
def test_a_function_that_forks():
    """The end of its child takes nothing from the runs that the message is made of."""

    def forks(x):
        if (child := os.fork()) == 0:
            try:
                weakref.finalize._exitfunc()  # as at the end of any process
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return vary(x)

    with pytest.raises(AssertionError, match="the runs diverge at detmode_testing::vary"):
        assert_reproducible(forks, torch.ones(3))


def test_what_no_operator_shows():
    """A line says that recorded runs are the same."""
    numbers = itertools.count()
    with pytest.raises(AssertionError, match="all runs made the same calls with the same bytes"):
        assert_reproducible(lambda: next(numbers))


@needs.compiler
def test_a_simulated_mode():
    """In a mode that simulates CUDA, the schedule varies, and substitutes give the same bits."""
    index = torch.zeros(300, dtype=torch.int64)
    with detmode.DeterministicMode(simulate="cuda") as mode:
        assert_reproducible(
            lambda x: torch.zeros(2).index_add(0, index, x), torch.rand(300), vary=["schedule"]
        )
    assert [record.action for record in mode.records] == ["substitute"]
    assert mode.records[0].count == 3
    with pytest.raises(AssertionError, match="result: 'None' and '1'"):
        assert_reproducible(lambda: str(cuda.host._schedule.seed), vary=["schedule"])


def test_every_way_of_varying_can_be_left_out():
    """Whatever is varied, a function that does not depend on it passes."""
    for number in range(len(VARIED) + 1):
        for vary_only in itertools.combinations(VARIED, number):
            assert_reproducible(torch.sin, torch.rand(5), vary=vary_only)


@pytest.mark.parametrize(
    ("error", "message", "ask"),
    [
        (ValueError, "runs must be .* at least 2, got 1", lambda ask: ask(pytest.fail, runs=1)),
        (ValueError, "runs must be .*, got True", lambda ask: ask(pytest.fail, runs=True)),
        (ValueError, "got 'luck'", lambda ask: ask(pytest.fail, vary=["luck"])),
        (ValueError, "got 'threads'", lambda ask: ask(pytest.fail, vary="threads")),
        (ValueError, "nothing to compare", lambda ask: ask(lambda: None)),
        (
            TypeError,
            r"cannot compare result\.loss bit for bit: .* object",
            lambda ask: ask(lambda: Output(object())),
        ),
        (
            TypeError,
            r"result bit for bit: float32\[2\] has no plain data",
            lambda ask: ask(lambda: torch.ones(2, device="meta")),
        ),
        (
            TypeError,
            "detach tensors that are no leaves",
            lambda ask: ask(torch.sin, torch.ones(3, requires_grad=True) * 2),
        ),
        (
            TypeError,
            "make what cannot be copied inside",
            lambda ask: ask(torch.stack, (each for each in torch.ones(3))),
        ),
    ],
)
def test_what_is_refused(error, message, ask):
    """Impossible arguments, before anything runs, and what cannot be compared or copied."""
    with pytest.raises(error, match=message):
        ask(assert_reproducible)


@pytest.mark.parametrize("runs", [2, 5])
def test_how_many_runs(runs):
    """The function runs that many times, and no more."""
    calls = []
    assert_reproducible(lambda: calls.append(1) or torch.ones(1), runs=runs)
    assert len(calls) == runs
