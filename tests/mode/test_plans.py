"""A call that a plan repeats does what its launcher would have done, and is counted alike."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from detmode import RuleTable, Substitute
from detmode.bits.difference import same_bits
from detmode.cuda.memory import components
from detmode.mode import plans
from detmode.process.arguments import tensors_in
from detmode.table.conditions import on
from detmode.verify.cases import Case, call, cases
from tests.mode.planned import added, by_launchers, example, launcher_of_index_add, simulated
from tests.shared import needs
from tests.shared.processes import run_forked
from tests.shared.programs import rule
from tests.shared.selection import PROFILE, check_each, every_case, grouped, once, todays_forms

GROUPS = grouped(every_case() if PROFILE.thorough else todays_forms(once(cases())))
_READ = "values are read on the host"
_BY_VALUES = "aten.nonzero.default: the size of a result depends on values"
WITHOUT_PLAN = {
    "aten::_ctc_loss_backward.Tensor": _READ,
    "aten::_index_put_impl.default": _BY_VALUES,
    # `grad_input` is resized.
    "aten::adaptive_avg_pool3d_backward.grad_input": "memory of neither the inputs nor the call",
    "aten::bincount.default": _READ,
    "aten::histc.default": _READ,
    "aten::index_put.default": _BY_VALUES,
}
"""The reasons why calls have no plan: values decide, or there is no memory to point into."""

pytestmark = [needs.compiler, pytest.mark.usefixtures("without_player")]


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
def test_every_sample_has_the_launchers_bits(group, played):
    """In program order and shuffled, a plan gives the bits, the written inputs, and the rows.

    The data differ from those with which it was recorded. What has no plan is known, and why.
    """

    def check(case):
        plans.forget()
        number = len(str(case))
        intercept = "all" if number % 2 or "cudnn" in case.sample.op else "listed"
        before, known = played.count, plans.refusals()
        got, rows = outcome(case, 3, intercept=intercept, schedule_seed=number)
        new = {key for key, count in plans.refusals().items() if count > known.get(key, 0)}
        assert all(WITHOUT_PLAN.get(overload) == reason for overload, reason in new), new
        assert played.count > before or new, "it was neither played nor refused"
        with by_launchers():
            wanted, rows_of_launchers = outcome(case, 3, intercept=intercept)
        assert rows == rows_of_launchers
        assert len(got) == len(wanted)
        assert all(map(same_bits, got, wanted))

    check_each(group, check)


def test_a_form_is_recorded_at_its_second_sight(played):
    """The first two calls go to the launcher; from then on a plan makes them, in any mode."""
    for times in (0, 0, 1, 2):
        with simulated():
            added(*example())
            added(*example())
        assert played.count >= times
    assert played.count == 3, "the first call at a line of a mode begins its row"


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


def test_a_recording_imports_no_compiler(tmp_path):
    """PyTorch's compiler, whose import takes seconds, is left to programs that compile."""
    ended = run_forked("-c", [[_RECORDED]], tmp_path, timeout=100)
    assert ended.returncode == 0, ended.stderr


def test_other_peoples_substitutes_are_called_each_time(played):
    """A function that a program gives as a substitute may do anything: it gets no plan.

    Nor do the other rows of its operator, with detmode's own launcher.
    """
    calls = []

    def substitute(self, dim, index, source, alpha=1):
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


def test_refusals_are_told(caplog):
    """The logger of plans says once, at level DEBUG, which calls have none and why."""
    with caplog.at_level(logging.DEBUG, "detmode.plans"), simulated():
        for _ in range(5):
            torch.bincount(torch.tensor([1, 2, 2]), torch.tensor([0.5, 0.25, 1.0]))
    told = [record.message for record in caplog.records if record.name == "detmode.plans"]
    assert len(told) <= 1
    assert plans.refusals()["aten::bincount.default", "values are read on the host"] >= 1
