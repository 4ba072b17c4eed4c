"""Fixtures: a small rule table, so that tests hang on no family, and a mode over it."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

import detmode.mode.deterministic_mode
from detmode import DeterministicMode, Native, Refuse, RuleTable, Substitute, cuda
from detmode.bits import draws
from detmode.table.conditions import on
from tests.shared.programs import NAMESPACE, rule

aten = torch.ops.aten


class Substituted(list):
    """The names of the substitutes that ran, in order."""

    def function(self, operator: Callable[..., object]) -> Callable[..., object]:
        def run(**arguments):
            self.append(operator._schema.name)
            return operator(**arguments)

        return run


@pytest.fixture
def substituted() -> Substituted:
    return Substituted()


@pytest.fixture
def table(substituted: Substituted) -> RuleTable:
    """One row of each kind."""
    atomic = {"when": on("cuda"), "because": "atomic additions"}
    path = "the scan has a deterministic path"
    timing = "the scan depends on the timing of its blocks"
    index_add = substituted.function(aten.index_add.default)
    rules = [
        rule("aten::cumsum", Native(), when=on("cuda"), because=path),
        rule("aten::cumprod", Refuse(), when=on("cuda"), because=timing),
        rule("aten::put", Refuse(), alert="put_"),
        rule("aten::max_unpool2d", Refuse(), alert="max_unpooling2d_forward_out"),
        rule("aten::histc", Refuse(), alert="_histc_cuda with floating point input", **atomic),
        rule("aten::index_add", Substitute(index_add, otherwise=Native()), **atomic),
    ]
    for kind in ("bilinear2d", "trilinear3d", "bicubic2d"):
        name = f"upsample_{kind}_backward"
        kernel = Substitute(substituted.function(getattr(aten, name).default))
        action = Refuse() if kind == "bicubic2d" else kernel
        rules.append(rule(f"aten::{name}", action, alert=f"{name}_out_cuda", **atomic))
    return RuleTable(rules, family="small")


@pytest.fixture
def mode(table: RuleTable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeterministicMode]:
    """Makes modes over the small table; its substitutes need no compiler."""
    monkeypatch.setattr(cuda, "unavailable", lambda device_type: None)

    def make(*args, **kwargs) -> DeterministicMode:
        return DeterministicMode(*args, **{"rules": table, "simulate": "cuda", **kwargs})

    return make


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """Takes the definitions of operators of the namespace of these tests, for one test."""
    with torch.library._scoped_library(NAMESPACE, "FRAGMENT") as library:
        yield library


@pytest.fixture
def without_player() -> Iterator[None]:
    """Leaves all calls to Python: the player in C++ would make those that the claim is about."""
    with pytest.MonkeyPatch.context() as patch:  # a test may undo its own
        patch.setenv("DETMODE_NATIVE", "0")
        yield


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Claims that after the test all settings are as they were."""
    from tests.shared.interrupted import state  # imports the compiler, which few tests need

    before = state()
    yield
    after = state()
    torch.use_deterministic_algorithms(False)
    assert after == before
    assert not any(after["open"])
    assert detmode.mode.deterministic_mode.current_mode() is None


@pytest.fixture
def line() -> Callable[[object], list[str]]:
    """Gives the sites of a function's lines that hold a comment ``# here``."""

    def sites(function) -> list[str]:
        code = function.__code__
        with open(code.co_filename) as file:
            lines = file.read().splitlines()
        end = max(number for *_, number in code.co_lines() if number is not None)
        body = itertools.islice(enumerate(lines, 1), code.co_firstlineno - 1, end)
        return [f"{code.co_filename}:{number}" for number, text in body if "# here" in text]

    return sites


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is the program's only thread: pytest's are there, and draw nothing."""
    monkeypatch.setattr(draws, "is_alone", lambda: True)
