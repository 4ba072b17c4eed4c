"""Two runs that differ by one fault: ``diff`` names the call, and what kind of fault it is."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch

from detmode import diff, record
from detmode.runs.trace_file import Reader
from tests.runs.faults import KINDS
from tests.shared.training import Fault, Training


@pytest.fixture(scope="module")
def faultless(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    # What older PyTorch imports at a first optimizer calls operators.
    Training().record(folder / "first")
    return Training().record(folder / "faultless")


def test_the_same_run_is_identical(faultless, tmp_path):
    """Two runs without a fault are the same to the byte, RNG states included."""
    comparison = diff(faultless, Training().record(tmp_path / "again"))
    assert comparison.identical
    assert comparison.same > 200
    assert comparison.incomplete == ()


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_fault_is_named(kind, faultless, tmp_path):
    """The first call that is touched is named, with the right kind."""
    path = kind.training.record(tmp_path / "faulty")
    comparison = diff(faultless, path)
    divergence = comparison.divergence
    assert (divergence.kind, divergence.call.overload) == (kind.divergence, kind.overload)
    assert Path(divergence.call.site.rpartition(":")[0]).name in ("training.py", "<SumBackward0>")
    if kind.occurrence is not None:
        assert occurrence(faultless, divergence.first.number) == kind.occurrence
    # Where the operator is not the reason, neither its rule nor its tensors help.
    is_the_reason = kind.divergence == "outputs"
    assert ("\nrule " in str(comparison)) == is_the_reason
    assert ("--dump" in str(comparison)) == is_the_reason


def test_the_first_call_that_varies_by_itself(tmp_path):
    """It is named beside the divergence, which comes earlier where the data are others."""
    for number in (1, 2):
        fault = Fault("aten::neg.default", 0, lambda _, result, more=number: result.add_(more))
        with fault, record(tmp_path / str(number)):
            torch.zeros(3).add(torch.tensor([1.0, 2.0, float(number)]))
            torch.zeros(3).neg()
    comparison = diff(tmp_path / "1", tmp_path / "2")
    assert comparison.divergence.kind == "inputs"
    assert comparison.outputs.call.overload == "aten::neg.default"


def test_unseeded_python_is_a_hint(faultless, tmp_path, monkeypatch):
    """Its state differs in each process: the data is other data, and no seed is claimed."""
    with record(tmp_path / "one"):
        torch.zeros(3).add(torch.tensor([1.0, 2.0, 3.0]))
    monkeypatch.setattr(random, "getstate", lambda: "another state")
    with record(tmp_path / "other"):
        torch.zeros(3).add(torch.tensor([1.0, 3.0, 2.0]))
    divergence = diff(tmp_path / "one", tmp_path / "other").divergence
    assert (divergence.kind, divergence.generators) == ("inputs", ("python",))
    # Other data may be another number of calls.
    with record(tmp_path / "longer"):
        torch.zeros(3).neg().add(torch.tensor([1.0, 3.0, 2.0]))
    divergence = diff(tmp_path / "one", tmp_path / "longer").divergence
    assert (divergence.kind, divergence.generators) == ("calls", ("python",))
    comparison = diff(faultless, Training(seed=1).record(tmp_path / "seed"))
    divergence = comparison.divergence
    assert (divergence.kind, divergence.generators) == ("seed", ("python", "torch"))
    assert "generators  python, torch: different states when recording began" in str(comparison)
    assert "Generators: python, torch: different states" in comparison.to_html()
    assert json.loads(comparison.to_json())["divergence"]["generators"] == ["python", "torch"]
    # It cannot be the reason where a call gives other outputs for the same inputs.
    fault = next(kind for kind in KINDS if kind.divergence == "outputs")
    divergence = diff(faultless, fault.training.record(tmp_path / "outputs")).divergence
    assert (divergence.kind, divergence.generators) == ("outputs", ())


def test_in_what_the_runs_were_started_differently(faultless, tmp_path, monkeypatch):
    """Other arguments and other threads are said, whatever they led to."""
    assert diff(faultless, Training().record(tmp_path / "same")).started == ()
    monkeypatch.setattr(sys, "argv", ["train.py", "--name", "two words"])
    comparison = diff(faultless, Training(threads=3).record(tmp_path / "other"))
    threads, arguments = comparison.started
    assert threads == ("torch.get_num_threads()", "1", "3")
    assert (arguments[0], arguments[2]) == ("arguments", "train.py --name 'two words'")
    assert "started with different torch.get_num_threads(): 1, and 3" in str(comparison)
    assert "the same torch.get_num_threads() and arguments, and compare" in comparison.next_step
    assert "started with different torch.get_num_threads(): 1, and 3." in comparison.to_html()
    assert json.loads(comparison.to_json())["started"]["torch.get_num_threads()"] == ["1", "3"]


@pytest.mark.parametrize(
    ("own", "kind"), [(False, "inputs"), (True, "generator")], ids=["seeds itself", "its own"]
)
def test_generators_that_are_not_the_reason(own, kind, tmp_path, monkeypatch):
    """One from which both runs have drawn the same, or none has, as a call had one of its own."""
    monkeypatch.setattr(random, "getstate", lambda: "the same state")
    for number in (1, 2):
        torch.seed()  # a process whose generators begin anywhere
        with record(tmp_path / str(number)):
            if own:
                torch.rand(3, generator=torch.Generator().manual_seed(number))
            else:
                torch.manual_seed(0)
                torch.rand(3)
                torch.zeros(2).add(torch.tensor([1.0, float(number)]))
    divergence = diff(tmp_path / "1", tmp_path / "2").divergence
    assert (divergence.kind, divergence.generators) == (kind, ())


def test_equal_seeds_are_not_the_reason(tmp_path):
    """Both programs seed as their first act, and get other data: the seeds are not blamed."""
    for number in (1, 2):
        torch.seed()  # a process whose generators begin anywhere
        random.seed()
        with record(tmp_path / str(number)):
            torch.manual_seed(0)
            random.seed(0)
            torch.zeros(2).add(torch.tensor([1.0, float(number)]))
    comparison = diff(tmp_path / "1", tmp_path / "2")
    assert comparison.divergence is not None
    assert (comparison.divergence.kind, comparison.divergence.generators) == ("inputs", ())
    assert "seed" not in comparison.verdict


def occurrence(path: Path, number: int) -> int:
    """The position of a call among those of its operator."""
    calls = list(Reader(path).calls())
    return sum(call.overload == calls[number].overload for call in calls[:number])
