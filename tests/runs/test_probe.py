"""A probe names what varies, accuses nothing else, and leaves the program as it was."""

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import detmode
from detmode import DeterministicMode, probe
from detmode.cuda import host
from detmode.runs.probe_report import ProbeReport, ProbeRow
from detmode.runs.probing import Probe
from tests.shared import needs
from tests.shared.cuda_sources import accumulate, add_racing, pattern, with_racing_sums
from tests.shared.programs import Seen


@torch.library.custom_op("detmode_probe::racing", mutates_args=())
def racing(source: Tensor, index: Tensor, n: int) -> Tensor:
    return add_racing(source.new_zeros(n), source, index)


@racing.register_fake
def _(source: Tensor, index: Tensor, n: int) -> Tensor:
    return source.new_empty(n)


@torch.library.custom_op("detmode_probe::racing_", mutates_args=("result",))
def racing_(result: Tensor, source: Tensor, index: Tensor) -> None:
    add_racing(result, source, index)


@torch.library.custom_op("detmode_probe::steady", mutates_args=())
def steady(source: Tensor, index: Tensor, n: int) -> Tensor:
    return accumulate(source.new_zeros(n), index, source, 16)


@torch.library.custom_op("detmode_probe::grow", mutates_args=())
def grow(x: Tensor) -> Tensor:
    """Keeps a state of its own: differs from itself each time, by as much as the test needs."""
    STATE["calls"] += 1
    if STATE["calls"] == STATE["raises_at"]:
        raise RuntimeError("once too often")
    torch.rand(())
    result = x.clone()
    result.view(-1)[: STATE["elements"]] += STATE["calls"]
    return result


STATE = {"calls": 0, "raises_at": -1, "elements": 2}


class Noise(TorchDispatchMode):
    """Outside a probe: adds to the results of one operator, each time something else."""

    def __init__(self, op: str, add: Callable[[Any, int], object]) -> None:
        super().__init__()
        self.op, self.add, self.calls = op, add, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name == self.op:
            self.calls += 1
            self.add(result if result is not None else args[0], self.calls)
        return result


def row_with_noise(
    op: str, add: Callable[[Any, int], object], run: Callable[[], object]
) -> ProbeRow:
    """The row of the only operator that differs, where one has noise in its results."""
    with Noise(op, add), Probe() as probing:
        run()
    (row,) = probing.report().rows
    return row


@pytest.fixture(autouse=True)
def _fresh_state():
    STATE.update(calls=0, raises_at=-1, elements=2)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def collisions() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(1024, generator=generator)
    return source, torch.randint(4, (1024,), generator=generator)


@needs.compiler
def test_custom_operator_with_an_atomic_sum():
    """The host runner's schedules expose it; no rule knows it, and the table says so."""
    source, index = collisions()
    report = probe(lambda: racing(source, index, 4))
    (row,) = report.rows
    assert report.varied
    assert (row.overload, row.count, row.varied) == ("detmode_probe::racing.default", 1, 1)
    assert (row.conditions, row.differing) == (("schedule",), ("output 0",))
    assert 1 <= row.elements <= 4
    assert 0 < row.largest < 1e-3
    assert (row.family, row.action) == (None, None)
    assert Path(row.site.rpartition(":")[0]).name == Path(__file__).name
    assert "in no rule" in str(report)


@needs.compiler
def test_mutating_custom_operator_with_an_atomic_sum():
    """Arguments that the schema says are written are compared, and written once."""
    source, index = collisions()
    result, alone = torch.zeros(4), torch.zeros(4)
    report = probe(racing_, result, source, index)
    racing_(alone, source, index)
    (row,) = report.rows
    assert (row.conditions, row.differing) == (("schedule",), ("mutated result",))
    assert pattern(result) == pattern(alone)


@needs.compiler
def test_deterministic_custom_operator():
    """The same sums in integers differ under no schedule."""
    source, index = collisions()
    report = probe(lambda: steady(source, index, 4), repeats=10)
    assert report.rows == ()
    assert report.probed >= 1
    assert not report.passed_over


@needs.compiler
def test_launches_go_on_in_the_programs_own_schedule():
    """Repeats take no turn of a seeded schedule: later launches give what they would have given."""
    source, index = collisions()

    def both():
        with host.schedule(3):
            return [pattern(racing(source, index, 4)) for _ in range(3)]

    found = []
    probe(lambda: found.extend(both()))
    assert found == both()
    assert len(set(found)) > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_number_of_threads(threads):
    """A long sum depends on it; the number is put back, and the row names the condition."""
    torch.set_num_threads(threads)
    x = torch.linspace(0, 1, 1 << 20).exp()
    report = probe(x.sum)
    (row,) = report.rows
    assert (row.overload, row.conditions) == ("aten::sum.default", ("threads",))
    assert torch.get_num_threads() == threads
    assert probe(x.sum, repeats=1).rows == ()


@pytest.mark.usefixtures("alone")
def test_counts_elements_and_largest():
    """A row counts calls, those that varied, and the worst of them."""

    def run():
        for elements in (0, 3):
            STATE["elements"] = elements
            grow(torch.zeros(5))

    (row,) = probe(run, repeats=2).rows
    # The second call is the fourth to seventh of all: 4, then 5 and 6.
    assert (row.count, row.varied, row.elements, row.largest) == (2, 1, 3, 2.0)
    assert row.conditions == ("again", "threads")


def test_module_and_site_of_a_backward_operator(line):
    """A backward operator has the line and the module of its forward call."""
    model = nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Tanh())

    def run():
        loss = model(torch.ones(1, 3, requires_grad=True)).sum()  # here
        loss.backward()

    row = row_with_noise("aten::tanh_backward", lambda result, calls: result.add_(calls), run)
    assert row.overload == "aten::tanh_backward.default"
    assert [row.site] == line(run)
    assert row.module == "Sequential.*"
    assert row.modules == {"Sequential.2": 1, "Sequential.0": 1}


def test_one_of_several_mutated_tensors():
    """Of a foreach update the tensor that differs is named; so is an ``out=``."""
    several = [torch.ones(2), torch.ones(3)]
    row = row_with_noise(
        "aten::_foreach_mul_",
        lambda given, calls: given[1].add_(calls),
        lambda: torch._foreach_mul_(several, 2.0),
    )
    assert (row.differing, row.elements) == (("mutated self[1]",), 3)
    row = row_with_noise(
        "aten::add",
        lambda result, calls: result[0].add_(calls),
        lambda: torch.add(several[0], 1, out=several[0]),
    )
    assert (row.overload, row.differing) == ("aten::add.out", ("mutated out",))


def test_rule_of_the_table():
    """The report names the family and the action of a call that has a row on CUDA."""
    row = row_with_noise(
        "aten::index_add",
        lambda result, calls: result.add_(calls),
        lambda: torch.index_add(torch.zeros(3), 0, torch.tensor([0, 0, 2]), torch.ones(3)),
    )
    assert row.action == "substitute"
    assert f"{row.family}: substitute" in str(ProbeReport([row], 1, [], 3))


@pytest.mark.parametrize("outside", [False, True])
@needs.compiler
def test_substitutes_are_probed_whole(outside):
    """Wherever the mode is entered, each is one call, and one whose claim is false is found."""
    source, index = collisions()
    x, few = torch.zeros(3), torch.tensor([0, 0, 2])
    mode = DeterministicMode(simulate="cuda", schedule_seed=1, rules=with_racing_sums())
    probing = Probe()
    first, second = (probing, mode) if not outside else (mode, probing)
    with first, second:
        x.index_add_(0, few, torch.ones(3))
        torch.zeros(4).index_put_((index,), source, accumulate=True)
    report = probing.report()
    (row,) = report.rows
    assert (row.overload, row.conditions) == ("aten::index_put_.default", ("schedule",))
    assert row.action == "substitute"
    assert report.probed == 4  # ones and index_add_, zeros and index_put_
    assert [(row.action, row.count) for row in mode.records] == [("substitute", 1)] * 2
    assert x.tolist() == [2, 0, 1]


def test_errors_are_the_programs():
    """An operator's error is raised; it is counted, and the block ends."""
    probing = Probe()
    with pytest.raises(RuntimeError, match="size"), probing:
        torch.ones(2) + torch.ones(3)
    assert ("aten::add.Tensor", "raised", 1) in passed_over(probing.report())
    torch.ones(3)
    assert probing.report().probed == 2


def passed_over(report: detmode.ProbeReport) -> list[tuple[str, str, int]]:
    return [(each.overload, each.reason, each.count) for each in report.passed_over]


def test_every_call_is_counted():
    """Probed and passed over are together as many as the calls that PyTorch dispatched."""

    def run():
        x = torch.empty(4, 3)
        x.fill_(2).t().square().sum()
        torch._assert_async(torch.ones(1))
        torch.ones(3, device="meta") * 2
        x.t_()
        x.sum().item()

    with Seen() as seen:
        run()
    report = probe(run)
    assert report.probed + sum(each.count for each in report.passed_over) == len(seen.names)
    reasons = Counter({each.overload: each.reason for each in report.passed_over})
    assert reasons["aten::empty.memory_format"] == "allocations"
    assert reasons["aten::t.default"] == reasons["aten::t_.default"] == "views"
    assert reasons["aten::_assert_async.default"] == "no outputs"
    assert reasons["aten::mul.Tensor"] == "no data"
    assert "Skipped" in str(report)


def test_skip():
    """Operators that are named, or meant by a glob, run once."""
    report = probe(grow, torch.zeros(3), skip=["detmode_probe::*"])
    assert report.rows == ()
    assert passed_over(report) == [("detmode_probe::grow.default", "skipped", 1)]
    assert STATE["calls"] == 1


def test_repeat_that_raises():
    """A call that cannot be repeated is not taken for probed, and the program goes on."""
    STATE["raises_at"] = 2
    torch.manual_seed(0)
    torch.rand(())
    state = torch.get_rng_state()
    torch.manual_seed(0)
    report = probe(grow, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert passed_over(report) == [("detmode_probe::grow.default", "not repeated", 1)]
    assert (report.probed, report.rows) == (0, ())


@pytest.mark.parametrize(("repeats", "error"), [(0, ValueError), (1.5, TypeError)])
def test_repeats_that_cannot_be(repeats, error):
    with pytest.raises(error, match="repeats"):
        probe(torch.ones, 3, repeats=repeats)


@pytest.mark.thorough
def test_no_operator_of_pytorch_is_accused():
    """Under unchanged conditions no sample of PyTorch's operators differs, but for one.

    ``linalg.lstsq`` by "gelsy" reads pivots that nobody has written.
    """
    from tests.shared.opinfo import operators

    accused, probed = set(), 0
    for info in operators()[::12]:
        if torch.float32 not in info.dtypes or info.name.startswith("jiterator"):
            continue
        for sample in list(info.sample_inputs("cpu", torch.float32))[:3]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # samples call what is deprecated
                call = partial(info, sample.input, *sample.args, **sample.kwargs)
                report = probe(call, repeats=1)
            accused |= {row.overload for row in report.rows}
            probed += report.probed
            assert not [each for each in report.passed_over if each.reason.startswith("not ")]
    assert accused <= {"aten::linalg_lstsq.default"}
    assert probed > 100
