"""Everything that a GPU can tell, most telling first, in parts of less than ten minutes.

Each stage is processes of their own under a time limit: what hangs, traps or fails is told by
family of operators, and stops nothing else. What is found is written at once into a folder of a few
files: ``results.jsonl``, a line for each job; ``tests.jsonl``, a line for each test; ``log.txt``,
the end of what each job printed; ``timed/`` and ``variation/``, the figures. ``--minutes`` ends a
part, ``--resume FOLDER`` goes on with what another left. A table comes last.

``--device host`` runs what can run without a GPU, each stage at one small size.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import journal
import prebuild
from prebuild import ROOT
from tabulate import tabulate

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
KEPT = 1 << 16
"""Bytes of a job's output that the log keeps."""
PROBE = """
import json
from provenance import provenance
from detmode import cuda
print(json.dumps({"reason": cuda.unavailable("cuda"), "provenance": provenance()}))
"""


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


# Programs


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _tests(*arguments: str, shares: int = 1) -> tuple[Job, ...]:
    """Tests by pytest, in so many processes."""
    return tuple(
        Job(
            f"tests {share}/{shares}",
            # One line for each test as it begins, which shows that nothing hangs.
            _python("-m", "pytest", "-v", "-p", "journal", "-p", "no:cacheprovider")
            + ("--tb=short", "-rN", "--journal", "{folder}/tests.jsonl")
            + ("--part", "{part}", "--share", f"{share}/{shares}", *arguments),
        )
        for share in range(1, shares + 1)
    )


def _verify(family: str, device: str, repeats: int) -> Job:
    asked = ("--device", device, "--family", family, "--repeats", str(repeats), "--format", "json")
    return Job(family, _python("-m", "detmode", "verify", *asked))


def _timed(name: str, *arguments: str) -> Job:
    kept = ("--output", "{folder}/timed", "--resume", "--minutes", "{minutes}")
    kept += ("--commit", "{commit}")
    return Job(name, _python("benchmarks/families.py", *kept, *arguments))


def _families(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--family", name))


def _profiled(kernel: str, family: str, *sample: str) -> Job:
    sections = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats")
    sections += ("SchedulerStats", "WarpStateStats")
    watch = ("ncu", "--clock-control", "none", "--launch-count", "1")
    watch += ("--kernel-name", f"regex:{kernel}")
    watch += tuple(word for section in sections for word in ("--section", section))
    return Job(family, (*watch, *_python("tools/profile_call.py", family, *sample)))


def _sanitized(family: str, tool: str) -> Job:
    command = _python("tools/sanitize.py", "--family", family, "--tool", tool)
    return Job(f"{family}, {tool}", command, needs="compute-sanitizer")


# What they found


def read_last_line(run: Run) -> list[Finding]:
    """By the exit code, with the last line of the output."""
    return [Finding(run.job.name, run.outcome, _last_line(run.text))]


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
    mine = [line for line in lines if line["part"] == _key(run.stage, run.job)]
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
        found.append(Finding(run.job.name, run.outcome, _last_line(run.text)))
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
    return [Finding(run.job.name, run.outcome, text or _last_line(run.text))]


def _with_end(run: Run, found: list[Finding]) -> list[Finding]:
    """The findings, and how the job ended if that says more."""
    told = any(each.outcome == run.outcome for each in found)
    if (run.outcome == OK and found) or (run.outcome == FAILED and told):
        return found
    text = "the minutes were over" if run.outcome == PARTLY else _last_line(run.text)
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


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# The stages

MANY = max(2, min(os.cpu_count() or 2, 12))
"""Processes of a stage in which no time is measured: much of the work is the host's."""
CUDA = ("-m", "cuda")
SMALL = ("-m", "not cuda")
DOCTOR = Job("doctor", _python("-m", "detmode", "doctor", "--format", "json"))
SANITIZED = ("scan", "order_statistics", "upsample")

STAGES = (
    Stage(
        "versions",
        "what is installed; that every kernel is in the cache",
        (
            DOCTOR,
            Job("kernels", _python("tools/prebuild.py", "--check")),
        ),
        (DOCTOR,),
        read_versions,
        minutes=1.5,
        processes=2,
    ),
    Stage(
        "contact",
        "a kernel loads, receives its arguments and launches; the digest equals the CPU's",
        _tests(
            *("tests/cuda/test_allocation.py", "tests/cuda/test_launch.py"),
            *("tests/bits/test_digest.py", *CUDA),
        ),
        _tests("tests/bits/test_digest.py", "-k", "test_kernel_is_the_cpu_form", *SMALL),
        read_tests,
        minutes=2,
        patience=60,
    ),
    Stage(
        "hangs",
        "scans of more blocks than a GPU holds finish, with the host runner's bits",
        _tests("tests/gpu/test_many_blocks.py", *CUDA),
        _tests("tests/gpu/test_many_blocks.py", *SMALL),
        read_tests,
        minutes=4,
        patience=90,
    ),
    Stage(
        "runner",
        "the bits of every sample are those of the host runner",
        _tests("tests/gpu/test_host_runner.py", *CUDA, shares=MANY),
        (),
        read_tests,
        minutes=3,
        processes=MANY,
    ),
    Stage(
        "surroundings",
        "graphs, streams, memory, threads, compiled code; the check of bits can fail",
        _tests(
            *("tests/gpu/test_graphs.py", "tests/gpu/test_streams.py"),
            *("tests/gpu/test_backward.py", "tests/gpu/test_negative_control.py"),
            *("tests/gpu/test_compiled.py", "tests/mode/test_torch_native.py", *CUDA),
            shares=MANY,
        ),
        _tests("tests/gpu/test_backward.py", "-k", "reflection_pad1d", *SMALL),
        read_tests,
        minutes=4,
        processes=MANY,
    ),
    Stage(
        "timed",
        "each family compared with ATen: the most used first, then the rest, then other dtypes",
        (
            _timed("first", "--part", "operators", "--dtype", "float32", *_families(FIRST)),
            _timed("rest", "--part", "operators", "--dtype", "float32", *_families(REST)),
            _timed("other dtypes", "--part", "operators"),
        ),
        (
            _timed(
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
        _tests("tests/rules/test_bits.py", *CUDA, shares=MANY),
        _tests("tests/rules/test_bits.py", "-k", "schedules and histograms-bool", *SMALL),
        read_tests,
        minutes=5,
        processes=MANY,
    ),
    Stage(
        "verify",
        "every claim of the table: bits of 100 runs, errors, special values",
        tuple(_verify(family, "cuda", 100) for family in (*FIRST, *REST)),
        (_verify("embedding", "host", 2),),
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
                _python("benchmarks/variation.py", "--output", "{folder}/variation", "--resume")
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
        (_timed("a call", "--part", "host"),),
        (_timed("a call", "--part", "host", "--rounds", "2", "--calls", "20"),),
        read_host,
        minutes=1.5,
    ),
    Stage(
        "calls",
        "whole calls on the host, with their launches; programs under both ways of interception",
        (
            Job("calls", _python("benchmarks/host_calls.py", "--device", "cuda")),
            Job(
                "programs",
                _python("benchmarks/overhead.py", "--device", "cuda", "--imports", "0"),
            ),
        ),
        (
            Job(
                "calls",
                _python("benchmarks/host_calls.py", "--turns", "1", "--rounds", "1", "--only")
                + ("cumsum",),
            ),
            Job(
                "programs",
                _python("benchmarks/overhead.py", "--rounds", "2", "--calls", "2", "--runs", "1")
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
                _python("benchmarks/warming.py", "--device", "cuda", "aten::index_add")
                + ("aten::cumsum", "aten::upsample_bilinear2d_backward"),
            ),
        ),
        (Job("losses", _python("benchmarks/warming.py", "aten::nll_loss2d_forward")),),
        read_printed,
        minutes=2,
    ),
    Stage(
        "profile",
        "what bounds the kernels that matter most, by ncu",
        (
            _profiled("sorted_rows", "index", "aten::index_add", "graph_1m_edges_64"),
            _profiled("scan_row", "scan", "aten::cumsum", "row_256m"),
            _profiled(
                *("grid_sampler_strips", "grid_sampler"),
                *("aten::grid_sampler_2d_backward", "spatial_transformer"),
            ),
        ),
        (Job("scan", _python("tools/profile_call.py", "scan", "aten::cumsum", "row")),),
        read_profile,
        minutes=2,
    ),
    Stage(
        "sanitizer",
        "compute-sanitizer finds nothing in scans, selections and interpolation",
        tuple(
            _sanitized(family, tool)
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
        _tests("tests/gpu/test_large.py", *CUDA),
        _tests("tests/gpu/test_large.py", "-k", "cumsum", *SMALL),
        read_tests,
        minutes=4,
    ),
    Stage(
        "steps",
        "whole training steps, plain and captured, compared with nondeterministic ones",
        (_timed("models", "--part", "steps", "--part", "captured"),),
        (_timed("models", "--part", "steps", "--model", "gpt", "--rounds", "2"),),
        read_steps,
        minutes=6,
    ),
    Stage(
        "rest",
        "all other tests that need a GPU: alerts, torchvision, recording, seeds, accuracy",
        _tests(
            *("tests/gpu/test_alerts_of_pytorch.py", "tests/rules/test_torchvision.py"),
            *("tests/tools/test_sanitize.py", "tests/cuda/test_sanitized_build.py"),
            *("tests/runs/test_probe.py", "tests/runs/test_recording.py"),
            *("tests/environment/test_seeding.py", "tests/benchmarks/test_variation.py"),
            *("tests/rules/test_truth.py", *CUDA),
            shares=MANY,
        ),
        _tests("tests/benchmarks/test_variation.py", "-k", "test_sentences", *SMALL),
        read_tests,
        minutes=6,
        processes=MANY,
    ),
)


# Running them


class Day:
    """One command's run.

    Args:
        folder: of the results; goes on with what is there.
        on_gpu: whether the stages' own jobs run, or those of the host.
        end: no job goes on after this, of the monotonic clock.
        provenance: the origin of the results.

    Raises:
        ValueError: the folder's results are of another commit or machine.
    """

    def __init__(
        self, folder: Path, on_gpu: bool, end: float, provenance: dict[str, str | None]
    ) -> None:
        self.folder, self.on_gpu, self.end = folder, on_gpu, end
        self.commit = provenance["commit"] or "unknown"
        self.lock = threading.Lock()
        self.results = folder / "results.jsonl"
        self.known: dict[str, dict[str, Any]] = {}
        first = {"of": {name: value for name, value in provenance.items() if name != "date"}}
        if self.results.exists():
            texts = self.results.read_text(encoding="utf-8").splitlines()
            begun, *lines = map(json.loads, texts)
            if begun != first:
                raise ValueError(
                    f"{self.results} is of another commit or machine; give another folder"
                )
            self.known = {line["job"]: line for line in lines}
        else:
            self._write(first)

    def work(self, stages: Sequence[Stage]) -> None:
        """Run what is missing: what was never begun, then what was left in the middle."""
        begun = set(self.known)
        for again in (False, True):
            for stage in stages:
                jobs = [job for job in self.jobs(stage) if (_key(stage, job) in begun) is again]
                left = [job for job in jobs if not self._ended(stage, job)]
                if not left or self.end - time.monotonic() < STARTING:
                    continue
                print(f"{stage.name}: {stage.shows} ...", file=sys.stderr, flush=True)
                with ThreadPoolExecutor(stage.processes) as pool:
                    try:
                        list(pool.map(lambda job, stage=stage: self._job(stage, job), left))
                    except KeyboardInterrupt:
                        self.end = time.monotonic()  # what runs is ended, and told

    def jobs(self, stage: Stage) -> tuple[Job, ...]:
        """The stage's jobs here."""
        return stage.jobs if self.on_gpu else stage.on_host

    def _ended(self, stage: Stage, job: Job) -> bool:
        line = self.known.get(_key(stage, job))
        return line is not None and line["outcome"] not in UNFINISHED

    def _write(self, line: dict[str, Any]) -> None:
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _job(self, stage: Stage, job: Job) -> None:
        start = time.monotonic()
        if self.end - start < STARTING:
            return
        program = job.needs or job.command[0]
        if shutil.which(program) is None:
            found = [Finding(job.name, NOT_HERE, f"{program} is not installed")]
            text, outcome = "", NOT_HERE
        else:
            with tempfile.TemporaryDirectory() as scratch:
                run = self._run(stage, job, Path(scratch, "log"))
            text, outcome = run.text, run.outcome
            try:
                found = stage.read(run)
            except Exception as error:  # the other stages tell more than this one's output
                found = [Finding(job.name, FAILED, f"cannot be read: {error!r}")]
            outcomes = {each.outcome for each in found}
            if outcome == OK and not outcomes.isdisjoint(BAD):
                outcome = FAILED
            elif outcome == OK and outcomes == {NOT_HERE}:
                outcome = NOT_HERE
        seconds = round(time.monotonic() - start, 1)
        line = {"job": _key(stage, job), "outcome": outcome, "seconds": seconds}
        line["findings"] = [dataclasses.asdict(each) for each in found]
        with self.lock:
            self.known[line["job"]] = line
            self._write(line)
            with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
                log.write(f"==== {line['job']}: {outcome}, {seconds} s\n{text[-KEPT:]}\n")

    def _run(self, stage: Stage, job: Job, log: Path) -> Run:
        """Run the job; tests anew without the one that hung or broke the process."""
        limit = min(time.monotonic() + 60 * stage.minutes, self.end)
        while True:
            command = self._command(stage, job, limit)
            # What is timed has the machine for itself.
            threads = {"OMP_NUM_THREADS": "2"} if stage.processes > 1 else {}
            environment = {**os.environ, **threads}
            code, outcome = self._attempt(command, log, limit, stage.patience, environment)
            if outcome is None:
                # pytest: 0 and 1 are of tests that ended, 5 of none that was left.
                fine, ended = ((0, 5), (0, 1, 5)) if _journals(job) else ((0,), (0, 1, 2))
                outcome = OK if code in fine else FAILED
                broken = code not in ended
            else:
                broken = outcome == HUNG
            if not (broken and _journals(job) and self._blame(stage, job, code)):
                break
            if limit - time.monotonic() < STARTING:
                outcome = PARTLY
                break
        text = log.read_text(encoding="utf-8", errors="replace")
        if outcome == LIMIT and (limit >= self.end or "{folder}" in " ".join(job.command)):
            outcome = PARTLY
        if outcome in (OK, FAILED) and "; --resume goes on" in text:
            outcome = PARTLY
        return Run(stage, job, self.folder, code, outcome, text)

    def _attempt(
        self,
        command: Sequence[str],
        log: Path,
        limit: float,
        patience: float,
        environment: Mapping[str, str],
    ) -> tuple[int | None, str | None]:
        """The exit code; or none, and whether it said nothing for too long or ran too long."""
        with log.open("ab") as output:
            size, changed = log.stat().st_size, float("inf")
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # with what it starts itself it is one group
            )
        while True:
            try:
                return process.wait(0.2), None
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if log.stat().st_size != size:
                size, changed = log.stat().st_size, now
            outcome = LIMIT if now > min(limit, self.end) else HUNG
            if outcome == LIMIT or now - changed > patience:
                os.killpg(process.pid, signal.SIGKILL)
                # What waits for the driver no signal ends; the others go on.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                return None, outcome

    def _command(self, stage: Stage, job: Job, limit: float) -> list[str]:
        left = max(limit - time.monotonic() - STARTING, 6.0) / 60
        values = {"{folder}": str(self.folder), "{minutes}": f"{left:.2f}"}
        values |= {"{commit}": self.commit, "{part}": _key(stage, job)}
        found = []
        for word in job.command:
            for name, value in values.items():
                word = word.replace(name, value)
            found.append(word)
        return found

    def _blame(self, stage: Stage, job: Job, code: int | None) -> bool:
        """Find out if a test had begun; it is told as the one that did it, and not run again."""
        path = self.folder / "tests.jsonl"
        begun = [
            line
            for line in journal.read(path).values()
            if line["part"] == _key(stage, job) and line["outcome"] == journal.STARTED
        ]
        for line in begun:
            how = {"outcome": HUNG, "found": f"no word for {stage.patience:.0f} s"}
            if code is not None:
                how = {"outcome": FAILED, "found": f"ended its process with exit code {code}"}
            journal.write(path, {**line, **how})
        return bool(begun)

    def table(self, stages: Sequence[Stage]) -> str:
        """Stage, family, outcome, seconds, what was found."""
        rows: list[tuple[str, ...]] = []
        for stage in stages:
            lines = [self.known.get(_key(stage, job)) for job in self.jobs(stage)]
            if not lines:
                rows.append((stage.name, "", NOT_HERE, "", "needs a GPU"))
            elif not any(lines):
                rows.append((stage.name, "", "not run", "", "the minutes were over"))
            else:
                rows += _rows(stage, [line for line in lines if line is not None])
        heads = ("stage", "family", "outcome", "s", "found")
        return tabulate(rows, headers=heads, disable_numparse=True)

    def bad(self, stages: Sequence[Stage]) -> bool:
        """Tell whether something of these stages does not hold."""
        keys = {_key(stage, job) for stage in stages for job in self.jobs(stage)}
        return any(line["outcome"] in BAD for key, line in self.known.items() if key in keys)


STARTING = 20.0
"""Seconds that a job needs before it tells anything: none begins in the last ones."""
SHOWN = 8
"""Lines that the table has for what is wrong in one stage."""
WIDE = 90
"""Characters of a finding in the table."""


def _key(stage: Stage, job: Job) -> str:
    return f"{stage.name}: {job.name}"


def _journals(job: Job) -> bool:
    return "--journal" in job.command


def _rows(stage: Stage, lines: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of a stage: one of the checks that hold, one for each family with some that do not."""
    checks, families, longest = 0, set(), 0.0
    good: list[tuple[str, ...]] = []
    wrong: list[tuple[str, ...]] = []
    for line in lines:
        for each in (Finding(**found) for found in line["findings"]):
            if each.outcome == OK and each.checks:
                checks += each.checks
                families.add(each.family)
                longest = max(longest, line["seconds"])
                continue
            seconds = f"{line['seconds']:.0f}"
            row = (stage.name, each.family, each.outcome, seconds, each.found[:WIDE])
            (wrong if each.outcome in BAD else good).append(row)
    if checks:
        what = f"{len(families)} families" if len(families) > 1 else next(iter(families))
        good.insert(0, (stage.name, what, OK, f"{longest:.0f}", f"{checks} checks hold"))
    if len(wrong) > SHOWN:
        more = f"{len(wrong) - SHOWN} more lines like these in results.jsonl"
        wrong[SHOWN:] = [(stage.name, "...", wrong[-1][2], "", more)]
    return [*good, *wrong]


def surroundings(cache: Path | None) -> None:
    """Set in this process's environment what the programs find there."""
    if cache is not None:
        os.environ["DETMODE_CACHE"] = str(prebuild.install(cache))
    paths = [str(ROOT), str(ROOT / "tools"), str(ROOT / "benchmarks")]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*paths, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def probed() -> dict[str, Any]:
    """Provenance, and why no CUDA kernel can be launched here; asked where it may hang.

    Raises:
        ValueError: there is no answer.
    """
    try:
        asked = _python("-c", PROBE)
        answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise ValueError("the driver does not answer within 120 s; see nvidia-smi") from None
    if answer.returncode != 0:
        raise ValueError(f"detmode does not start: {_last_line(answer.stderr)}")
    found: dict[str, Any] = json.loads(_last_line(answer.stdout))
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="of results")
    found.add_argument("--minutes", type=float, default=9.0, help="of this part; default: 9")
    found.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with the results of another part"
    )
    found.add_argument("--device", choices=["cuda", "host"], default="cuda", help="default: cuda")
    names = [stage.name for stage in STAGES]
    found.add_argument(
        "--stage", action="append", choices=names, metavar="NAME", help=f"repeatable: {names}"
    )
    found.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="what tools/prebuild.py made; default: if any"
    )
    found.add_argument("--commit", help="of detmode, in a copy without its repository")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    end = time.monotonic() + 60 * options.minutes
    # What ends it ends what runs, and still has the table.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = options.output.resolve()
    cache = options.cache or (prebuild.BUILT if prebuild.BUILT.exists() else None)
    stages = [stage for stage in STAGES if stage.name in (options.stage or stage.name)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if options.resume is not None and options.resume.resolve() != folder:
            shutil.copytree(options.resume, folder, dirs_exist_ok=True)
        surroundings(cache)
        found = probed()
        if options.device == "cuda" and found["reason"] is not None:
            raise ValueError(f"{found['reason']} --device host needs none")
        provenance = found["provenance"]
        provenance["commit"] = options.commit or provenance["commit"]
        day = Day(folder, options.device == "cuda", end, provenance)
    except (OSError, ValueError) as error:
        print(f"cannot begin: {error}", file=sys.stderr)
        return 2
    day.work(stages)
    print(day.table(stages))
    print(", ".join(f"{name} {value}" for name, value in provenance.items() if value))
    print(f"everything is in {folder}; --resume {options.output} goes on")
    return 1 if day.bad(stages) else 0


if __name__ == "__main__":
    sys.exit(main())
