"""Traces on disk: what a killed run leaves can be read, and what is no trace is refused."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from detmode import TraceError, diff, record
from detmode.bits.digest_batches import Digests
from detmode.runs.recording import _BATCH
from detmode.runs.trace_file import Reader
from tests.shared.processes import run_forked


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run"
    torch.manual_seed(0)
    with record(path):
        x = torch.rand(5)
        for _ in range(5):
            x = (x + 1).sin()
    return path


def digest_of(tensor: torch.Tensor) -> bytes:
    digests = Digests()
    return digests.take([digests.add(tensor)])


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


def test_what_is_recorded_is_read(tmp_path):
    """Each field of a call, which digest is whose, and that the run has ended."""
    x = torch.ones(3)
    with record(tmp_path / "run"):
        Doubled()(x)
        y = torch.rand(2)
        torch.cat([x, y])
    reader = Reader(tmp_path / "run")
    doubled, rand, cat = reader.calls()
    assert reader.complete
    assert [call.number for call in (doubled, rand, cat)] == [0, 1, 2]
    assert (doubled.overload, doubled.arguments) == ("aten::mul_.Tensor", "_, 2")
    assert (doubled.module, rand.module) == ("Doubled", None)
    lines = [int(call.site.removeprefix(f"{__file__}:")) for call in (doubled, rand, cat)]
    assert [line - lines[1] for line in lines[1:]] == [0, 1]
    assert (rand.generator is None, cat.generator is None) == (False, True)
    ones, twos = (digest_of(torch.full((3,), float(n))) for n in (1, 2))
    assert (doubled.inputs.digests, doubled.mutated.digests) == ((ones,), (twos,))
    assert doubled.inputs.forms == doubled.mutated.forms
    assert doubled.outputs.digests == ()
    assert cat.inputs.digests == (twos, digest_of(y))
    assert cat.inputs.forms != cat.inputs.forms[::-1]
    assert cat.outputs.digests == (digest_of(torch.cat([x, y])),)
    shapes = [shape for shape, *_ in reader.scan()]
    assert [shape.in_place for shape in shapes] == [True, False, False]
    assert [shape.is_random for shape in shapes] == [False, True, False]
    assert [call.number for call in reader.calls({2})] == [2]


KILLED = """
import os, signal, sys, time, torch, detmode
from pathlib import Path
with detmode.record(sys.argv[1]):
    x = torch.ones(8)
    for _ in range(2000):
        x = x * 1.0001
    while Path(sys.argv[1], "calls.jsonl").read_text().count('"call"') < int(sys.argv[2]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


FAILED_BEFORE = KILLED.replace(
    "    x = torch.ones(8)\n",
    """\
    x = torch.ones(8)
    try:
        torch.mm(x, x)
    except RuntimeError:
        pass
""",
)


@pytest.mark.parametrize("program", [KILLED, FAILED_BEFORE], ids=["", "after a call that failed"])
def test_killed_run_is_readable(program, tmp_path):
    """A run that is killed leaves its calls up to the last batch, and diff says that it was."""
    path, written = tmp_path / "run", 2001 // _BATCH * _BATCH
    ended = run_forked("-c", [(program, path, written)], tmp_path, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    reader = Reader(path)
    calls = list(reader.calls())
    assert len(calls) == written
    assert not reader.complete
    assert {call.overload for call in calls[1:]} == {"aten::mul.Tensor"}
    comparison = diff(path, path)
    assert comparison.identical
    assert comparison.incomplete == (str(path), str(path))
    assert str(comparison).count("failed or was killed") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is Linux's")
@pytest.mark.parametrize("times", [3, 700])
@pytest.mark.parametrize("full", ["digests.bin", "calls.jsonl"])
def test_no_line_is_without_its_digests(full, times, tmp_path, monkeypatch):
    """A disk that is full for either file leaves no line whose digests are missing, nor an end."""
    path, opened = tmp_path / "run", Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda file, *mode, **more: opened(
            Path("/dev/full") if file.name == full else file, *mode, **more
        ),
    )
    with pytest.raises(OSError, match="No space left"), record(path):
        for _ in range(times):
            torch.ones(8).neg()
    monkeypatch.undo()
    for file in ("digests.bin", "calls.jsonl"):
        (path / file).touch()
    reader = Reader(path)
    calls = list(reader.calls())
    lines = (path / "calls.jsonl").read_text().splitlines()
    assert len([line for line in lines if "call" in line]) == len(calls)
    assert not reader.complete


def test_a_program_that_fails_is_recorded_up_to_there(tmp_path):
    """Its recording is not said to be cut off, which would be a fault of the recording."""
    with pytest.raises(LookupError), record(tmp_path / "run"):
        torch.ones(1)
        raise LookupError
    reader = Reader(tmp_path / "run")
    assert [call.overload for call in reader.calls()] == ["aten::ones.default"]
    assert not reader.complete
    comparison = diff(tmp_path / "run", tmp_path / "run")
    assert f"the program of {tmp_path / 'run'} failed or was killed" in str(comparison)
    assert "failed or was killed" in comparison.to_html()


@pytest.mark.parametrize("part", ["calls.jsonl", "digests.bin"])
def test_truncated_trace_is_readable(part, trace, tmp_path):
    """Cut anywhere, a trace is read up to the cut."""
    whole = list(Reader(trace).calls())
    size = (trace / part).stat().st_size
    for cut in range(0, size, 37):
        copy = tmp_path / f"{cut}"
        shutil.copytree(trace, copy)
        os.truncate(copy / part, cut)
        reader = Reader(copy)
        calls = list(reader.calls())
        assert calls == whole[: len(calls)]
        assert len(calls) < len(whole) or part == "calls.jsonl"


def test_two_processes_do_not_share_a_folder(tmp_path, monkeypatch):
    """The second is refused, also where both have found the folder empty."""
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()))
    second = record(tmp_path / "run")
    with record(tmp_path / "run"):
        with pytest.raises(TraceError, match="cannot write a trace to .*run: File exists"):
            second.__enter__()
        torch.ones(2).neg()
    assert [call.overload for call in Reader(tmp_path / "run").calls()][-1] == "aten::neg.default"


def test_folder_with_files_is_refused(tmp_path):
    """A folder that holds something is left as it is; so is that of a recording entered again."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(TraceError, match="is not empty"), record(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    recording = record(tmp_path / "run")
    with recording:
        torch.ones(1)
    with pytest.raises(TraceError, match="is not empty"), recording:
        pass
    torch.zeros(1)  # no mode is left on
    assert len(list(Reader(tmp_path / "run").calls())) == 1
