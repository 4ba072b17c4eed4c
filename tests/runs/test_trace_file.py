"""Traces on disk: what a killed run leaves can be read, and what is no trace is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import detmode
from detmode import TraceError, cli, diff, record
from detmode.runs.digests import Digests
from detmode.runs.trace_file import Reader

ENDLESS = """
import sys, torch, detmode
with detmode.record(sys.argv[1]):
    print("begun", flush=True)
    x = torch.ones(8)
    while True:
        x = x * 1.0001
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
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
    shapes = [shape for shape, _, _ in reader.scan()]
    assert [shape.in_place for shape in shapes] == [True, False, False]
    assert [shape.is_random for shape in shapes] == [False, True, False]
    assert [call.number for call in reader.calls({2})] == [2]


@pytest.mark.parametrize("after", [0.05, 0.3, 0.6])
def test_killed_run_is_readable(after: float, tmp_path: Path) -> None:
    """A run that is killed leaves its calls up to the last batch, and diff says that it was."""
    path = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(detmode.__file__).parent.parent)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    calls_file = path / "calls.jsonl"
    deadline = time.monotonic() + 60
    while not calls_file.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    reader = Reader(path)
    calls = list(reader.calls())
    assert len(calls) >= 500
    assert not reader.complete
    assert {call.overload for call in calls[1:]} == {"aten::mul.Tensor"}
    comparison = diff(path, path)
    assert comparison.identical
    assert comparison.incomplete == (str(path), str(path))
    assert str(comparison).count("failed or was killed") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is Linux's")
@pytest.mark.parametrize("times", [3, 700])
@pytest.mark.parametrize("full", ["digests.bin", "calls.jsonl"])
def test_no_line_is_without_its_digests(
    full: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_program_that_fails_is_recorded_up_to_there(tmp_path: Path) -> None:
    """Its recording is not said to be cut off, which would be a fault of the recording."""
    with pytest.raises(ZeroDivisionError), record(tmp_path / "run"):
        torch.ones(1).neg()
        1 / 0  # noqa: B018
    comparison = diff(tmp_path / "run", tmp_path / "run")
    assert f"the program of {tmp_path / 'run'} failed or was killed" in str(comparison)
    assert "failed or was killed" in comparison.to_html()


@pytest.mark.parametrize("part", ["calls.jsonl", "digests.bin"])
def test_truncated_trace_is_readable(part: str, trace: Path, tmp_path: Path) -> None:
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


def refusal(trace: Path, other: Path) -> str | None:
    """What a trace is refused with; None if it is read. Anything but TraceError is an error."""
    try:
        diff(trace, other)
    except TraceError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "fields",
    [
        [-1, 2, None, [], [0], [], 0, ""],
        [0.0, 2, None, [], [0], [], 0, ""],
        [True, 2, None, [], [0], [], 0, ""],
        [0, 9999, None, [], [0], [], 0, ""],
        [0, 2, -1, [], [0], [], 0, ""],
        [0, 2, None, [], [-1], [], 0, ""],
        [0, 2, None, [], 0, [], 0, ""],
        [0, 2, None, [], [0], 0, ""],
        [0, 2, None, [], [0], [], 2, ""],
        [0, 2, None, [], [0], [], 0, 7],
        [],
    ],
    ids=str,
)
def test_a_line_that_means_nothing_is_refused(
    fields: list[object], trace: Path, tmp_path: Path
) -> None:
    """A number that stands for no text is not taken for one that stands for another."""
    copy = tmp_path / "copy"
    shutil.copytree(trace, copy)
    lines = (copy / "calls.jsonl").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if "call" in line)
    lines[first] = json.dumps({"call": fields})
    (copy / "calls.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match=rf"calls.jsonl:{first + 1} is not a line of a trace"):
        list(Reader(copy).calls())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_trace_is_refused(trace: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes are in its files, a trace is read or refused with one line."""
    copy = tmp_path / str(uuid4())  # Hypothesis seeds Python's generator anew
    shutil.copytree(trace, copy)
    part = copy / data.draw(st.sampled_from(["trace.json", "calls.jsonl", "digests.bin"]))
    content = bytearray(part.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(content)))
        end = min(len(content), begin + data.draw(st.integers(0, 8)))
        content[begin:end] = data.draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b"[" * 3000, b"-1", b"1e999", b"{}"]))
        )
    part.write_bytes(content)
    said = refusal(trace, copy)
    assert said is None or (str(copy) in said and "\n" not in said)
    shutil.rmtree(copy)


def test_two_processes_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused, also where both have found the folder empty."""
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()))
    second = record(tmp_path / "run")
    with record(tmp_path / "run"):
        with pytest.raises(TraceError, match="cannot write a trace to .*run: File exists"):
            second.__enter__()
        torch.ones(2).neg()
    assert [call.overload for call in Reader(tmp_path / "run").calls()][-1] == "aten::neg.default"


@pytest.mark.parametrize("generators", [None, 1, [], "torch", {"torch": []}])
def test_other_generators_than_a_recording_has(
    generators: object, trace: Path, tmp_path: Path
) -> None:
    """What ``trace.json`` says of the generators is read as it is, and need not be there."""
    copy = tmp_path / "copy"
    shutil.copytree(trace, copy)
    head = json.loads((copy / "trace.json").read_text())
    (copy / "trace.json").write_text(json.dumps({**head, "generators": generators}))
    os.truncate(copy / "calls.jsonl", (copy / "calls.jsonl").stat().st_size // 2)
    assert diff(trace, copy).only_first > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no trace at"),
        ("not JSON", "is not JSON"),
        ("[]", "is no trace of detmode"),
        ('{"format": "detmode-trace", "version": 2}', "reads 1"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_unreadable_is_one_line_and_exit_code_2(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no trace ends ``detmode diff`` with one line and exit code 2."""
    path = tmp_path / "run"
    path.mkdir()
    if content is not None:
        (path / "trace.json").write_text(content)
    assert cli.main(["diff", str(path), str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert said in line


def test_exit_codes(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Identical runs give 0, different ones 1, as a table and as JSON."""
    torch.manual_seed(1)
    with record(tmp_path / "other"):
        torch.rand(5)
    assert cli.main(["diff", str(trace), str(trace)]) == 0
    assert "the runs are identical" in capsys.readouterr().out
    assert cli.main(["diff", "--format", "json", str(trace), str(tmp_path / "other")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["identical"]
    assert found["parting"]["overload"] == "aten::rand.default"
    assert found["parting"]["kind"] == "seed"


def test_folder_with_files_is_refused(tmp_path: Path) -> None:
    """A folder that holds something is left as it is."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(TraceError, match="is not empty"), record(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    torch.zeros(1)  # no mode is left on


def test_error_in_the_block(tmp_path: Path) -> None:
    """A block that raises leaves its calls, and is not complete."""
    with pytest.raises(ZeroDivisionError), record(tmp_path / "run"):
        torch.ones(3)
        1 / 0  # noqa: B018
    reader = Reader(tmp_path / "run")
    assert [call.overload for call in reader.calls()] == ["aten::ones.default"]
    assert not reader.complete
