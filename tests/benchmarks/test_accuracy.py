"""Accuracy on the inputs that are timed: what is wrong is told, what ATen leaves open is not."""

import accuracy
import pytest
import torch
from accuracy import check_accuracy
from sides import Workload, inputs, workloads

from detmode.verify.cases import Case, ClaimError

SMALL = [pytest.param(each, id=each.case.sample.op) for each in inputs(sizes="tests") if each.first]


@pytest.mark.thorough
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("each", SMALL)
def test_every_substitute_is_accurate(each: Workload) -> None:
    """Of every operator, with its own indices and with others."""
    found = list(workloads(each, torch.device("cpu")))
    for workload in found:
        check_accuracy(workload.case, "host")
    assert len(found) in (0, len(each.kinds()))


@pytest.fixture
def case() -> Case:
    (each,) = inputs(["avg_pool3d"], [torch.float32], sizes="tests")
    return next(workloads(each, torch.device("cpu"))).case


def changed(case: Case, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], by: float) -> None:
    """``run_substituted`` and the like give a result that is off by so much."""
    for name in names:
        run = getattr(accuracy, name)

        def off(*what: object, run=run) -> tuple[torch.Tensor, ...]:
            return tuple(each + by * each.abs().max() for each in run(*what))

        monkeypatch.setattr(accuracy, name, off)


@pytest.mark.usefixtures("clock")
def test_an_error_is_told(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten roundings are too many; but not if ATen's result has them too."""
    changed(case, monkeypatch, ("run_substituted",), 1e-6)
    with pytest.raises(ClaimError, match="the error against float64 is .*, allowed is "):
        check_accuracy(case, "host")
    changed(case, monkeypatch, ("run_aten",), 1e-6)
    check_accuracy(case, "host")


@pytest.mark.usefixtures("clock")
def test_the_last_source_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is wrong, also where ATen's operator takes it too."""
    (each,) = inputs(["put"], [torch.float32], sizes="tests")
    case = next(workloads(each, torch.device("cpu"))).case
    check_accuracy(case, "host")

    def first(*_: object) -> tuple[torch.Tensor, ...]:
        arguments = case.sample.arguments(torch.float32)
        turned = {name: arguments[name].flip(0) for name in ("index", "source")}
        return (torch.ops.aten.put(**{**arguments, **turned}),)

    monkeypatch.setattr(accuracy, "run_substituted", first)
    monkeypatch.setattr(accuracy, "run_aten", first)
    with pytest.raises(ClaimError, match="the error against float64"):
        check_accuracy(case, "host")
