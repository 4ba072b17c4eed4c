"""A call that a plan repeats does what its launcher would have done, and is counted alike."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import detmode
from detmode import DeterministicMode, Refuse, RuleTable, Substitute, default_rules
from detmode.bits.difference import same_bits
from detmode.cuda import host
from detmode.cuda.memory import components
from detmode.mode import base_mode, plans
from detmode.mode.forms import form_function
from detmode.mode.row_counter import RowCounter
from detmode.process.arguments import tensors_in
from detmode.process.memo import ById
from detmode.sites.observers import Observer
from detmode.table.condition import Condition
from detmode.table.conditions import on, requires_grad
from detmode.verify.cases import Case, call, cases
from tests.shared import needs
from tests.shared.processes import run_forked
from tests.shared.programs import rule
from tests.shared.selection import (
    PROFILE,
    Group,
    check_each,
    every_case,
    grouped,
    once,
    todays_forms,
)
from tests.shared.sparse_matrices import sparse_matrices

GROUPS = grouped(every_case() if PROFILE.thorough else todays_forms(once(cases())))
_BY_VALUES = "aten.nonzero.default: the size of a result depends on values"
WITHOUT_PLAN = {
    "aten::_ctc_loss_backward.Tensor": {"values are read on the host"},
    "aten::_index_put_impl.default": {
        "aten.nonzero.default: the size of a result depends on values"
    },
    "aten::adaptive_avg_pool3d_backward.grad_input": {
        "memory of neither the inputs nor the call",  # `grad_input` is resized
    },
    "aten::bincount.default": {"values are read on the host"},
    "aten::histc.default": {"values are read on the host"},
    "aten::index_put.default": {_BY_VALUES},
}
"""The reasons why calls have no plan: values decide, or there is no memory to point into."""

pytestmark = [needs.compiler, pytest.mark.usefixtures("without_player")]


@contextmanager
def by_launchers() -> Iterator[None]:
    """Modes that are made inside have no plans."""
    with patch.object(base_mode, "plans_of", lambda *_: None):
        yield


class Played:
    """Counts the calls that plans have made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        count_known = RowCounter.count_known

        def counted(*args: Any) -> bool:
            is_known = count_known(*args)
            self.count += is_known
            return is_known

        # Not the player: this function would be the user's code around it.
        monkeypatch.setattr(RowCounter, "count_known", counted)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def simulated(**options: Any) -> DeterministicMode:
    return DeterministicMode(simulate="cuda", **options)


def added(x: Tensor, index: Tensor, source: Tensor, **options: Any) -> Tensor:
    """A substituted call; all of these are made from one line."""
    return torch.index_add(x, 0, index, source, **options)


def launcher_of_index_add() -> Any:
    """The action of detmode's own first row."""
    return default_rules().get(torch.ops.aten.index_add.default)[0].rule.action


def example(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of :func:`added`, with other bits for each seed."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(5, (7,), generator=generator)
    values = torch.randn(12, 3, generator=generator).to(dtype)
    return values[:5].clone(), index, values[5:].clone()


def expected(function: Callable[[], Any], **options: Any) -> Any:
    with by_launchers(), simulated(**options):
        return function()


# Bits and reports


def outcome(case: Case, times: int, **options: Any) -> tuple[list[Tensor], list[tuple[Any, ...]]]:
    """The tensors of a case after the last of several calls, and the rows of the report."""
    with simulated(**options) as mode:
        for seed in [*range(times - 1), 7]:
            arguments = with_same_entries(case, seed)
            result = call(case.sample, arguments)
    dense = [each for each in tensors_in([result, *arguments.values()]) if not each.is_sparse]
    rows = [
        (row.overload, row.action, row.family, row.guarantee, row.count / times, row.remedy)
        for row in mode.records
    ]
    return dense, rows


def with_same_entries(case: Case, seed: int) -> dict[str, Any]:
    """The arguments of a case; the entries of sparse ones are those of the seed 0, times a number.

    Others would be as many, and have a plan of their own.
    """
    arguments = case.sample.arguments(case.dtype, "cpu", seed)
    for name, value in case.sample.arguments(case.dtype, "cpu", 0).items():
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            arguments[name] = value.clone()
            components([arguments[name]])[-1].mul_(seed + 1)
    return arguments


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_every_sample_has_the_launchers_bits(group: Group, played: Played) -> None:
    """In program order and shuffled, a plan gives the bits, the written inputs, and the rows.

    The data differ from those with which it was recorded. What has no plan is known, and why.
    """

    def check(case: Case) -> None:
        plans.forget()
        number = len(str(case))
        intercept = "all" if number % 2 or "cudnn" in case.sample.op else "listed"
        before, known = played.count, plans.refusals()
        got, rows = outcome(case, 3, intercept=intercept, schedule_seed=number)
        new = {key for key, count in plans.refusals().items() if count > known.get(key, 0)}
        assert all(reason in WITHOUT_PLAN.get(overload, ()) for overload, reason in new), new
        assert played.count > before or new, "it was neither played nor refused"
        with by_launchers():
            wanted, rows_of_launchers = outcome(case, 3, intercept=intercept)
        assert rows == rows_of_launchers
        assert len(got) == len(wanted)
        assert all(map(same_bits, got, wanted))

    check_each(group, check)


@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_reports_of_a_training_are_equal(intercept: str, played: Played) -> None:
    """Rows, lines, modules, counts and weights are those of the launchers, backward included."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.pad = nn.ReplicationPad1d(1)

        def forward(self, x: Tensor) -> Tensor:
            spread = self.pad(self.table(x).transpose(1, 2)).sum(2)
            return added(spread, x[:, 0] % 3, spread * 2.0).cumsum(0)

    def train() -> tuple[Any, Any]:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with simulated(intercept=intercept) as mode:
            for step in range(5):
                optimizer.zero_grad()
                net((torch.arange(15).view(3, 5) + step) % 9).square().sum().backward()
                optimizer.step()
        rows = [
            (row.overload, row.action, row.count, row.site, row.modules) for row in mode.records
        ]
        return rows, [parameter.detach() for parameter in net.parameters()]

    rows, weights = train()
    count = played.count
    with by_launchers():
        rows_of_launchers, wanted = train()
    assert count >= 8
    assert played.count == count
    assert rows == rows_of_launchers
    assert all(map(same_bits, weights, wanted))


def test_a_form_is_recorded_at_its_second_sight(played: Played) -> None:
    """The first two calls go to the launcher; from then on a plan makes them, in any mode."""
    for times in (0, 0, 1, 2):
        with simulated():
            added(*example())
            added(*example())
        assert played.count >= times
    assert played.count == 3, "the first call at a line of a mode begins its row"


def test_a_new_form_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with ever new shapes pay one look-up a call, and none that may record."""
    looked_up, recorded = [], []
    run = plans._Plans.run

    def counted(*about: Any) -> Callable[..., object]:
        form_of = form_function(*about)
        return lambda *call: looked_up.append(1) or form_of(*call)

    monkeypatch.setattr(plans, "form_function", counted)
    monkeypatch.setattr(plans._Plans, "run", lambda *a: recorded.append(1) or run(*a))
    monkeypatch.setattr(plans, "_plans", ById())
    x, index, source = example()
    with simulated() as mode:
        for size in range(5, 15):
            added(x.new_zeros(size, 3), index, source)
    (row,) = mode.records
    assert row.count == len(looked_up) == 10
    assert not recorded


_RECORDED = """
import sys, torch
from detmode import DeterministicMode
from detmode.mode import plans
sys.modules["torch._dynamo"] = None  # an import of it is an error
with DeterministicMode(simulate="cuda") as mode:
    for _ in range(3):
        torch.zeros(5, 2).index_add(0, torch.zeros(4, dtype=torch.int64), torch.ones(4, 2))
(row,) = mode.records
(planned,) = (info.plans for info in mode.overloads.values() if info is not None and info.plans)
assert (row.count, [len(each) for each in planned._variants.values()]) == (3, [1])
"""


def test_a_recording_imports_no_compiler(tmp_path: Path) -> None:
    """PyTorch's compiler, whose import takes seconds, is left to programs that compile."""
    ended = run_forked("-c", [[_RECORDED]], tmp_path, timeout=100)
    assert ended.returncode == 0, ended.stderr


# What decides is told apart


def test_other_arguments_are_other_calls(played: Played) -> None:
    """Numbers, dtypes, strides, alignment and gradients are told apart, -0.0 from 0.0 included."""
    x, index, source = example()
    shifted = torch.empty(16)[1:].view(5, 3).copy_(x)
    calls: list[Callable[[], Tensor]] = [
        lambda: added(x, index, source),
        lambda: added(x, index, source, alpha=2),
        lambda: added(x, index, source, alpha=2.5),
        lambda: added(x, index, source * 0 + 1, alpha=0.0),
        lambda: added(x * -0.0, index, source * 0 + 1, alpha=-0.0),
        lambda: added(x.double(), index, source.double()),
        lambda: added(x, index.int(), source),
        lambda: added(x.t().contiguous().t(), index, source),
        lambda: added(x, index, source.t().contiguous().t()),
        lambda: added(shifted, index, source),
        lambda: added(x[:, :2], index, source[:, :2]),
        lambda: added(x.clone().requires_grad_(), index, source),
    ]
    wanted = [expected(make) for make in calls]
    with simulated():
        for _ in range(4):
            for make, result in zip(calls, wanted):
                got = make()
                assert same_bits(got.detach(), result.detach())
                assert got.requires_grad == result.requires_grad
    assert played.count >= len(calls)


# PyTorch tells once of its support of such layouts.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_matrices_are_told_apart(played: Played) -> None:
    """By layout, entries, order, dtypes, strides and alignment of what they consist of."""
    matrices, dense = sparse_matrices(), torch.arange(12.0).view(4, 3)

    def multiplied(matrix: Tensor, factor: float) -> Tensor:
        """All products are made from one line."""
        return (matrix @ dense.to(matrix.dtype).mul(factor)).detach()

    wanted = {name: expected(partial(multiplied, matrix, 3)) for name, matrix in matrices.items()}
    assert len({tuple(result.flatten().tolist()) for result in wanted.values()}) == 6
    for intercept in ("all", "listed"):
        with simulated(intercept=intercept):
            for factor in (1, 2, 4, 3):
                before = played.count
                got = {name: multiplied(matrix, factor) for name, matrix in matrices.items()}
            assert played.count == before + len(matrices)
        assert all(same_bits(got[name], wanted[name]) for name in matrices)


def test_inputs_that_share_memory(played: Played) -> None:
    """Inputs that are read may share memory; one that is written may not, with ATen's error."""
    x, index, source = example()
    with simulated():
        for _ in range(4):
            x.clone().index_add_(0, index, source)
        assert played.count > 0
        both = torch.zeros(12, 3)
        # Both begin at multiples of 16, as what the plan was recorded with.
        words = "some elements of the input tensor and the written"
        with pytest.raises(RuntimeError, match=words):
            both[:5].index_add_(0, index, both[4:11])
        for _ in range(4):
            added(x, index, source, out=torch.empty(5, 3))
        with pytest.raises(RuntimeError, match=words):
            added(x, index, both[4:11], out=both[:5])
        for _ in range(3):
            assert same_bits(both[:5].index_add_(0, index, both[5:]), torch.zeros(5, 3))
        for _ in range(4):
            got = added(both[:5], index, both[:7])
        assert same_bits(got, expected(lambda: added(both[:5], index, both[:7])))
        assert same_bits(
            x.clone().index_add_(0, index, source),
            expected(lambda: x.clone().index_add_(0, index, source)),
        )


def test_errors_are_atens_after_a_plan_is_there() -> None:
    """An index out of range and shapes that do not fit raise as before, and nothing is lost."""
    x, index, source = example()
    with simulated():
        for _ in range(4):
            added(x, index, source)
        with pytest.raises(RuntimeError, match="index 99 is out of bounds"):
            added(x, index * 0 + 99, source)
        with pytest.raises((RuntimeError, IndexError), match="Number of indices"):
            added(x, index[:3], source)
        assert same_bits(added(x, index, source), expected(lambda: added(x, index, source)))


def test_out_is_written_and_returned(played: Played) -> None:
    """A plan writes an ``out=`` of the right size; another one is resized, with ATen's words."""
    x, index, source = example()
    wanted = expected(lambda: added(x, index, source))
    with simulated():
        for _ in range(4):
            out = torch.full((5, 3), 9.0)
            assert added(x, index, source, out=out) is out
            assert same_bits(out, wanted)
        assert played.count > 0
        with pytest.warns(UserWarning, match="resized"):
            out = added(x, index, source, out=torch.ones(1))
    assert same_bits(out, wanted)


def test_equal_numbers_are_not_one_form(played: Played) -> None:
    """0.0 and -0.0 are equal, and what is added with them is not."""
    _, index, source = example()

    def sums(alpha: float) -> Tensor:
        return added(torch.full((5, 3), -0.0), index, source.abs(), alpha=alpha)

    for alpha in (0.0, -0.0):
        wanted = expected(lambda alpha=alpha: sums(alpha))
        with simulated():
            for _ in range(4):
                assert same_bits(sums(alpha), wanted)
    assert played.count == 4


def test_a_plan_is_for_one_alignment(played: Played) -> None:
    """A launcher may have chosen wide loads, which memory at other addresses does not allow."""
    x, index, source = example()
    shifted = torch.cat([torch.zeros(1), source.flatten()])[1:].view(7, 3)
    assert (source.data_ptr() % 16, shifted.data_ptr() % 16) == (0, 4)
    with simulated():
        for memory in (source, shifted):
            count = played.count
            for calls in range(4):
                added(x, index, memory)
                # The first call of a form is remembered without its alignment.
                assert played.count == count + max(calls - (memory is source), 0)


def test_a_plan_is_for_one_mode_of_gradients() -> None:
    """A plan is not replayed for calls without gradients where a row asks for gradients."""
    rules = [
        rule("aten::index_add", launcher_of_index_add(), when=on("cuda") & requires_grad("self")),
        rule("aten::index_add", Refuse(), because="it has no gradients"),
    ]
    x, index, source = example()
    x.requires_grad_()
    with simulated(rules=RuleTable(rules)):
        for _ in range(4):
            added(x, index, source)
        with torch.no_grad(), pytest.warns(detmode.DeterminismWarning, match="no gradients"):
            added(x, index, source)


# Who looks more closely


class Seen(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def _observe(self, func: Any, args: Any, kwargs: Any, run: Any, place: Any) -> Any:
        self.names.append(func.name())
        return run(*args, **kwargs)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outer", [Seen, Passing])
def test_other_modes_see_the_calls(outer: Callable[[], Any], played: Played) -> None:
    """Calls under an observer or another mode are made by their launchers, plan or not."""
    arguments = example()
    with simulated():
        for _ in range(4):
            added(*arguments)
    count = played.count
    with outer() as seen, simulated() as mode:
        for _ in range(4):
            result = added(*arguments)
    assert played.count == count
    assert same_bits(result, expected(lambda: added(*arguments)))
    assert [row.count for row in mode.records if "index_add" in row.overload] == [4]
    if isinstance(seen, Seen):
        assert seen.names.count("aten::index_add") == 4


def test_regions_and_overrides_act(played: Played) -> None:
    """An allowed call runs as PyTorch runs it, and a plan goes on behind the region."""
    arguments = example()
    with simulated() as mode:
        for _ in range(4):
            added(*arguments)
        count = played.count
        with detmode.allow("aten::index_add"):
            added(*arguments)
        assert played.count == count
        added(*arguments)
        assert played.count == count + 1
    assert {row.action for row in mode.records} == {"substitute", "allow"}
    with simulated(overrides={"aten::index_add": "allow"}) as mode:
        added(*arguments)
    assert {row.action for row in mode.records} == {"allow"}


def test_calls_made_twice_are_made_by_a_launcher_once(played: Played) -> None:
    """``recheck`` compares a plan with the launcher, and counts each call once."""
    with simulated(recheck=1.0) as mode:
        for _ in range(5):
            added(*example())
    assert [row.count for row in mode.records if "index_add" in row.overload] == [5]
    assert 0 < played.count < 5
    assert mode.report().head["recheck"]["differing"] == 0


def test_tracers_get_no_plan(played: Played) -> None:
    """FakeTensor, make_fx, vmap, inference mode and subclasses are as before a plan was there."""
    x, index, source = example()
    with simulated():
        for _ in range(4):
            added(x, index, source)
    wanted = expected(lambda: added(x, index, source))
    with simulated():
        with FakeTensorMode() as fake:
            result = added(*(fake.from_tensor(each) for each in (x, index, source)))
            assert type(result).__name__ == "FakeTensor"
        batched = torch.vmap(lambda each: added(each, index, source))(torch.stack([x, x]))
        assert same_bits(batched[1], wanted)
        with torch.inference_mode():
            for _ in range(4):
                result = added(x, index, source)
            assert result.is_inference()
            assert same_bits(result, wanted)
        assert not added(x, index, source).is_inference()
        for _ in range(4):
            result = added(nn.Parameter(x), index, source)
        assert same_bits(result.detach(), wanted)
        assert result.grad_fn is not None
    with simulated():
        traced = make_fx(lambda *given: added(*given), tracing_mode="fake")(x, index, source)
        for _ in range(4):
            result = traced(x, index, source)
    assert same_bits(result, wanted)


def test_nothing_is_recorded_during_a_capture(played: Played) -> None:
    """A call that a CUDA graph captures is never recorded; one behind the capture is."""
    with patch.object(plans, "is_captured", lambda tensors: True), simulated():
        for _ in range(4):
            added(*example())
    assert played.count == 0
    with simulated():
        for _ in range(3):
            added(*example())
    assert played.count == 2
    on_gpu: list[Any] = [SimpleNamespace(is_cuda=True)]
    for capturing in (False, True):
        state = {"return_value": capturing}
        with patch.object(torch.cuda, "is_current_stream_capturing", **state):
            assert plans.is_captured(on_gpu) is capturing
            assert not plans.is_captured([torch.zeros(1)])


# Threads, forks, interrupts, memory


def test_threads_play_at_once() -> None:
    """Threads that play one plan at the same time get the bits of their own data."""
    wanted = [expected(partial(added, *example(seed))) for seed in range(4)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        with simulated():
            for _ in range(50):
                if not same_bits(added(*example(seed)), wanted[seed]):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_plays() -> None:
    """A child that is forked inside the block goes on with the plans, and with the right bits."""
    wanted = expected(lambda: added(*example(1)))
    with simulated():
        for _ in range(4):
            added(*example())
        if not (child := os.fork()):
            os._exit(0 if same_bits(added(*example(1)), wanted) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_an_interrupt_strikes_a_plan() -> None:
    """Ctrl-C in a launch of a plan, or while one is recorded, leaves nothing behind."""
    wanted = expected(lambda: added(*example(1)))
    for before in range(5):
        plans.forget()
        with simulated():
            for _ in range(before):
                added(*example())
            with (
                patch.object(host, "launch_blocks", side_effect=KeyboardInterrupt),
                pytest.raises(KeyboardInterrupt),
            ):
                added(*example())
            for _ in range(4):
                assert same_bits(added(*example(1)), wanted)
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch._C._len_torch_function_stack() == 0


def test_many_shapes_take_no_more_memory() -> None:
    """Of 10^5 shapes only the latest are remembered, and only forms met twice have plans."""
    shapes = 100_000 if PROFILE.thorough else 5_000
    index = torch.zeros(1, dtype=torch.int64)
    with patch.object(host, "launch_blocks", lambda *_: None), simulated() as mode:
        for size in range(1, shapes):
            added(torch.empty(size), index, torch.empty(1))
        known = mode.overloads[torch.ops.aten.index_add.default._op]
        assert known is not None
        assert known.plans is not None
        assert len(known.plans._variants) <= plans._FORMS
        assert not any(known.plans._variants.values())
        for _ in range(4):
            added(torch.empty(7), index, torch.empty(1))
        for size in range(1, 3 * plans._FORMS if PROFILE.thorough else 50):
            for _ in range(2):
                added(torch.empty(size), index, torch.empty(1))
        assert len(known.plans._variants) <= plans._FORMS


def test_variants_of_a_form_are_bounded(played: Played) -> None:
    """Of a form that comes in ever other strides some have plans, and all have the right bits."""
    _, index, source = example()
    with simulated():
        for gap in range(2 * plans._VARIANTS):
            x = torch.zeros(5, 3 + gap)[:, :3]
            for _ in range(3):
                got = added(x, index, source)
            assert same_bits(got, expected(lambda: added(torch.zeros(5, 3), index, source)))
    assert played.count > plans._VARIANTS


def test_other_peoples_substitutes_are_called_each_time(played: Played) -> None:
    """A function that a program gives as a substitute may do anything: it gets no plan.

    Nor do the other rows of its operator, with detmode's own launcher.
    """
    calls = []

    def substitute(
        self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1
    ) -> Tensor:
        calls.append(dim)
        return self.clone()

    rules = [
        rule("aten::index_add", Substitute(substitute), when=on("cuda")),
        rule("aten::index_add", launcher_of_index_add()),
    ]
    with simulated(rules=RuleTable(rules)):
        for _ in range(5):
            added(*example())
    assert len(calls) == 5
    assert played.count == 0


@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_other_peoples_conditions_are_asked_each_time(intercept: str) -> None:
    """They may look at the elements of a tensor, which a plan does not know."""

    def is_far(call: detmode.table.call.Call) -> bool:
        return bool(call.arguments["index"].max() > 1)

    far = rule("aten::index_add", when=on("cuda") & Condition("is_far", is_far), action=Refuse())
    with (
        DeterministicMode(
            simulate="cuda", rules=default_rules() + [far], intercept=intercept, warn_only=True
        ) as mode,
        pytest.warns(detmode.DeterminismWarning) as warned,
    ):
        for last in (0, 0, 0, 0, 0, 2):
            torch.zeros(3).index_add(0, torch.tensor([1, last]), torch.ones(2))
    assert len(warned) == 1
    assert [(row.action, row.count) for row in mode.records] == [("substitute", 5), ("warn", 1)]


def test_refusals_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """The logger of plans says once, at level DEBUG, which calls have none and why."""
    with caplog.at_level(logging.DEBUG, "detmode.plans"), simulated():
        for _ in range(5):
            torch.bincount(torch.tensor([1, 2, 2]), torch.tensor([0.5, 0.25, 1.0]))
    told = [record.message for record in caplog.records if record.name == "detmode.plans"]
    assert len(told) <= 1
    assert plans.refusals()["aten::bincount.default", "values are read on the host"] >= 1
