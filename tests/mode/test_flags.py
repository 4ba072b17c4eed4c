"""PyTorch's flags as an operator finds them inside each kind of call."""

import pytest
import torch

from detmode import (
    GPU_TO_GPU,
    RUN_TO_RUN,
    DeterminismWarning,
    DeterministicMode,
    Native,
    Refuse,
    Rule,
    RuleTable,
    Substitute,
    allow,
)
from detmode.table.conditions import ALWAYS

NAME = "detmode_flags_test::probe"


class Calls(list):
    """A list that may hold a function beside its elements."""


@pytest.fixture
def flags():
    """The flags that the custom operator ``probe`` found, one triple for each call."""
    seen = Calls()

    def probe(x):
        probe.on_call()
        seen.append(
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                torch.utils.deterministic.fill_uninitialized_memory,
            )
        )
        return x.clone()

    probe.on_call = lambda: None
    seen.probe = probe
    with torch.library._scoped_library("detmode_flags_test", "FRAGMENT") as library:
        library.define("probe(Tensor x) -> Tensor")
        library.impl("probe", probe, "CPU")
        yield seen


def rules(action, **fields):
    if isinstance(action, (Native, Substitute)):
        fields = {"guarantee": RUN_TO_RUN, **fields}
    return RuleTable([Rule(op=NAME, when=ALWAYS, action=action, because="a test", **fields)])


def call():
    """Calls the operator; always the same line."""
    return torch.ops.detmode_flags_test.probe(torch.ones(2))


@pytest.mark.parametrize("warn_only", [False, True])
def test_native_runs_strictly(flags, warn_only):
    """A native path sees the flag on and strict, also under ``warn_only``; it is put back."""
    with DeterministicMode(warn_only, rules=rules(Native())):
        call()
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
    assert [found[:2] for found in flags] == [(True, False)]


@pytest.mark.parametrize("warn_only", [False, True])
def test_native_runs_without_the_benchmark_that_the_program_turns_on(flags, warn_only):
    """The benchmark of cuDNN lets timing choose: it is off for the call, and then as it was."""
    found = []
    flags.probe.on_call = lambda: found.append(torch._C._get_cudnn_benchmark())
    with DeterministicMode(warn_only, rules=rules(Native())):
        torch.backends.cudnn.benchmark = True
        call()
        assert torch.backends.cudnn.benchmark is True
    assert found == [False]
    assert len(flags) == 1


def test_an_unlisted_operator_sees_the_users_choice(flags):
    """An operator in no rule finds the flags as the mode's arguments say."""
    with DeterministicMode(True, rules=RuleTable()):
        call()
    assert [found[:2] for found in flags] == [(True, True)]


def test_allowed_calls_run_with_the_flag_off(flags):
    """An allowed call runs as PyTorch runs it without its flag; afterwards the flag is on."""
    with DeterministicMode(rules=rules(Refuse(), alert="probe")):
        with allow(NAME):
            call()
        assert torch.are_deterministic_algorithms_enabled()
    with DeterministicMode(rules=rules(Native()), overrides={NAME: "allow"}):
        call()
    assert [found[0] for found in flags] == [False, False]


def test_warned_calls_run_with_the_flag_off(flags):
    """A call that is warned of runs with the flag off: PyTorch does not warn again."""
    with DeterministicMode(True, rules=rules(Refuse(), alert="probe")):
        with pytest.warns(DeterminismWarning, match=r"^probe does not have"):
            call()
        assert torch.get_deterministic_debug_mode() == 1
    assert [found[0] for found in flags] == [False]


def test_refused_calls_do_not_run(flags):
    """A refused call never starts."""
    mode = DeterministicMode(rules=rules(Refuse(), alert="probe"))
    with mode, pytest.raises(RuntimeError, match=r"^probe does not have"):
        call()
    assert flags == []


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_substitutes_run_unfilled(flags, monkeypatch, before, raised):
    """A substitute runs with the filling of uninitialised memory off; it is restored."""
    monkeypatch.setattr("detmode.cuda.unavailable", lambda device: None)

    def substitute(x):
        flags.probe(x)
        if raised:
            raise LookupError
        return x

    mode = DeterministicMode(
        rules=rules(Substitute(substitute), guarantee=GPU_TO_GPU), fill_uninitialized_memory=before
    )
    with mode:
        if raised:
            with pytest.raises(LookupError):
                call()
        else:
            call()
        assert torch.utils.deterministic.fill_uninitialized_memory is before
    assert [found[2] for found in flags] == [False]


@pytest.mark.parametrize("action", [Native(), Refuse()])
def test_native_and_refused_calls_keep_the_fill(flags, action):
    """Only substitutes, which write all they allocate, run unfilled."""
    mode = DeterministicMode(
        True, rules=rules(action, alert="probe"), fill_uninitialized_memory=True
    )
    with mode:
        if isinstance(action, Refuse):
            with pytest.warns(DeterminismWarning):
                call()
        else:
            call()
    assert [found[2] for found in flags] == [True]


@pytest.mark.parametrize("action", [Native(), Refuse()])
@pytest.mark.parametrize("warn_only", [False, True])
def test_the_program_turns_the_flag_off(flags, action, warn_only):
    """Where the program turned the flag off inside, the call is warned of in own words."""
    with DeterministicMode(warn_only, rules=rules(action, alert="probe")) as mode:
        torch.use_deterministic_algorithms(False)
        with pytest.warns(DeterminismWarning, match="was turned off inside the block") as caught:
            assert [call().tolist() for _ in range(2)] == [[1, 1]] * 2
    assert len(caught) == 1
    assert "PyTorch gives no alert" in str(caught[0].message)
    assert {record.action for record in mode.records} == {"warn"}
    assert [found[0] for found in flags] == [False, False]


def test_substitutes_run_whatever_the_flag(flags, monkeypatch):
    """A substitute needs no flag: it runs also where the program turned it off."""
    monkeypatch.setattr("detmode.cuda.unavailable", lambda device: None)
    with DeterministicMode(rules=rules(Substitute(lambda x: x + 1), guarantee=GPU_TO_GPU)):
        torch.use_deterministic_algorithms(False)
        assert call().tolist() == [2, 2]
        assert not torch.are_deterministic_algorithms_enabled()


def test_an_error_of_the_operator_restores_the_flag(flags):
    """When an allowed or native operator itself raises, the flag is put back."""
    for arguments in ({"overrides": {NAME: "allow"}}, {"warn_only": True}):
        with DeterministicMode(rules=rules(Native()), **arguments):
            before = torch.get_deterministic_debug_mode()
            with pytest.raises((RuntimeError, NotImplementedError)):
                torch.ops.detmode_flags_test.probe(torch.ones(2).to_sparse())
            assert torch.get_deterministic_debug_mode() == before
