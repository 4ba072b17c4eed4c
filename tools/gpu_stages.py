"""The stages of a day on a GPU: their jobs, and how their output is read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import journal
from prebuild import ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
import sides
import variation
import whole_steps
from results import Results, geometric_mean, number, over, ratio

OK, FAILED, HUNG, LIMIT = "ok", "failed", "hung", "time limit"
PARTLY, NOT_HERE = "partly", "not here"
UNFINISHED = (PARTLY, NOT_HERE)
"""Outcomes that a resumed run tries again: the minutes were over, or something was missing."""
BAD = (FAILED, HUNG, LIMIT)
FIRST = ("index", "scatter", "scan", "grid_sampler", "upsample")
"""The families that are timed first."""
REST = tuple(family for family in sides.timed_families() if family not in FIRST)


@dataclass(frozen=True)
class Job:
    """A program of a stage.

    Args:
        name: a family of operators, or what else the job is about.
        command: the command, in the root of the repository; ``{folder}`` is the folder of results,
            ``{minutes}`` what is left of the stage's.
        needs: the program without which it tells nothing; else the command's own.
    """

    name: str
    command: tuple[str, ...]
    needs: str = ""


@dataclass(frozen=True)
class Finding:
    """A line of the table: what was found of one family, or of something else."""

    family: str
    outcome: str
    found: str
    checks: int = 0


@dataclass(frozen=True)
class Run:
    """The end of a job: its last process's exit code, ``None`` where it was killed."""

    stage: Stage
    job: Job
    folder: Path
    code: int | None
    outcome: str
    text: str


@dataclass(frozen=True)
class Stage:
    """Jobs that answer one question.

    Args:
        name: of the stage.
        shows: the claim that it shows, a line.
        jobs: on a GPU.
        on_host: on the host runner, each small; none where only a GPU can tell.
        read: the function that reads what a job found.
        minutes: the time that a job may take.
        patience: seconds for which it may print nothing, once it has begun to: then it hangs.
        processes: the number of jobs that run at once; one where time is measured.
    """

    name: str
    shows: str
    jobs: tuple[Job, ...]
    on_host: tuple[Job, ...]
    read: Callable[[Run], list[Finding]]
    minutes: float
    patience: float = 150.0
    processes: int = 1


def key_of(stage: Stage, job: Job) -> str:
    """The name of a stage's job."""
    return f"{stage.name}: {job.name}"


# Programs


def python(*arguments: str) -> tuple[str, ...]:
    """A command of this interpreter."""
    return (sys.executable, *arguments)


def by_pytest(*arguments: str, shares: int = 1) -> tuple[Job, ...]:
    """Tests by pytest, in so many processes."""
    return tuple(
        Job(
            f"tests {share}/{shares}",
            # One line for each test as it begins, which shows that nothing hangs.
            python("-m", "pytest", "-v", "-p", "journal", "-p", "no:cacheprovider")
            + ("--tb=short", "-rN", "--journal", "{folder}/tests.jsonl")
            + ("--part", "{part}", "--share", f"{share}/{shares}", *arguments),
        )
        for share in range(1, shares + 1)
    )


def verify(family: str, device: str, repeats: int) -> Job:
    asked = ("--device", device, "--family", family, "--repeats", str(repeats), "--format", "json")
    return Job(family, python("-m", "detmode", "verify", *asked))


def timed(name: str, *arguments: str) -> Job:
    kept = ("--output", "{folder}/timed", "--resume", "--minutes", "{minutes}")
    kept += ("--commit", "{commit}")
    return Job(name, python("benchmarks/families.py", *kept, *arguments))


def for_families(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--family", name))


def profiled(kernel: str, family: str, *sample: str) -> Job:
    sections = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats")
    sections += ("SchedulerStats", "WarpStateStats")
    watch = ("ncu", "--clock-control", "none", "--launch-count", "1")
    watch += ("--kernel-name", f"regex:{kernel}")
    watch += tuple(word for section in sections for word in ("--section", section))
    return Job(family, (*watch, *python("tools/profile_call.py", family, *sample)))


def sanitized(family: str, tool: str) -> Job:
    command = python("tools/sanitize.py", "--family", family, "--tool", tool)
    return Job(f"{family}, {tool}", command, needs="compute-sanitizer")


# What they found


def read_last_line(run: Run) -> list[Finding]:
    """By the exit code, with the last line of the output."""
    return [Finding(run.job.name, run.outcome, last_line(run.text))]


def read_versions(run: Run) -> list[Finding]:
    """The doctor's findings, and whether the cache is whole."""
    rows = _json_rows(run.text)
    if rows is None:
        return read_last_line(run)
    ill = [row["subject"] for row in rows if row["severity"] != "note"]
    return [Finding(run.job.name, run.outcome, f"has a remedy for: {', '.join(ill) or 'nothing'}")]


def read_tests(run: Run) -> list[Finding]:
    """By family, from the journal; and how the process ended, if not by itself."""
    lines = journal.read(run.folder / "tests.jsonl").values()
    mine = [line for line in lines if line["part"] == key_of(run.stage, run.job)]
    found = []
    for family in dict.fromkeys(line["family"] for line in mine):
        own = [line for line in mine if line["family"] == family]
        passed = sum(line["outcome"] == "passed" for line in own)
        for outcome in (HUNG, FAILED):
            bad = [line for line in own if line["outcome"] == outcome]
            if bad:
                name = bad[0]["test"].partition("::")[2]
                text = f"{len(bad)} of {len(own)}: {name}: {bad[0]['found']}"
                found.append(Finding(family, outcome, text))
        if passed:
            found.append(Finding(family, OK, f"{passed} passed", passed))
    if run.outcome != OK and not any(each.outcome == run.outcome for each in found):
        found.append(Finding(run.job.name, run.outcome, last_line(run.text)))
    if found:
        return found
    skipped = {line["found"] for line in mine if line["outcome"] == "skipped"}
    text = f"skipped: {'; '.join(sorted(skipped))}" if skipped else "no test was left to run"
    return [Finding(run.job.name, NOT_HERE, text)]


def read_verified(run: Run) -> list[Finding]:
    """Of a family: how many samples, and its largest error beside ATen's."""
    rows = _json_rows(run.text)
    if rows is None:
        return read_last_line(run)
    failures = [failure for row in rows for failure in row["failures"]]
    if failures:
        return [Finding(run.job.name, FAILED, f"{len(failures)} samples: {failures[0]}")]
    errors = [row["error_over_aten"] for row in rows if row["error_over_aten"] is not None]
    samples = sum(row["samples"] for row in rows)
    text = f"{samples} samples, error at most {number(max(errors, default=None))} of ATen's"
    return [Finding(run.job.name, run.outcome, text, samples)]


def read_variation(run: Run) -> list[Finding]:
    """By family: in how many inputs ATen varied."""
    files = sorted((run.folder / "variation").glob("*.json"))
    lines = [line for file in files for line in variation.Results.read(file).lines]
    found = []
    for family in dict.fromkeys(line.family for line in lines):
        ran = [line for line in lines if line.family == family and line.repeats]
        most = max((max(line.idle, line.busy) for line in ran), default=0)
        varied = sum(max(line.idle, line.busy) > 1 for line in ran)
        text = f"ATen varied in {varied} of {len(ran)} inputs, at most {most} results"
        found.append(Finding(family, OK, text))
    return _with_end(run, found)


def read_timed(run: Run) -> list[Finding]:
    """By family: detmode's time over ATen's, and the worst input."""
    rows = [row for results in _timings(run) for row in results.rows]
    if run.job.name == "other dtypes":
        failures = sum(row.failure is not None for row in rows)
        text = f"{len(rows)} inputs of all dtypes timed, {failures} with a failure"
        return _with_end(run, [Finding("all", OK, text)])
    found = []
    for family in FIRST if run.job.name == "first" else REST:
        own = [row for row in rows if (row.family, row.dtype) == (family, "float32")]
        for row in own:
            if row.failure is not None:
                found.append(Finding(family, FAILED, row.failure))
        ratios = [(each, row) for row in own if (each := ratio(row, sides.ATEN)) is not None]
        if ratios:
            most, worst = max(ratios, key=lambda pair: pair[0])
            name = " ".join((worst.op.partition("::")[2], worst.sample, worst.contention)).strip()
            text = f"{number(geometric_mean(each for each, _ in ratios))} of ATen's time"
            text += f" ({len(ratios)} inputs), worst {number(most)}: {name}"
            found.append(Finding(family, OK, text))
    return _with_end(run, found)


def read_host(run: Run) -> list[Finding]:
    """Microseconds of a call's parts on the host."""
    parts = [part for results in _timings(run) for part in results.host.items()]
    text = ", ".join(
        f"{name} {'-' if isinstance(time, str) else f'{time.median * 1e6:.1f}'}"
        for name, time in parts
    )
    return _with_end(run, [Finding("a call", OK, f"us: {text}")] if parts else [])


def read_printed(run: Run) -> list[Finding]:
    """The lines of printed tables: those whose second cell is a number."""
    cells = (re.split(r"\s{2,}", line.strip()) for line in run.text.splitlines())
    found = [
        Finding(name, OK, ", ".join(figures))
        for name, *figures in cells
        if figures and re.fullmatch(r"-?\d+(\.\d+)?", figures[0])
    ]
    return _with_end(run, found)


def read_steps(run: Run) -> list[Finding]:
    """By model: a step under detmode over a nondeterministic one."""
    found = []
    for step in (step for results in _timings(run) for step in results.steps.values()):
        plain, *others = whole_steps.CAPTURED
        ratios = {side: over(step.times.get(side), step.times.get(plain)) for side in others}
        text = ", ".join(f"{side} {number(each)}" for side, each in ratios.items())
        failure = step.failure
        found.append(
            Finding(step.model, FAILED if failure else OK, failure or f"over plain: {text}")
        )
    return _with_end(run, found)


def read_profile(run: Run) -> list[Finding]:
    """The figures of a kernel that say most."""
    wanted = ("Duration", "DRAM Throughput", "Achieved Occupancy", "Registers Per Thread")
    values = (re.search(rf"^\s*({name})\s+(\S+)\s+(\S+)\s*$", run.text, re.M) for name in wanted)
    text = ", ".join(f"{each[1]} {each[3]} {each[2]}" for each in values if each is not None)
    return [Finding(run.job.name, run.outcome, text or last_line(run.text))]


def _with_end(run: Run, found: list[Finding]) -> list[Finding]:
    """The findings, and how the job ended if that says more."""
    told = any(each.outcome == run.outcome for each in found)
    if (run.outcome == OK and found) or (run.outcome == FAILED and told):
        return found
    text = "the minutes were over" if run.outcome == PARTLY else last_line(run.text)
    return [*found, Finding(run.job.name, run.outcome, text)]


def _json_rows(text: str) -> list[dict[str, Any]] | None:
    """The table that a command prints, whatever it or PyTorch says before and after."""
    try:
        rows: list[dict[str, Any]] = json.loads(text[text.index("[\n") : text.rindex("\n]") + 2])
    except ValueError:
        return None
    return rows


def _timings(run: Run) -> list[Results]:
    return [Results.read(path) for path in sorted((run.folder / "timed").glob("*.json"))]


def last_line(text: str) -> str:
    """The last line that has something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# The stages

MANY = max(2, min(os.cpu_count() or 2, 12))
"""Processes of a stage in which no time is measured: much of the work is the host's."""
CUDA = ("-m", "cuda")
SMALL = ("-m", "not cuda")
DOCTOR = Job("doctor", python("-m", "detmode", "doctor", "--format", "json"))
SANITIZED = ("scan", "order_statistics", "upsample")

STAGES = (
    Stage(
        "versions",
        "what is installed; that every kernel is in the cache",
        (
            DOCTOR,
            Job("kernels", python("tools/prebuild.py", "--check")),
        ),
        (DOCTOR,),
        read_versions,
        minutes=1.5,
        processes=2,
    ),
    Stage(
        "contact",
        "a kernel loads, receives its arguments and launches; the digest equals the CPU's",
        by_pytest(
            *("tests/cuda/test_allocation.py", "tests/cuda/test_launch.py"),
            *("tests/bits/test_digest.py", *CUDA),
        ),
        by_pytest("tests/bits/test_digest.py", "-k", "test_kernel_is_the_cpu_form", *SMALL),
        read_tests,
        minutes=2,
        patience=60,
    ),
    Stage(
        "hangs",
        "scans of more blocks than a GPU holds finish, with the host runner's bits",
        by_pytest("tests/gpu/test_many_blocks.py", *CUDA),
        by_pytest("tests/gpu/test_many_blocks.py", *SMALL),
        read_tests,
        minutes=4,
        patience=90,
    ),
    Stage(
        "runner",
        "the bits of every sample are those of the host runner",
        by_pytest("tests/gpu/test_host_runner.py", *CUDA, shares=MANY),
        (),
        read_tests,
        minutes=3,
        processes=MANY,
    ),
    Stage(
        "surroundings",
        "plans, graphs, streams, memory, threads, compiled code; the check of bits can fail",
        by_pytest(
            *("tests/gpu/test_plans.py", "tests/gpu/test_graphs.py", "tests/gpu/test_streams.py"),
            *("tests/gpu/test_backward.py", "tests/gpu/test_negative_control.py"),
            *("tests/gpu/test_compiled.py", "tests/mode/test_torch_native.py", *CUDA),
            shares=MANY,
        ),
        by_pytest("tests/gpu/test_backward.py", "-k", "reflection_pad1d", *SMALL),
        read_tests,
        minutes=4,
        processes=MANY,
    ),
    Stage(
        "timed",
        "each family compared with ATen: the most used first, then the rest, then other dtypes",
        (
            timed("first", "--part", "operators", "--dtype", "float32", *for_families(FIRST)),
            timed("rest", "--part", "operators", "--dtype", "float32", *for_families(REST)),
            timed("other dtypes", "--part", "operators"),
        ),
        (
            timed(
                *("rest", "--part", "operators", "--dtype", "float32", "--rounds", "2"),
                *("--family", "nll_loss2d"),
            ),
        ),
        read_timed,
        minutes=4,
        patience=200,
    ),
    Stage(
        "bits",
        "100 runs of every sample give the same bits",
        by_pytest("tests/rules/test_bits.py", *CUDA, shares=MANY),
        by_pytest("tests/rules/test_bits.py", "-k", "schedules and histograms-bool", *SMALL),
        read_tests,
        minutes=5,
        processes=MANY,
    ),
    Stage(
        "verify",
        "every claim of the table: bits of 100 runs, errors, special values",
        tuple(verify(family, "cuda", 100) for family in (*FIRST, *REST)),
        (verify("embedding", "host", 2),),
        read_verified,
        minutes=4,
        patience=240,
        processes=MANY,
    ),
    Stage(
        "varies",
        "whether ATen's kernels vary at all",
        (
            Job(
                "ATen",
                python("benchmarks/variation.py", "--output", "{folder}/variation", "--resume")
                + ("--seconds", "0.5", "--minutes", "{minutes}", "--commit", "{commit}"),
            ),
        ),
        (),
        read_variation,
        minutes=2.5,
    ),
    Stage(
        "host",
        "the host's cost of a call, part by part",
        (timed("a call", "--part", "host"),),
        (timed("a call", "--part", "host", "--rounds", "2", "--calls", "20"),),
        read_host,
        minutes=1.5,
    ),
    Stage(
        "calls",
        "whole calls on the host, with their launches; programs under both ways of interception",
        (
            Job("calls", python("benchmarks/host_calls.py", "--device", "cuda")),
            Job(
                "programs",
                python("benchmarks/overhead.py", "--device", "cuda", "--imports", "0"),
            ),
        ),
        (
            Job(
                "calls",
                python("benchmarks/host_calls.py", "--turns", "1", "--rounds", "1", "--only")
                + ("cumsum",),
            ),
            Job(
                "programs",
                python("benchmarks/overhead.py", "--rounds", "2", "--calls", "2", "--runs", "1")
                + ("--imports", "0"),
            ),
        ),
        read_printed,
        minutes=1.5,
    ),
    Stage(
        "warm",
        "the time of warming a few operators, with an empty cache and with a full one",
        (
            Job(
                "sums and interpolation",
                python("benchmarks/warming.py", "--device", "cuda", "aten::index_add")
                + ("aten::cumsum", "aten::upsample_bilinear2d_backward"),
            ),
        ),
        (Job("losses", python("benchmarks/warming.py", "aten::nll_loss2d_forward")),),
        read_printed,
        minutes=2,
    ),
    Stage(
        "profile",
        "what bounds the kernels that matter most, by ncu",
        (
            profiled("sorted_rows", "index", "aten::index_add", "graph_1m_edges_64"),
            profiled("scan_row", "scan", "aten::cumsum", "row_256m"),
            profiled(
                *("grid_sampler_tiles", "grid_sampler"),
                *("aten::grid_sampler_2d_backward", "spatial_transformer"),
            ),
        ),
        (Job("scan", python("tools/profile_call.py", "scan", "aten::cumsum", "row")),),
        read_profile,
        minutes=2,
    ),
    Stage(
        "sanitizer",
        "compute-sanitizer finds nothing in scans, selections and interpolation",
        tuple(
            sanitized(family, tool)
            for family in SANITIZED
            for tool in ("racecheck", "memcheck", "synccheck", "initcheck")
        ),
        (),
        read_last_line,
        minutes=4,
        patience=180,
        processes=4,
    ),
    Stage(
        "large",
        "positions beyond 2^31 are right",
        by_pytest("tests/gpu/test_large.py", *CUDA),
        by_pytest("tests/gpu/test_large.py", "-k", "cumsum", *SMALL),
        read_tests,
        minutes=4,
    ),
    Stage(
        "steps",
        "whole training steps, plain and captured, compared with nondeterministic ones",
        (timed("models", "--part", "steps", "--part", "captured"),),
        (timed("models", "--part", "steps", "--model", "gpt", "--rounds", "2"),),
        read_steps,
        minutes=6,
    ),
    Stage(
        "rest",
        "all other tests that need a GPU: alerts, torchvision, recording, seeds, accuracy",
        by_pytest(
            *("tests/gpu/test_alerts_of_pytorch.py", "tests/rules/test_torchvision.py"),
            *("tests/tools/test_sanitize.py", "tests/cuda/test_sanitized_build.py"),
            *("tests/runs/test_probed_programs.py", "tests/runs/test_recording.py"),
            *("tests/environment/test_seeding.py", "tests/benchmarks/test_variation.py"),
            *("tests/rules/test_truth.py", *CUDA),
            shares=MANY,
        ),
        by_pytest("tests/benchmarks/test_variation.py", "-k", "test_sentences", *SMALL),
        read_tests,
        minutes=6,
        processes=MANY,
    ),
)
