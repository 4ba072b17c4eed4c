"""``audit``: what each call would meet on CUDA, with nothing of it done."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import detmode
from detmode import allow
from tests.shared.interrupted import state
from tests.shared.programs import enlarged


@pytest.fixture(autouse=True)
def _small_table(monkeypatch, table):
    monkeypatch.setattr("detmode.rules.default_rules", lambda: table)


def step(x):
    """Calls an operator of each kind, backward included."""
    enlarged(x).sum().backward()
    enlarged(x, "bicubic").sum().backward()
    with torch.no_grad():
        y = x.flatten()
        y.cumsum(0)
        y.cumprod(0)
        y.put(torch.zeros(1, dtype=torch.int64, device=x.device), y[:1])
        with allow("aten::histc"):
            torch.histc(y) if y.is_cpu else None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_forward_and_backward(device, substituted):
    """Each call is reported with the action of the strict mode; nothing is raised or warned."""
    x = torch.ones(1, 1, 2, 2, device=device, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = detmode.audit(step, x)
    actions = {record.overload: record.action for record in report.records}
    expected = {
        "aten::upsample_bilinear2d_backward.default": "substitute",
        "aten::upsample_bicubic2d_backward.default": "error",
        "aten::cumsum.default": "native",
        "aten::cumprod.default": "warn",
        "aten::put.default": "error",
    }
    if device == "cpu":
        expected["aten::histc.default"] = "allow"
    assert actions == expected
    assert substituted == []
    assert {record.family for record in report.records} == {"small"}


def test_the_results_are_the_cpus(substituted):
    """``fn`` computes what it computes without audit."""
    results = []

    def function(x, *, factor):
        y = x.index_add(0, torch.tensor([0, 0]), torch.ones(2))
        results.append(y.put(torch.tensor([1]), torch.ones(1)) * factor)

    detmode.audit(function, torch.zeros(3), factor=2)
    function(torch.zeros(3), factor=2)
    assert torch.equal(*results)
    assert substituted == []


def test_sites_of_an_audit(line):
    """Rows name the forward call's line, which a call that makes no autograd node does not give."""

    def function(x):
        y = F.interpolate(x, scale_factor=2, mode="bicubic")  # here
        torch.zeros_like(y)
        y.sum().backward()

    report = detmode.audit(function, torch.ones(1, 1, 2, 2, requires_grad=True))
    sites = [r.site for r in report.records if r.overload.startswith("aten::upsample")]
    assert sites == line(function)


def test_what_fn_raises_passes():
    """An error of ``fn`` itself comes out, and the settings are restored."""
    before = state()

    with pytest.raises(IndexError, match="pop from empty list"):
        detmode.audit([].pop)
    assert state() == before
