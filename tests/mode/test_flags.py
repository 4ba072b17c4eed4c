"""PyTorch's flags as an operator finds them inside each kind of call."""

from contextlib import nullcontext

import pytest
import torch

from detmode import (
    DeterminismWarning,
    DeterministicMode,
    Native,
    Refuse,
    RuleTable,
    Substitute,
    allow,
)
from tests.shared.programs import NAMESPACE, table_of

NAME = f"{NAMESPACE}::probe"
REFUSED = {"action": Refuse(), "alert": "probe"}


class Probe(list):
    """An operator that notes the flags that it finds: the flag, ``warn_only``, fill, benchmark."""

    raises = False

    def __call__(self, x):
        self.append(
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                torch.utils.deterministic.fill_uninitialized_memory,
                torch._C._get_cudnn_benchmark(),
            )
        )
        if self.raises:
            raise LookupError
        return x.clone()


@pytest.fixture
def probe(library, monkeypatch):
    monkeypatch.setattr("detmode.cuda.unavailable", lambda device: None)
    probe = Probe()
    library.define("probe(Tensor x) -> Tensor")
    library.impl("probe", probe, "CPU")
    return probe


def call():
    """Calls the operator; always the same line."""
    return getattr(torch.ops, NAMESPACE).probe(torch.ones(2))


ON, OFF = (True, False), (False, False)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        # A native path needs the flag, and without ``warn_only``.
        ({"action": Native()}, {}, ON),
        ({"action": Native()}, {"warn_only": True}, ON),
        # An operator in no rule finds what the mode's arguments say.
        (None, {"warn_only": True}, (True, True)),
        # PyTorch neither refuses what is allowed, nor warns of it again.
        ({"action": Native()}, {"overrides": {NAME: "allow"}}, OFF),
        (REFUSED, {"overrides": {NAME: "allow"}}, OFF),
        (REFUSED, {"warn_only": True}, OFF),
        # A substitute allocates what it writes by itself, in memory that is not filled.
        ("substitute", {}, ON),
    ],
    ids=[
        "native",
        "native_warn_only",
        "unlisted",
        "native_allowed",
        "allowed",
        "warned",
        "substitute",
    ],
)
def test_flags_inside_a_call(probe, row, options, expected, fill, raises):
    """A call finds the flags that it needs; all are put back after it, also when it raises.

    Memory is filled as the mode's arguments say. The benchmark of cuDNN, which lets timing
    choose, is off in a native call.
    """
    probe.raises = raises
    substitutes = row == "substitute"
    row = {"action": Substitute(lambda x: probe(x))} if substitutes else row
    rules = RuleTable() if row is None else table_of(NAME, **row)
    warns = options == {"warn_only": True} and expected == OFF
    with DeterministicMode(rules=rules, fill_uninitialized_memory=fill, **options):
        torch.backends.cudnn.benchmark = True
        before = torch.get_deterministic_debug_mode()
        with (
            pytest.raises(LookupError) if raises else nullcontext(),
            pytest.warns(DeterminismWarning, match=r"^probe does not have")
            if warns
            else nullcontext(),
        ):
            call()
        assert (
            torch.get_deterministic_debug_mode() == before == (1 if "warn_only" in options else 2)
        )
        assert torch.utils.deterministic.fill_uninitialized_memory is fill
        assert torch.backends.cudnn.benchmark is True
    assert probe == [(*expected, fill, expected != ON or substitutes)]


@pytest.mark.parametrize("benchmark", [False, True])
def test_a_native_call_runs_without_warn_only(probe, benchmark):
    """The flag is on and ``warn_only`` off, also where another setting has to change."""
    with DeterministicMode(rules=table_of(NAME, Native()), warn_only=True):
        torch.backends.cudnn.benchmark = benchmark
        call()
    assert [(*found[:2], found[3]) for found in probe] == [(*ON, False)]


def test_allow_regions_run_with_the_flag_off(probe):
    """A call in an ``allow`` region runs as PyTorch runs it without its flag; a refused one, never.

    After the call the flag is on.
    """
    with DeterministicMode(rules=table_of(NAME, **REFUSED)):
        with allow(NAME):
            call()
        assert torch.are_deterministic_algorithms_enabled()
        with pytest.raises(RuntimeError, match=r"^probe does not have"):
            call()
    assert [found[:2] for found in probe] == [OFF]


@pytest.mark.parametrize("action", [Native(), Refuse()])
@pytest.mark.parametrize("warn_only", [False, True])
def test_the_program_turns_the_flag_off(probe, action, warn_only):
    """A call after the program turned the flag off inside is warned of in own words."""
    with DeterministicMode(warn_only, rules=table_of(NAME, action, alert="probe")) as mode:
        torch.use_deterministic_algorithms(False)
        with pytest.warns(DeterminismWarning, match="was turned off inside the block") as caught:
            assert [call().tolist() for _ in range(2)] == [[1, 1]] * 2
    assert len(caught) == 1
    assert "PyTorch gives no alert" in str(caught[0].message)
    assert {record.action for record in mode.records} == {"warn"}
    assert [found[:2] for found in probe] == [OFF, OFF]


def test_substitutes_run_whatever_the_flag(probe):
    """A substitute needs no flag: it runs also where the program turned it off."""
    with DeterministicMode(rules=table_of(NAME, Substitute(lambda x: x + 1))):
        torch.use_deterministic_algorithms(False)
        assert call().tolist() == [2, 2]
        assert not torch.are_deterministic_algorithms_enabled()


def test_a_native_call_gets_its_keywords():
    """As it does without any: the mode makes both."""
    ones = torch.ones(2)
    with DeterministicMode(rules=table_of("aten::add.Tensor", Native())) as mode:
        assert torch.add(ones, ones, alpha=3).tolist() == [4, 4]
        assert (ones + ones).tolist() == [2, 2]
    assert [(row.action, row.count) for row in mode.records] == [("native", 1), ("native", 1)]
