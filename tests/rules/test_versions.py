"""Rows that hold for some versions only act there: the mode run as if on another PyTorch."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterministicMode
from detmode.mode.deterministic_mode import DeterminismWarning
from detmode.mode.messages import alert_text
from detmode.process.versions import parse_version
from detmode.table import rule_table as table
from detmode.table.rule import CUBLAS, Rule
from tests.shared import table_facts as facts

X = torch.ones(3, 4)
BATCH = torch.ones(2, 3, 4)

PRODUCTS: dict[str, Callable[[], Any]] = {
    "mm": lambda: X @ X.T,
    "addmm": lambda: torch.addmm(torch.ones(3, 3), X, X.T),
    "linear": lambda: F.linear(X, X),
    "bmm": lambda: torch.bmm(BATCH, BATCH.mT),
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 3, 3), BATCH, BATCH.mT),
    "addbmm": lambda: torch.addbmm(torch.ones(3, 3), BATCH, BATCH.mT),
    "mv": lambda: torch.mv(X, X[0]),
    "addmv": lambda: torch.addmv(X[:, 0], X, X[0]),
    "complex": lambda: X.to(torch.complex64) @ X.T.to(torch.complex64),
    "out": lambda: torch.mm(X, X.T, out=torch.empty(3, 3)),
}


WITHOUT_ALERT = {
    ("aten::cudnn_grid_sampler_backward", "cuda"): (
        *("2.8", "2.12"),
        "PyTorch alerts since 2.13, which is another row",
    ),
    ("aten::addmm", "cuda"): ("2.8", "2.9", "PyTorch's cuBLAS alert, from which it is exempt"),
    ("aten::addmm.dtype", "cuda"): ("2.8", "2.9", "the same"),
    ("aten::topk", "cuda"): ("2.13", "2.15", "topk has read the flag since 2.13"),
    ("aten::scatter_add", "cuda"): ("2.11", "2.15", "the alert ended with 2.10"),
    ("aten::scatter_reduce.two", "cuda"): ("2.11", "2.15", "the alerts ended with 2.10"),
    **dict.fromkeys(
        (("aten::cumsum", "mps"), ("aten::cumprod", "mps"), ("aten::logcumsumexp", "mps")),
        ("2.15", "2.15", "2.15 is the first whose sources read the flag on MPS"),
    ),
}
"""Rows of some versions only, and without an alert whose versions PyTorch's binaries tell: by
operator and device the first and the last version, and why. What holds to the end holds in the
last one that the table knows."""


def versions_of_alert(rule: Rule) -> set[str]:
    """The versions in whose binaries an alert of the row is; of MPS only 2.15's have been read."""
    names = set(rule.alert if isinstance(rule.alert, tuple) else (rule.alert,))
    libraries = ("mps", "mps_unverified") if "'mps'" in str(rule.when) else ("cpu", "cuda")
    return {
        version
        for version, found in facts.FACTS.items()
        if names & {name for library in libraries for name in found.get(library, ())}
        or (CUBLAS in names and found.get("cublas"))
    }


def test_both_ends_of_every_row() -> None:
    """A row holds from the first to the last version of its fact, not before and not behind."""
    wrong, excused = [], set(WITHOUT_ALERT)
    for rule in (row.rule for row in facts.rows()):
        if rule.since is None and rule.until is None:
            continue
        device = "mps" if "'mps'" in str(rule.when) else "cuda"
        expected = versions_of_alert(rule)
        if rule.alert is None:
            excused.discard((rule.op, device))
            first, last, _ = WITHOUT_ALERT[rule.op, device]
            expected = set(facts.VERSIONS[facts.VERSIONS.index(first) :])
            expected -= set(facts.VERSIONS[facts.VERSIONS.index(last) + 1 :])
        holds = {version for version in facts.VERSIONS if rule.holds_for(parse_version(version))}
        if holds != expected:
            wrong.append(f"{facts.label(rule)} holds in {holds ^ expected} or should")
    assert not wrong, "\n".join(wrong)
    assert not excused, f"no row is any more of {excused}"


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def pretend(version: str) -> None:
        major, minor = version.split(".")
        monkeypatch.setattr(table, "TORCH_VERSION", (int(major), int(minor)))

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    return pretend


def caller_of(run: Callable[[], Any], **settings: Any) -> str:
    """The message that the call raises, or nothing."""
    with DeterministicMode(simulate="cuda", substitute=False, **settings):
        try:
            run()
        except RuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("release", ["2.8", "2.9", "2.10"])
def test_cublas(name: str, release: str, version: Callable[[str], None]) -> None:
    """Until 2.9 a matrix product raises PyTorch's cuBLAS message; since 2.10 it passes."""
    version(release)
    alerts = release != "2.10"
    assert caller_of(PRODUCTS[name]).startswith(alert_text(CUBLAS, warn=False)) == alerts


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
def test_cublas_workspace(
    value: str, version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the environment variable set nothing is raised."""
    version("2.8")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    assert caller_of(PRODUCTS["mm"]) == ""


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda: F.linear(X, X, X[:, 0].clone()), id="bias"),
        pytest.param(lambda: X[:0] @ X.T, id="empty"),
        pytest.param(lambda: X.long() @ X.long().T, id="integers"),
        pytest.param(lambda: torch.dot(X[0], X[0]), id="dot"),
    ],
)
def test_cublas_no_false_alarm(run: Callable[[], Any], version: Callable[[str], None]) -> None:
    """A product that does not call cuBLAS, or calls cuBLASLt, is no error."""
    version("2.8")
    assert caller_of(run) == ""


@pytest.mark.parametrize("release", ["2.8", "2.9", "2.10", "2.15"])
def test_kthvalue(release: str, version: Callable[[str], None]) -> None:
    """The alert of kthvalue ends with 2.9; since 2.10 the smallest index wins."""
    version(release)
    message = caller_of(lambda: torch.kthvalue(X, 2))
    assert message.startswith("kthvalue CUDA does not") == (release in ("2.8", "2.9"))


@pytest.mark.parametrize(
    ("release", "alert", "action"),
    [("2.13", "cudnn_grid_sampler_backward", "error"), ("2.12", None, "warn")],
)
def test_cudnn_grid_sampler(
    release: str, alert: str | None, action: str, version: Callable[[str], None]
) -> None:
    """Since 2.13 PyTorch alerts; before it is silent, and detmode warns in its own words."""
    version(release)
    arguments = torch.ones(1, 1, 4, 4), torch.ones(1, 5, 5, 2), torch.ones(1, 1, 5, 5)
    warns = pytest.warns(DeterminismWarning, match="vary between runs")
    mode = DeterministicMode(simulate="cuda", substitute=False)
    # Past the warning there is no CPU kernel.
    with nullcontext() if alert else warns, mode, pytest.raises(RuntimeError):
        torch.ops.aten.cudnn_grid_sampler_backward(*arguments)
    assert [(record.alert, record.action) for record in mode.records] == [(alert, action)]
