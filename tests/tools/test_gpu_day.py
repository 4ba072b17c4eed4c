"""tools/gpu_day.py: all stages on the host runner, and what is told of those that fail."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import families
import gpu_day
import gpu_profiles
import gpu_stages
import host_calls
import new_against_old
import overhead
import prebuild
import profile_call
import pytest
import sanitize
import torch
import variation
import warming
from gpu_stages import STAGES, Job, Stage

from detmode.cli import parser as cli
from tests.shared import needs


def python(code: str, *, name: str = "a job") -> Job:
    return Job(name, (sys.executable, "-c", code))


def stage(*jobs: Job, **options: Any) -> Stage:
    given = {"read": gpu_stages.read_last_line, "minutes": 1.0, "patience": 30.0, **options}
    return Stage("trial", "something", jobs, (), **given)


def day(folder: Path, minutes: float = 5.0, commit: str = "abc") -> gpu_day.Day:
    end = time.monotonic() + 60 * minutes
    return gpu_day.Day(folder, True, end, {"gpu": "some GPU", "commit": commit, "date": "today"})


def outcomes(folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    _, *lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {
        line["job"]: [(each["family"], each["outcome"], each["found"]) for each in line["findings"]]
        for line in lines
    }


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    gpu_day.surroundings(None)


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, whose stages take long")
@needs.compiler
def test_all_stages_on_the_host(tmp_path: Path) -> None:
    """Every stage that can runs and holds, in the order of the table; few files have it all."""
    first, second = tmp_path / "first", tmp_path / "second"
    command = [sys.executable, gpu_day.__file__, "--device", "host", "--commit", "abc", "--output"]
    run = subprocess.run([*command, str(first)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines[2:-2]]
    assert [*dict.fromkeys(row[0] for row in rows)] == [stage.name for stage in STAGES]
    told = {row[0]: row for row in rows}
    assert (
        {name for name, row in told.items() if row[-1] == "needs a GPU"}
        == {stage.name for stage in STAGES if not stage.on_host}
        == {"runner", "varies", "sanitizer"}
    )
    assert {row[2] for row in rows if row[-1] != "needs a GPU"} == {"ok"}
    for name in ("contact", "hangs", "bits", "surroundings", "verify", "large", "rest"):
        assert re.fullmatch(r"[1-9]\d* checks hold", told[name][-1]), told[name]
    assert " of ATen's time (" in told["timed"][-1]
    assert "us: dispatch " in told["host"][-1]
    assert {"aten::cumsum", 'intercept="listed"', "full"} <= {row[1] for row in rows}
    assert {path.name for path in first.iterdir()} == {
        *("results.jsonl", "tests.jsonl", "log.txt", "timed")
    }
    # What ended is not run again.
    command += [str(second), "--resume", str(first)]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout.splitlines()[:-2] == lines[:-2]
    assert again.stderr == ""


def test_what_fails_stops_nothing(tmp_path: Path) -> None:
    """Jobs that hang, take too long, fail, or have no program are told; the others run."""
    jobs = (
        python("import time; print('begun', flush=True); time.sleep(60)", name="silent"),
        python("import time\nwhile True: print('on', flush=True); time.sleep(.1)", name="long"),
        python("print('found a fault'); raise SystemExit(3)", name="wrong"),
        Job("missing", ("no-such-profiler", "python")),
        python("print('all is well')", name="right"),
    )
    tried = stage(*jobs, patience=2.0, minutes=0.06, processes=5)
    run = day(tmp_path)
    run.work([tried])
    assert outcomes(tmp_path) == {
        "trial: silent": [("silent", "hung", "begun")],
        "trial: long": [("long", "time limit", "on")],
        "trial: wrong": [("wrong", "failed", "found a fault")],
        "trial: missing": [("missing", "not here", "no-such-profiler is not installed")],
        "trial: right": [("right", "ok", "all is well")],
    }
    assert run.bad([tried])
    assert [line.split()[1] for line in run.table([tried]).splitlines()[2:]] == [
        *("missing", "right", "silent", "long", "wrong")
    ]
    log = (tmp_path / "log.txt").read_text()
    assert "==== trial: wrong: failed, " in log
    assert "found a fault" in log


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started, and the sentence says what is missing."""
    assert gpu_day.main(["--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("cannot begin: PyTorch")
    assert said.endswith("--device host needs none\n")


def test_commands_are_understood(tmp_path: Path) -> None:
    """Every program of a GPU's stages is there and takes its arguments."""
    parsers = {
        "benchmarks/families.py": families.parser(),
        "benchmarks/host_calls.py": host_calls.parser(),
        "benchmarks/new_against_old.py": new_against_old.parser(),
        "benchmarks/overhead.py": overhead.parser(),
        "benchmarks/variation.py": variation.parser(),
        "benchmarks/warming.py": warming.parser(),
        "tools/prebuild.py": prebuild.parser(),
        "tools/profile_call.py": profile_call.parser(),
        "tools/sanitize.py": sanitize.parser(),
    }
    run = day(tmp_path)
    for stage in (*STAGES, *gpu_profiles.first(), *gpu_profiles.second(tmp_path)):
        for job in stage.jobs:
            command = run._command(stage, job, time.monotonic() + 60)
            assert "{" not in "".join(command)
            words = command[command.index(sys.executable) + 1 :]
            if words[:2] == ["-m", "detmode"]:
                cli._parsers()[0].parse_args(words[2:])
            elif words[:2] == ["-m", "pytest"]:
                files = [word for word in words if word.endswith(".py")]
                assert files
                assert all((gpu_day.ROOT / file).exists() for file in files)
            else:
                options = parsers[words[0]].parse_args(words[1:])
            if command[0] == "ncu":
                assert profile_call.chosen(options) is not None
                kernel = command[command.index("--kernel-name") + 1].removeprefix("regex:")
                text = "".join(source.text for source in prebuild.sources().values())
                assert re.search(rf"\w*{kernel}\(", text)


def test_no_test_of_a_gpu_is_forgotten() -> None:
    """Every file with tests that need a GPU is in a stage."""
    words = {word for stage in STAGES for job in stage.jobs for word in job.command}
    tests = gpu_day.ROOT / "tests"
    # On tests, or on what several files parametrize theirs with.
    mark = re.compile(r"pytest\.mark\.cuda\b|gpu_calls import .*\bDEVICES\b")
    files = {
        str(path.relative_to(gpu_day.ROOT))
        for path in tests.rglob("test_*.py")
        if mark.search(path.read_text(encoding="utf-8"))
    }
    assert len(files) > 10
    assert files <= words


def test_the_page_has_every_stage() -> None:
    """The documentation says what each stage shows."""
    page = (gpu_day.ROOT / "docs" / "cuda" / "on-a-gpu.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    expected = [f"| `{stage.name}` | {stage.shows} |" for stage in STAGES]
    assert [row for row in rows if row in expected] == expected
