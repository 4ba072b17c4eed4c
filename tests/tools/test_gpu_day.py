"""tools/gpu_day.py: all stages on the host runner, and what is told of those that fail."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import changed
import families
import gpu_day
import gpu_profiles
import gpu_stages
import host_calls
import journal
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


TESTS = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(3))
def test_before(number): pass

def test_hangs(): time.sleep(60)

def test_wrong(): assert 1 == 2

def test_traps(): os.abort()

def test_after(): pass
"""


@pytest.mark.thorough
def test_tests_go_on_without_what_broke_them(tmp_path: Path) -> None:
    """Of tests that hang and that end the process each is named; all others have their outcome."""
    file = tmp_path / "test_them.py"
    file.write_text(TESTS)
    own = ("-c", str(tmp_path / "none.ini"), "--rootdir", str(tmp_path), "-p", "no:detmode")
    own += ("-p", "no:randomly")
    (tmp_path / "none.ini").write_text("[pytest]\n")
    (job,) = gpu_stages.by_pytest(str(file), *own)
    folder = tmp_path / "day"
    folder.mkdir()
    tried = stage(job, read=gpu_stages.read_tests, patience=6.0, minutes=4.0)
    run = day(folder)
    run.work([tried])
    assert outcomes(folder) == {
        "trial: tests 1/1": [
            ("others", "hung", "1 of 7: test_hangs: no word for 6 s"),
            ("others", "failed", "2 of 7: test_wrong: assert 1 == 2"),
            ("others", "ok", "4 passed"),
        ]
    }
    found = journal.read(folder / "tests.jsonl")
    assert found["test_them.py::test_traps"]["found"] == "ended its process with exit code -6"
    assert found["test_them.py::test_after"]["outcome"] == "passed"
    assert run.bad([tried])


def test_shares_are_all_and_apart(pytester: pytest.Pytester) -> None:
    """Each test is in one share, families stay together, and none that ended runs again."""
    pytester.makepyfile(
        "import pytest\n"
        "from types import SimpleNamespace\n"
        "CASES = [SimpleNamespace(family=family) for family in 'abcabcabc']\n"
        "@pytest.mark.parametrize('case', CASES, ids=lambda case: case.family)\n"
        "def test_it(case): pass\n"
    )
    for share in ("1/3", "2/3", "3/3"):
        given = ("-p", "journal", "--journal", "lines", "--part", share, "--share", share)
        pytester.runpytest(*given).assert_outcomes(passed=3, deselected=6)
    lines = journal.read(Path("lines")).values()
    assert [(line["part"], line["family"]) for line in lines] == [
        (f"{number}/3", family) for number, family in enumerate("abc", 1) for _ in range(3)
    ]
    again = pytester.runpytest("-p", "journal", "--journal", "lines")
    again.assert_outcomes(deselected=9)


def test_variants_are_other_tests(pytester: pytest.Pytester) -> None:
    """A test that ended with other options runs as well, and has its own outcome."""
    pytester.makepyfile("def test_it(request): assert not request.config.option.variant")
    given = ("-p", "journal", "--journal", "lines")
    pytester.runpytest(*given, "--variant", "64 KiB").assert_outcomes(failed=1)
    pytester.runpytest(*given).assert_outcomes(passed=1)
    pytester.runpytest(*given, "--variant", "64 KiB").assert_outcomes(deselected=1)
    found = {test: line["outcome"] for test, line in journal.read(Path("lines")).items()}
    name = "test_variants_are_other_tests.py::test_it"
    assert found == {f"{name}, 64 KiB": "failed", name: "passed"}


def test_no_jobs_have_the_same_tests() -> None:
    """Two jobs that run one file for one family have a variant each."""
    told = set[tuple[str, ...]]()
    families = gpu_profiles.sides.timed_families()
    for job in (job for stage in gpu_profiles.first() for job in stage.jobs):
        words = job.command
        if {"pytest", "--family"} <= {*words}:
            variant = words[words.index("--variant") + 1] if "--variant" in words else ""
            named = (*(word for word in words if word.endswith(".py") or word in families), variant)
            assert named not in told, job.name
            told.add(named)
    assert {variant for *_, variant in told} == {"", "64 KiB", "99 KiB", "as large"}


def test_minutes_and_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that were cut off begin again, after those that never began; ended ones stay."""
    seen = tmp_path / "seen"
    begin = f"import pathlib, time; p = pathlib.Path({str(seen)!r}); p.open('a').write"
    ends = python(f"{begin}('a')", name="ends")
    slow = python(f"{begin}('b'); time.sleep(0 if 'c' in p.read_text() else 60)", name="slow")
    later = dataclasses.replace(stage(python(f"{begin}('c')")), name="later")
    stages = [stage(ends, slow), later]
    monkeypatch.setattr(gpu_day, "STARTING", 1.0)
    first = day(tmp_path, minutes=3 / 60)
    first.work(stages)
    assert seen.read_text() == "ab"
    assert first.known["trial: slow"]["outcome"] == "partly"
    assert re.search(r"^later +not run ", first.table(stages), re.M)
    assert not first.bad(stages)
    day(tmp_path).work(stages)
    assert seen.read_text() == "abcb"
    with pytest.raises(ValueError, match=r"results\.jsonl is of another commit or machine"):
        day(tmp_path, commit="abd")


@pytest.mark.thorough
def test_an_interrupt_has_its_table(tmp_path: Path) -> None:
    """A signal that ends the command ends what it runs, and the findings are told."""
    command = [sys.executable, gpu_day.__file__, "--device", "host", "--output", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--stage", "verify"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline().startswith("verify: ")
        time.sleep(2)  # the job is begun right after the line
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert re.search(r"^verify +embedding +partly ", out, re.M), out
    assert process.returncode == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started, and the sentence says what is missing."""
    assert gpu_day.main(["--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("cannot begin: PyTorch")
    assert said.endswith("--device host needs none\n")


PROFILE = """==PROF== Disconnected
  cumsum_row (65536, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Duration                         us       812.40
    DRAM Throughput                   %        81.20
"""
VERIFIED = [
    {"samples": 7, "error_over_aten": 0.5, "failures": []},
    {"samples": 2, "error_over_aten": None, "failures": ["scan-float32-cumsum-row: other bits"]},
]


def test_what_programs_print_is_read(tmp_path: Path) -> None:
    """The figures of a profile, and the failures of a family, whatever is printed around them."""
    tried, job = stage(), Job("scan", ())

    def run(text: str) -> gpu_stages.Run:
        return gpu_stages.Run(tried, job, tmp_path, 0, gpu_stages.OK, text)

    (profile,) = gpu_stages.read_profile(run(PROFILE))
    assert profile.found == "Duration 812.40 us, DRAM Throughput 81.20 %"
    warned = "a warning\n{}\ndetmode: scan-float32\n"
    for rows, found in (
        (VERIFIED, ("failed", "1 samples: scan-float32-cumsum-row: other bits", 0)),
        (VERIFIED[:1], ("ok", "7 samples, error at most 0.50 of ATen's", 7)),
    ):
        (read,) = gpu_stages.read_verified(run(warned.format(json.dumps(rows, indent=2))))
        assert (read.outcome, read.found, read.checks) == found


def test_tables_are_read(tmp_path: Path) -> None:
    """Each line of a printed table is a finding; heads, rules and captions are none."""
    heads = ("us of 4 elements", "again", "target", "")
    printed = host_calls.table(heads, [("aten::cumsum", "21.8", "20", "missed")])
    text = f"a warning, twice\n{printed}\nPyTorch 2.13, 3 rounds\n"
    run = gpu_stages.Run(stage(), Job("calls", ()), tmp_path, 0, gpu_stages.OK, text)
    assert gpu_stages.read_printed(run) == [
        gpu_stages.Finding("aten::cumsum", "ok", "21.8, 20, missed")
    ]
    ended = dataclasses.replace(run, outcome=gpu_stages.FAILED, text="no GPU\n")
    assert gpu_stages.read_printed(ended) == [gpu_stages.Finding("calls", "failed", "no GPU")]


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


def test_profiles_fit_into_fifteen_minutes(tmp_path: Path) -> None:
    """The minutes of what is right and of what has the right bits, and then of what is timed."""
    first, second = gpu_profiles.first(), gpu_profiles.second(tmp_path)
    *right, halves = first
    assert sum(stage.minutes for stage in right) <= 9
    assert (halves.name, sum(stage.minutes for stage in second)) == ("halves", 3.5)
    words = [word for stage in first for job in stage.jobs for word in job.command]
    assert {"racecheck", "synccheck", "--shared=64", "--shared=99", "bfloat16"} <= {*words}
    assert {"few_taps", "tiles", "few_destinations", "lanes", "bins", "elect"} <= {*words}


def test_families_are_narrowed(tmp_path: Path) -> None:
    """Jobs of other families go, those of none stay, and tests have a process for each family."""
    stages = {each.name: each for each in gpu_profiles.chosen(None, None, ["scan"], None, None)}
    (timed, others) = stages["timed"].jobs
    assert (timed.command[-2:], others.command[-2:]) == (("--family", "scan"),) * 2
    assert [job.name for job in stages["verify"].jobs] == ["scan"]
    (bits,) = stages["bits"].jobs
    assert bits.command[-2:] == ("--family", "scan")
    assert "--share" not in bits.command
    assert stages["contact"].jobs == STAGES[1].jobs


def test_jobs_are_in_the_order_of_their_seconds(tmp_path: Path) -> None:
    """Beside one another the longest first, one by one the shortest; what is new is last."""
    lines = [{"of": {}}, *({"job": f"trial: {n}", "seconds": n} for n in (2.0, 9.0, 4.0))]
    file = tmp_path / "gpu_day.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seconds = gpu_profiles.measured(file)
    jobs = [Job(name, ()) for name in ("new", "2.0", "9.0", "4.0")]
    orders = [
        "".join(f"{job.name} " for job in gpu_profiles.in_order(tried, seconds).jobs)
        for tried in (stage(*jobs, processes=4), stage(*jobs))
    ]
    assert orders == ["9.0 4.0 2.0 new ", "2.0 4.0 9.0 new "]
    assert gpu_profiles.measured(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "second"], "--profile second needs --old, a folder with the other"),
        (["--stage", "none"], "--stage none: this run has no such stage"),
        (["--changed-since", "none.jsonl"], "--changed-since none.jsonl: it has no digests"),
        (["--changed-since", "no such commit"], "--changed-since no such commit: "),
    ],
    ids=["no old", "no stage", "no results", "no commit"],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line, before anything is started or written."""
    folder = tmp_path / "day"
    assert gpu_day.main(["--output", str(folder), "--list", *options]) == 2
    assert capsys.readouterr().err.startswith(f"cannot begin: {said}")
    assert not folder.exists()


@pytest.mark.thorough
def test_families_whose_sources_changed(tmp_path: Path) -> None:
    """A kernel's include changes those that include it; another folder, words and samples none."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(gpu_day.ROOT / "detmode", tmp_path / "detmode", ignore=ignored)
    for name in ("cuda/include/pooled_axis.cuh", "rules/put/samples.py", "mode/warm.py"):
        file = tmp_path / "detmode" / name
        comment = "//" if file.suffix == ".cuh" else "#"
        file.write_text(file.read_text() + f"\n{comment} changed\n")
    before = tmp_path / "results.jsonl"
    before.write_text(json.dumps({"of": {}, "sources": changed._digests_in(tmp_path)}) + "\n")
    found = changed.since(str(before))
    assert "avg_pool3d" in found
    assert not {"put", "upsample", "ctc_loss"} & {*found}


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
