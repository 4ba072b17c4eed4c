"""The recorder writes down what launchers do, or refuses with a reason; players repeat it."""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.cuda import (
    allocation,
    clone,
    device,
    launch,
    new_empty,
    new_full,
    new_zeros,
    python_player,
)
from detmode.cuda.memory import share_memory
from detmode.cuda.plan import (
    LARGEST,
    NONZERO,
    AtenCall,
    Check,
    Copy,
    Empty,
    Fill,
    Launch,
    Plan,
    Pointer,
)
from detmode.cuda.python_player import player
from detmode.cuda.recording import host_check, one_above, recording, thread
from detmode.process.dispatch import own_calls
from detmode.process.torch_settings import deterministic_flag
from tests.shared import needs
from tests.shared.cuda_sources import KERNELS

pytestmark = needs.compiler


def scaled(x: Tensor, out: Tensor, factor: float = 2.0) -> Tensor:
    launch(KERNELS, "scale<float>", x.numel(), n=x.numel(), factor=factor, input=x, output=out)
    return out


def record(function: Callable[..., Any], *inputs: Tensor, writes: tuple[int, ...] = ()) -> Any:
    """The plan of a call, or why there is none."""
    with recording(inputs, writes) as here:
        result = function(*inputs)
    assert thread.recorder is None
    return here.plan(result) or here.problem


def play(plan: Plan, *inputs: Tensor) -> Any:
    return player(plan)(*inputs, *(tensor.data_ptr() for tensor in inputs))


def test_temporaries_are_one_allocation() -> None:
    """Memory that does not leave the call is one tensor of bytes, in steps of 512."""

    def double(x: Tensor) -> tuple[Tensor, None, Tensor]:
        first, second = new_empty(x, (200,)), new_zeros(x, (3,))
        result = scaled(scaled(x, first), new_empty(x, (200,)))
        return result, None, scaled(second, new_empty(x, (3,)))

    plan = record(double, torch.ones(200))
    empties = [step for step in plan.steps if isinstance(step, Empty)]
    assert [(step.form.dtype, step.form.sizes) for step in empties] == [
        *((torch.uint8, (1536,)), (torch.float32, (200,)), (torch.float32, (3,)))
    ]
    (fill,) = (step for step in plan.steps if isinstance(step, Fill))
    assert fill == Fill(Pointer(1, 1024), 12, b"\0" * 4)
    assert (plan.results, plan.is_tuple) == ((2, None, 3), True)
    first, nothing, second = play(plan, torch.full((200,), 3.0))
    assert (first.tolist(), nothing, second.tolist()) == ([12.0] * 200, None, [0.0] * 3)


def test_operators_are_called_under_the_same_flag() -> None:
    """A launcher may turn PyTorch's flag off around an operator, and then a player does."""
    flags: list[bool] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.sort.default:
                flags.append(torch.are_deterministic_algorithms_enabled())
            return func(*args, **(kwargs or {}))

    def sorted_twice(x: Tensor) -> Tensor:
        values, _ = deterministic_flag(False).around(torch.sort, x)
        return torch.sort(values)[0]

    torch.use_deterministic_algorithms(True)
    try:
        plan = record(sorted_twice, torch.tensor([2.0, 1.0]))
        with Noting():
            assert play(plan, torch.tensor([4.0, 3.0])).tolist() == [3.0, 4.0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert flags == [False, True]


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: torch.sort(x)[0], "aten::sort"),
        (lambda x: x.double(), "aten::copy_"),
        (lambda x: new_full(x, (2,), 1.5), "aten::fill_"),
    ],
    ids=["an operator", "a copy of elements", "a pattern"],
)
def test_operators_are_called_as_detmodes_own(
    function: Callable[[Tensor], Tensor], operator: str
) -> None:
    """Kernels that are registered for listed operators let them pass."""
    calls: list[tuple[str, bool]] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append((func._schema.name, own_calls.here()))
            return func(*args, **(kwargs or {}))

    plan = record(function, torch.ones(4))
    with Noting():
        play(plan, torch.ones(4))
    assert [is_own for name, is_own in calls if name == operator] == [True]


def test_results_that_are_views() -> None:
    """All of what was allocated may be returned in another form; nothing has no memory."""
    plan = record(lambda x: (scaled(x, new_empty(x, (4,))).view(2, 2), x[:0]), torch.ones(4))
    whole, nothing = play(plan, torch.arange(4.0))
    assert whole.tolist() == [[0, 2], [4, 6]]
    assert nothing.shape == (0,)


def test_copies_and_fills() -> None:
    """Dense copies are bytes, others are of elements; a fill has the pattern of its number."""

    def copies(x: Tensor) -> tuple[Tensor, ...]:
        return (
            clone(x),
            x.t().clone(memory_format=torch.contiguous_format),
            x.double(),
            new_full(x, (2, 2), float("-inf"), torch.float16),
        )

    plan = record(copies, torch.arange(6.0).view(2, 3))
    *copied, filled = (step for step in plan.steps if not isinstance(step, Empty))
    assert [step.nbytes for step in copied if isinstance(step, Copy)] == [24, None, None]
    assert isinstance(filled, Fill)
    x = torch.randn(2, 3)
    for result, wanted in zip(play(plan, x), copies(x), strict=True):
        assert torch.equal(result, wanted)
        assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())


def test_operators_of_aten_are_called() -> None:
    """One that allocates or writes is called again, under the flag that it was called under."""

    def ordered(x: Tensor) -> Tensor:
        values, places = torch.sort(x, stable=True)
        out = new_empty(x, (4,))
        torch.index_select(values, 0, places, out=out)
        return out

    plan = record(ordered, torch.tensor([3.0, 1.0, 2.0, 0.0]))
    assert sum(isinstance(step, AtenCall) for step in plan.steps) == 2
    assert plan.words(lambda step: 0) is None
    x = torch.tensor([9.0, -1.0, 5.0, 7.0])
    assert torch.equal(play(plan, x), ordered(x))


def test_checks_are_made_again() -> None:
    """A check of values on the CPU raises in a plan as it does in a launcher."""

    @host_check
    def check(x: Tensor, most: float) -> None:
        if x.max().item() > most:
            raise IndexError("too large")

    def checked(x: Tensor) -> Tensor:
        check(x, 9.0)
        return scaled(x, new_empty(x, (2,)))

    plan = record(checked, torch.ones(2))
    assert [type(step) for step in plan.steps] == [Empty, Check, Launch]
    assert play(plan, torch.full((2,), 8.0)).tolist() == [16.0, 16.0]
    with pytest.raises(IndexError, match="too large"):
        play(plan, torch.full((2,), 10.0))


_ELSEWHERE = torch.ones(3)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda x: scaled(_ELSEWHERE, new_empty(x, (3,))), "memory of neither the inputs"),
        (lambda x: new_full(x, (2,), x[0].item()), "values are read on the host"),
        (lambda x: new_full(x, (2,), x.tolist()[0]), "values are read on the host"),
        (lambda x: clone(x.nonzero()), "the size of a result depends on values"),
        (lambda x: scaled(x, torch.rand(3)), "random numbers are drawn"),
        (lambda x: clone(x)[1:], "a result is a part of other memory"),
        (lambda x: (x.sum(), clone(x))[1], "nothing uses its result"),
        (lambda x: 1, "a result is no tensor"),
    ],
)
def test_what_is_not_known_is_refused(function: Callable[..., Any], problem: str) -> None:
    """The call is as it would have been; the reason says what a plan does not hold for."""
    found = record(function, torch.ones(3))
    assert isinstance(found, str)
    assert problem in found
    assert thread.recorder is None
    assert isinstance(record(clone, torch.ones(3)), Plan)


def test_a_plan_that_may_look_begins_with_looks() -> None:
    """A look finds one more input; one after a step, or at other values, is refused."""

    def looked(function: Callable[..., Any], *inputs: torch.Tensor) -> Plan | str | None:
        with recording(inputs) as recorder:
            result = function(*inputs)
        return recorder.plan(result, may_look=True) or recorder.problem

    x, numbers = torch.tensor([0.0, 2.0, 3.0]), torch.tensor([4, 1])
    plan = looked(lambda x, n: new_full(x, (one_above(n, 2), len(x.nonzero())), 1), x, numbers)
    assert isinstance(plan, Plan)
    assert plan.looks == ((LARGEST, 1, 2), (NONZERO, 0, 0))
    assert [form.sizes for form in plan.inputs] == [(3,), (2,), (2, 1)]
    problem = "the size of a result depends on values"
    assert problem in str(looked(lambda x: (clone(x), x.nonzero())[0], x))
    assert problem in str(looked(lambda x: clone(x[1:].nonzero()), x))
    assert looked(lambda n: new_full(n, (one_above(n + 1, 0),), 1), numbers) == (
        "values are read on the host"
    )


def test_inputs_that_share_memory_are_refused() -> None:
    """An address would not say which input is meant; empty ones share none."""
    x = torch.ones(6)
    assert record(lambda one, _: clone(one), x[:4], x[3:]) == "inputs share memory"
    assert isinstance(record(lambda one, _: clone(one), x[:3], x[3:]), Plan)
    assert not share_memory([(0, 8), (8, 9), (4, 4)])
    assert share_memory([(8, 9), (0, 9)])


def test_an_error_ends_the_recording() -> None:
    """The error of a launcher is raised, and no mode is left on a stack."""
    with pytest.raises(ZeroDivisionError), recording([torch.ones(1)]):
        raise ZeroDivisionError
    assert thread.recorder is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0


def test_the_tensors_of_a_call_are_let_go() -> None:
    """A plan refers to no tensor: autograd takes a gradient over that nothing else refers to."""
    import weakref

    x = torch.ones(3)
    with recording([x]) as here:
        result = scaled(x, new_empty(x, (3,)))
    plan = here.plan(result)
    end = weakref.ref(result)
    del here, result
    assert end() is None
    assert plan is not None


def test_a_plan_is_words() -> None:
    """The words for C++ have each step in turn, and launches by the number that is given."""

    def step(x: Tensor) -> Tensor:
        return scaled(x, new_empty(x, (3,)))

    plan = replace(record(step, torch.ones(3)), device="cuda")
    words = plan.words(lambda launched: 77)
    assert words[:4] == [1, 6, 1, 3]  # Empty, float32, one dimension of three
    assert words[5:13] == [4, 77, 1, 1, 1, 256, 1, 1]
    assert words[-3:] == [0, 1, 1]  # the end, one result, in slot 1


@needs.nvrtc
def test_the_driver_gets_the_launchers_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plan for a GPU makes the driver's call that the launcher makes, with its own addresses."""

    def steps(x: Tensor) -> Tensor:
        between = new_zeros(x, (300,))
        return scaled(scaled(x, between), new_empty(x, (300,)), 3.0)

    class OnGpu(python_player._OnGpu):
        empty = staticmethod(allocation._on_cpu)

    plan = record(steps, torch.ones(300))
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from tests.cuda.test_device import Driver

    driver = Driver(monkeypatch, tmp_path)
    driver.count = 4
    fills: list[tuple[int, ...]] = []
    functions = driver.devices.append, lambda *numbers: fills.append(numbers), ctypes.memmove
    x = torch.ones(300)
    with (
        patch.dict(python_player.WRITERS, cpu=OnGpu),
        patch.object(device, "runtime_functions", return_value=functions),
    ):
        repeat = player(plan, 0)
        driver.devices.clear()  # of what was loaded
        result = repeat(x, x.data_ptr())
    assert [head[1:] for head in driver.launched] == [(2, 1, 1, 256, 1, 1, 0, 1234)] * 2
    first, second = (struct.unpack("=QQqd", b"".join(values)) for values in driver.values)
    between = first[1]
    assert first == (x.data_ptr(), between, 300, 2.0)
    assert second == (between, result.data_ptr(), 300, 3.0)
    assert fills == [(between, 0, 1200, 1234)]
    # Once, before the first of them.
    assert driver.devices == [0]
