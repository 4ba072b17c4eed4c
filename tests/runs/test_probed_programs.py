"""A probed program goes on as it would: its numbers, errors, warnings, threads and modes."""

import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from detmode import probe
from detmode.runs.probing import Probe
from tests.shared.cuda_sources import pattern
from tests.shared.varying import draw, warn

LIBRARY = torch.library.Library("detmode_probe_schema", "DEF")
LIBRARY.define("lie(Tensor x) -> Tensor")
LIBRARY.impl("lie", lambda x: x.add_(1).clone(), "CPU")


def training() -> list[bytes]:
    """Dropout, batch norm, in-place, ``out=``, foreach and fused optimizers, own generators."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 2)
    )
    optimizers = [
        torch.optim.AdamW(model.parameters(), foreach=True),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
    ]
    total = torch.zeros(())
    for _ in range(3):
        batch = torch.randn(8, 6, generator=generator)
        loss = draw(model(batch)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch.add(total, loss.detach(), out=total)
    overlapping = torch.arange(6.0)
    overlapping[1:].copy_(overlapping[:-1].clone())
    overlapping[:3].add_(overlapping[3:])
    overlapping.as_strided((2,), (3,)).mul_(overlapping[:1].expand(2).clone())
    kept = [total, overlapping, torch.rand(2), torch.rand(2, generator=generator)]
    kept += model.state_dict().values()
    states = [random.random(), np.random.rand()]
    return [pattern(each.reshape(-1)) for each in kept] + [repr(states).encode()]


@pytest.mark.usefixtures("alone")
def test_a_program_goes_on_as_it_would():
    """Results, mutated tensors and all generators are those of a run without a probe."""
    expected, state = training(), torch.get_rng_state()
    found = []
    report = probe(lambda: found.extend(training()))
    assert found == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert not [row for row in report.rows if "again" in row.conditions]
    assert not [each for each in report.passed_over if each.reason.startswith("not ")]


def test_calls_of_several_threads():
    """As autograd's threads make them, one for each GPU: each is probed, or said to be not."""
    probing, calls = Probe(1), 20
    together = threading.Barrier(4)

    def work(_):
        together.wait()
        for _ in range(calls):
            probing.observe(torch.ops.aten.neg.default, (torch.ones(100),), {}, torch.neg)

    with probing, ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert probing.report().probed == 4 * calls


@pytest.mark.usefixtures("alone")
def test_random_operators_are_not_accused():
    """Each repeat begins with the generator's state: PyTorch's, a given one, Python's, NumPy's."""
    generator = torch.Generator().manual_seed(3)

    def run():
        draw(torch.rand(3))
        torch.randperm(9, generator=generator)
        torch.nn.functional.dropout(torch.ones(9))

    report = probe(run)
    assert report.rows == ()
    assert report.probed >= 5


def test_a_schema_that_does_not_tell_what_is_written():
    """The argument is written once all the same, and each repeat begins with what it was."""
    x = torch.zeros(3)
    report = probe(torch.ops.detmode_probe_schema.lie, x)
    assert x.tolist() == [1, 1, 1]
    assert report.rows == ()
    assert report.probed == 1


def test_warnings_are_given_once():
    """An operator written in Python warns of nothing again when it is repeated."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        filters = warnings.filters
        report = probe(warn, torch.ones(3))
        assert warnings.filters is filters
    assert len(given) == 1
    assert report.probed == 1


@pytest.mark.cuda
def test_contention_and_generators_on_a_gpu():
    """An atomic sum varies on a GPU, a random operator does not, and the generator goes on."""
    index = torch.zeros(1 << 20, dtype=torch.long, device="cuda")
    source = torch.randn(1 << 20, device="cuda")
    torch.cuda.manual_seed(0)
    expected = [torch.rand(5, device="cuda") for _ in range(2)]
    torch.cuda.manual_seed(0)
    found = []

    def run():
        found.append(torch.rand(5, device="cuda"))
        torch.zeros(1, device="cuda").index_add_(0, index, source)
        found.append(torch.rand(5, device="cuda"))

    report = probe(run, repeats=5)
    assert [pattern(each) for each in found] == [pattern(each) for each in expected]
    assert {row.overload for row in report.rows} == {"aten::index_add_.default"}
    assert {"again", "contention"} & set(report.rows[0].conditions)
