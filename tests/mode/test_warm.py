"""``detmode.warm``: what it compiles is all that a later call can launch."""

import importlib
import os

import pytest
import torch

import detmode
from detmode.cuda import allocation, host
from detmode.mode import warm as warming
from detmode.mode.options import rows_of
from detmode.verify.cases import run_substituted
from tests.shared import needs, selection
from tests.shared.processes import run_forked

LAUNCH = importlib.import_module("detmode.cuda.launch")
LIBRARY = importlib.import_module("detmode.cuda.host.library")
NLL = "aten::nll_loss2d_forward"
"""An operator of few kernels, in one file."""


@pytest.mark.parametrize(
    "group", selection.grouped(selection.todays_forms(selection.cases())), ids=str
)
def test_nothing_else_is_launched(group, monkeypatch):
    """The kernels for the dtype of a sample's result are all that the sample launches."""
    launched = {}

    def record(what, *_):
        source, entry, _, _ = what
        launched[entry] = source.name

    monkeypatch.setattr(LAUNCH, "_start", record)
    # Nothing is computed: what is read afterwards is zeros.
    monkeypatch.setattr(allocation, "_poison", torch.Tensor.zero_)

    def check(case):
        launched.clear()
        (result, *_) = run_substituted(case.sample, case.dtype)
        rows = rows_of(case.sample.op, detmode.default_rules())
        warmed = {
            (source.name, entry)
            for source, entries in warming.kernels(rows, [result.dtype]).items()
            for entry in entries
        }
        assert {(name, entry) for entry, name in launched.items()} - warmed == set()

    selection.check_each(group, check)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """The folder of an empty cache, in a process that has loaded no library."""
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(LIBRARY, "_loaded", {})
    return tmp_path / "cache"


@needs.compiler
@pytest.mark.usefixtures("without_player")
def test_a_call_after_warming_compiles_nothing(fresh, monkeypatch, caplog):
    """Nor does a second warming; each says what it did."""
    caplog.set_level("INFO", "detmode")
    first = detmode.warm(NLL, device="cpu")
    assert first.device == torch.device("cpu")
    assert (first.found, len(first.compiled)) == ((), 6)
    assert "nll_loss2d/kernels.cu: nll_loss2d_sum<float>" in first.compiled
    assert caplog.messages == [str(first)]
    assert str(first).startswith("kernels ready on cpu: 6 compiled, 0 found, in ")

    monkeypatch.setattr(LIBRARY, "_compiled", None)
    input, target = torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    with detmode.DeterministicMode(simulate="cuda") as mode:
        torch.nn.functional.nll_loss(input, target)
    assert [row.action for row in mode.records] == ["substitute"]
    for loaded in (LIBRARY._loaded, {}):
        monkeypatch.setattr(LIBRARY, "_loaded", loaded)
        again = detmode.warm(torch.ops.aten.nll_loss2d_forward, device="cpu")
        assert (again.compiled, again.found) == ((), first.compiled)


TOGETHER = """
import os
import detmode

detmode.default_rules()
processes = []
for _ in range(3):
    process = os.fork()
    if process == 0:
        operators = "aten::nll_loss2d_forward", "aten::_ctc_loss_backward"
        warmed = detmode.warm(operators, device="cpu")
        os.write(1, f"{len(warmed.compiled)} {len(warmed.found)}\\n".encode())
        os._exit(0)
    processes.append(process)
for process in processes:
    os.waitpid(process, 0)
"""


@needs.compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="by fork")
@pytest.mark.usefixtures("without_player")
def test_processes_that_start_together_share_the_work(fresh, tmp_path):
    """Each library is compiled by one of them, and found by the others."""
    compiler = fresh.parent / "compiler"
    log = fresh.parent / "log"
    # What is compiled is not called: without optimization it takes less time.
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*) echo compiles >> {log};; esac\n'
        f'exec {host.compiler()} "$@" -O0\n'
    )
    compiler.chmod(0o755)
    run = run_forked("-c", [(TOGETHER,)], tmp_path, timeout=500, CXX=str(compiler))
    assert run.returncode == 0, run.stderr
    counts = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    (kernels,) = {compiled + found for compiled, found in counts}
    assert len(counts) == 3
    assert sum(compiled for compiled, _ in counts) == kernels
    assert log.read_text().splitlines() == ["compiles"] * len(list(fresh.rglob("*.so")))


@pytest.mark.usefixtures("without_player")
def test_what_needs_no_kernel_is_no_error(monkeypatch):
    """An unlisted operator, a native one and one without launches load nothing."""
    monkeypatch.setattr(warming.cuda, "unavailable", lambda device: None)
    monkeypatch.setattr(host, "load", None)
    warmed = detmode.warm([torch.ops.aten.add.Tensor, "aten::bmm", "aten::resize_"], device="cpu")
    assert (warmed.compiled, warmed.found) == ((), ())


def test_names_of_operators():
    """Overloads, in-place variants and globs have the rows of their operator."""
    table = detmode.default_rules()
    sums = {source.name for source in warming.kernels(rows_of("aten::scatter_add", table))}
    files = ("exponent_bins", "few_destinations", "positions", "sort", "integer_sums")
    files += ("sorted_rows", "few_rows")
    assert sums == {f"rows/{file}.cu" for file in files}
    for name in ("aten::scatter_add_", "aten::scatter_add.out", "aten::scatter_ad*"):
        assert {s.name for s in warming.kernels(rows_of(name, table))} == sums, name


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"operators": "aten::hstc"}, ValueError, "did you mean 'aten::histc'"),
        ({"operators": ["hystc"]}, ValueError, "no operator is named 'hystc'"),
        ({"operators": 3}, TypeError, "takes operators or a RuleTable, got int"),
        ({"operators": [3]}, TypeError, "takes operators, got int"),
        ({"dtypes": torch.float32}, TypeError, r"such as \[torch.float32\]"),
        ({"dtypes": ["float32"]}, TypeError, "got 'float32'"),
        ({"dtypes": [torch.float8_e5m2]}, ValueError, "float8_e5m2; dtypes are float16, bfloat16"),
        ({"device": "gpu"}, ValueError, "'cuda', a GPU such as 'cuda:1', or 'cpu'"),
        ({"device": "mps"}, ValueError, "'cuda', a GPU such as 'cuda:1', or 'cpu'"),
        ({"device": "cuda:9"}, ValueError, "there is no cuda:9; PyTorch sees 2 GPUs"),
    ],
)
def test_wrong_arguments(given, error, words, monkeypatch):
    """Anything but operators, dtypes and devices is refused before any work, with a remedy."""
    monkeypatch.setattr(warming.cuda, "load", None)
    monkeypatch.setattr(warming.cuda, "unavailable", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(error, match=rf"warm\(\).*{words}"):
        detmode.warm(**given)


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_what_is_missing_is_said(place, monkeypatch):
    """Without a GPU or a compiler, in the words of ``unavailable``."""
    monkeypatch.setattr(warming.cuda, "unavailable", lambda device: f"No {device}; get one.")
    with pytest.raises(RuntimeError, match=f"no kernel can run on {place}. No {place}; get one."):
        detmode.warm(device=place)
