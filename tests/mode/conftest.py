"""A small rule table, so that these tests hang on no family, and a mode over it."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

import detmode.mode.deterministic_mode
from detmode import (
    GPU_TO_GPU,
    RUN_TO_RUN,
    DeterministicMode,
    Native,
    Refuse,
    Rule,
    RuleTable,
    Substitute,
    cuda,
)
from detmode.environment.settings import CUDNN_BENCHMARK, CUDNN_DETERMINISTIC, FILL, FLAG
from detmode.table.conditions import ALWAYS, on

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
    bilinear = substituted.function(aten.upsample_bilinear2d_backward.default)
    trilinear = substituted.function(aten.upsample_trilinear3d_backward.default)
    index_add = substituted.function(aten.index_add.default)
    return RuleTable(
        [
            Rule(
                op="aten::cumsum",
                when=on("cuda"),
                action=Native(),
                guarantee=RUN_TO_RUN,
                because="the scan has a deterministic path",
            ),
            Rule(
                op="aten::cumprod",
                when=on("cuda"),
                action=Refuse(),
                because="the scan depends on the timing of its blocks",
            ),
            Rule(
                op="aten::put",
                when=ALWAYS,
                action=Refuse(),
                alert="put_",
                because="duplicates race",
            ),
            Rule(
                op="aten::max_unpool2d",
                when=ALWAYS,
                action=Refuse(),
                alert="max_unpooling2d_forward_out",
                because="duplicates race",
            ),
            Rule(
                op="aten::histc",
                when=on("cuda"),
                action=Refuse(),
                alert="_histc_cuda with floating point input",
                because="atomic additions",
            ),
            Rule(
                op="aten::upsample_bilinear2d_backward",
                when=on("cuda"),
                action=Substitute(bilinear),
                guarantee=GPU_TO_GPU,
                alert="upsample_bilinear2d_backward_out_cuda",
                because="atomic additions",
            ),
            Rule(
                op="aten::upsample_trilinear3d_backward",
                when=on("cuda"),
                action=Substitute(trilinear),
                guarantee=GPU_TO_GPU,
                alert="upsample_trilinear3d_backward_out_cuda",
                because="atomic additions",
            ),
            Rule(
                op="aten::upsample_bicubic2d_backward",
                when=on("cuda"),
                action=Refuse(),
                alert="upsample_bicubic2d_backward_out_cuda",
                because="atomic additions",
            ),
            Rule(
                op="aten::index_add",
                when=on("cuda"),
                action=Substitute(index_add, otherwise=Native()),
                guarantee=GPU_TO_GPU,
                because="atomic additions",
            ),
        ],
        family="small",
    )


@pytest.fixture
def mode(table: RuleTable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeterministicMode]:
    """Makes modes over the small table; its substitutes need no compiler."""
    monkeypatch.setattr(cuda, "unavailable", lambda device_type: None)

    def make(*args, **kwargs) -> DeterministicMode:
        return DeterministicMode(*args, **{"rules": table, "simulate": "cuda", **kwargs})

    return make


@pytest.fixture
def make_settings() -> Callable[[], dict[str, object]]:
    """Reads every setting of PyTorch that the mode touches."""
    return read_settings


def read_settings() -> dict[str, object]:
    import torch._decomp.decompositions as decompositions
    import torch._inductor.config as inductor

    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn.deterministic": torch._C._get_cudnn_deterministic(),
        "cudnn.benchmark": torch._C._get_cudnn_benchmark(),
        "inductor.deterministic": getattr(inductor, "deterministic", None),
        "detour": decompositions._upsample_linear_vec,
        "modes": len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
    }


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """A claim of every test here: afterwards all settings are as they were."""
    before = read_settings()
    yield
    after = read_settings()
    left = [setting for setting in (FLAG, FILL, CUDNN_DETERMINISTIC, CUDNN_BENCHMARK)]
    torch.use_deterministic_algorithms(False)
    assert after == before
    assert not any(setting._open for setting in left)
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
