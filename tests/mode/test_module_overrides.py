"""``overrides`` of modules, by the paths that reports show."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detmode import DeterminismWarning, DeterministicMode, allow
from detmode.reports.report import Report
from detmode.reports.union import united

BACKWARD = "aten::upsample_bilinear2d_backward.default"


class Enlarged(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear")


class Net(nn.Module):
    """Each of its three parts calls a listed operator in backward, the convolution in forward."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)
        self.head = nn.Sequential(Enlarged())
        self.tail = Enlarged()

    def forward(self, x):
        return self.tail(self.head(self.conv(x)))


def step(net):
    net(torch.ones(1, 1, 5, 5)).sum().backward()


def actions(report, overload=BACKWARD):
    """The action of each module's calls of an overload."""
    return {
        module: row.action for row in report for module in row.modules if row.overload == overload
    }


def trained(overrides, *, intercept="all", inside=step):
    """A report of a training step in the mode."""
    mode = DeterministicMode(simulate="cuda", overrides=overrides, intercept=intercept)
    with mode:
        inside(Net())
    return mode.report()


@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")  # of the rows that warn
@pytest.mark.parametrize("intercept", ["all", "listed"])
@pytest.mark.parametrize(
    ("overrides", "head", "tail"),
    [
        ({"Net.head": "allow"}, "allow", "substitute"),
        ({"Net.head.0": "warn"}, "warn", "substitute"),
        ({"Net.*": "allow", "Net.head": "native"}, "native", "allow"),
        ({"Net.head.?": "native", "Net.head.0": "allow"}, "allow", "substitute"),
        ({"Net.head": "allow", BACKWARD: "warn"}, "allow", "warn"),
        ({"F.interpolate": "warn", "Net.tail": "substitute"}, "warn", "substitute"),
    ],
    ids=str,
)
def test_a_module_and_those_below_it(intercept, overrides, head, tail):
    """A path covers the backward of its calls; it wins over operators and over shorter paths."""
    report = trained(overrides, intercept=intercept)
    assert actions(report) == {"Net.head.0": head, "Net.tail": tail}


@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_native_calls_of_a_module(intercept):
    """A path covers calls that PyTorch's own path makes deterministic; the rest goes on."""
    report = trained({"Net.conv": "allow"}, intercept=intercept)
    assert actions(report, "aten::convolution_backward.default") == {"Net.conv": "allow"}
    assert actions(report)["Net.tail"] == "substitute"


def test_an_error_in_one_module():
    """``"error"`` raises in the module, with its path; the same net then runs without it."""
    net = Net()
    mode = DeterministicMode(simulate="cuda", overrides={"Net.head": "error"})
    with mode, pytest.raises(RuntimeError, match=r"\(Net\.head\.0\)"):
        step(net)
    assert set(actions(trained({})).values()) == {"substitute"}


def test_an_allow_region_is_nearer_than_a_path():
    """Inside ``allow`` an operator runs as it is, whatever overrides give its module."""

    def inside(net):
        with allow("F.interpolate"):
            step(net)

    report = trained({"Net.head": "error"}, inside=inside)
    assert set(actions(report).values()) == {"allow"}


def test_a_warning_in_one_module():
    """``"warn"`` warns once, with the path."""
    with pytest.warns(DeterminismWarning, match=r"\(Net\.head\.0\)") as warned:
        trained({"Net.head": "warn"})
    assert len(warned) == 1


def test_paths_that_no_call_met_are_told():
    """The report names them in text, JSON and HTML, and no others."""
    report = trained({"Net.haed": "allow", "Net.tail": "allow", "aten::histc": "allow"})
    told = "overrides: no listed call was made in 'Net.haed'"
    assert told in report.text()
    assert told in " ".join(report.page().facts)
    assert Report.from_json(report.to_json()).head["unmatched"] == ["Net.haed"]
    assert "unmatched" not in trained({"Net.tail": "allow"}).head


def test_of_ranks_a_path_is_told_that_no_rank_met():
    """A rank of a pipeline has only some of the modules."""
    first, second = {"unmatched": ["Net.a", "Net.b"]}, {"unmatched": ["Net.b"]}
    assert united([first, second]) == second
    assert united([first, {}]) == {}


@pytest.mark.parametrize("key", ["aten.histc.default", "torch.hstc", "nn.Net", "Net..head", "Net."])
def test_what_is_no_path(key):
    """A name of PyTorch's with dots, or an empty name, stays a misspelt operator."""
    with pytest.raises(ValueError, match="no operator is named"):
        DeterministicMode(overrides={key: "allow"})


def test_errors_about_paths():
    """An impossible action is refused by the path; ``allow`` says where a path belongs."""
    with pytest.raises(ValueError, match=r"overrides\['Net\.head'\] must be one of"):
        DeterministicMode(overrides={"Net.head": "permit"})
    with pytest.raises(ValueError, match=r"the path of a module; give the mode overrides="):
        allow("Net.head")


def test_the_mode_shows_and_copies_its_paths():
    """``repr`` and a pickle have the paths beside the operators."""
    mode = DeterministicMode(overrides={"Net.head": "allow", "aten::histc": "warn"})
    assert "'Net.head': 'allow'" in repr(mode)
    assert pickle.loads(pickle.dumps(mode)).module_overrides == {"Net.head": "allow"}
