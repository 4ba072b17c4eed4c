"""Everything that a GPU can tell, most telling first, in parts of less than ten minutes.

Each stage is processes of their own under a time limit: what hangs, traps or fails is told by
family of operators, and stops nothing else. What is found is written at once into a folder of a few
files: ``results.jsonl``, a line for each job; ``tests.jsonl``, a line for each test; ``log.txt``,
the end of what each job printed; ``timed/`` and ``variation/``, the figures. ``--minutes`` ends a
part, ``--resume FOLDER`` goes on with what another left. A table comes last. ``--profile first``
and ``--profile second`` are what fits into fifteen minutes.

``--device host`` runs what can run without a GPU, each stage at one small size.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu_profiles
import journal
import prebuild
from gpu_stages import (
    BAD,
    FAILED,
    HUNG,
    LIMIT,
    NOT_HERE,
    OK,
    PARTLY,
    STAGES,
    UNFINISHED,
    Finding,
    Job,
    Run,
    Stage,
    key_of,
    last_line,
    python,
)
from prebuild import ROOT
from tabulate import tabulate

KEPT = 1 << 16
"""Bytes of a job's output that the log keeps."""
PROBE = """
import json
from provenance import provenance
from detmode import cuda
import changed
reason = cuda.unavailable("cuda")
print(json.dumps({"reason": reason, "provenance": provenance(), "sources": changed.digests()}))
"""


class Day:
    """One command's run.

    Args:
        folder: of the results; goes on with what is there.
        on_gpu: whether the stages' own jobs run, or those of the host.
        end: no job goes on after this, of the monotonic clock.
        provenance: the origin of the results.
        sources: the digests of the families' kernels, which a later day compares with its own.

    Raises:
        ValueError: the folder's results are of another commit or machine.
    """

    def __init__(
        self,
        folder: Path,
        on_gpu: bool,
        end: float,
        provenance: dict[str, str | None],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.on_gpu, self.end = folder, on_gpu, end
        self.commit = provenance["commit"] or "unknown"
        self.lock = threading.Lock()
        self.results = folder / "results.jsonl"
        self.known: dict[str, dict[str, Any]] = {}
        origin = {name: value for name, value in provenance.items() if name != "date"}
        if self.results.exists():
            texts = self.results.read_text(encoding="utf-8").splitlines()
            begun, *lines = map(json.loads, texts)
            if begun["of"] != origin:
                raise ValueError(
                    f"{self.results} is of another commit or machine; give another folder"
                )
            self.known = {line["job"]: line for line in lines}
        else:
            self._write({"of": origin, "sources": dict(sources or {})})

    def work(self, stages: Sequence[Stage]) -> None:
        """Run what is missing: what was never begun, then what was left in the middle."""
        begun = set(self.known)
        for again in (False, True):
            for stage in stages:
                jobs = [job for job in self.jobs(stage) if (key_of(stage, job) in begun) is again]
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
        line = self.known.get(key_of(stage, job))
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
        line = {"job": key_of(stage, job), "outcome": outcome, "seconds": seconds}
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
        values |= {"{commit}": self.commit, "{part}": key_of(stage, job)}
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
            if line["part"] == key_of(stage, job) and line["outcome"] == journal.STARTED
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
            lines = [self.known.get(key_of(stage, job)) for job in self.jobs(stage)]
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
        keys = {key_of(stage, job) for stage in stages for job in self.jobs(stage)}
        return any(line["outcome"] in BAD for key, line in self.known.items() if key in keys)


STARTING = 20.0
"""Seconds that a job needs before it tells anything: none begins in the last ones."""
SHOWN = 8
"""Lines that the table has for what is wrong in one stage."""
WIDE = 90
"""Characters of a finding in the table."""


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
        asked = python("-c", PROBE)
        answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise ValueError("the driver does not answer within 120 s; see nvidia-smi") from None
    if answer.returncode != 0:
        raise ValueError(f"detmode does not start: {last_line(answer.stderr)}")
    found: dict[str, Any] = json.loads(last_line(answer.stdout))
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="of results")
    found.add_argument("--minutes", type=float, default=9.0, help="of this part; default: 9")
    found.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with the results of another part"
    )
    found.add_argument("--device", choices=["cuda", "host"], default="cuda", help="default: cuda")
    found.add_argument(
        "--profile",
        choices=["first", "second"],
        help="what fits into nine minutes, and then into four; default: everything",
    )
    names = [stage.name for stage in STAGES]
    found.add_argument(
        "--stage", action="append", metavar="NAME", help=f"repeatable; without --profile: {names}"
    )
    found.add_argument("--family", action="append", metavar="NAME", help="only these; repeatable")
    found.add_argument(
        "--changed-since",
        metavar="COMMIT",
        help="bits only of families whose sources differ; also a results.jsonl",
    )
    found.add_argument("--old", type=Path, metavar="FOLDER", help="with another version's detmode")
    found.add_argument("--list", action="store_true", help="only print what would be started")
    found.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="what tools/prebuild.py made; default: if any"
    )
    found.add_argument("--commit", help="of detmode, in a copy without its repository")
    return found


def listed(stages: Sequence[Stage], on_gpu: bool) -> str:
    """The commands of stages, a line each, with the seconds that a job took before."""
    seconds = gpu_profiles.measured()
    return "\n".join(
        f"{key_of(stage, job)} ({seconds.get(key_of(stage, job), '?')} s): {' '.join(job.command)}"
        for stage in stages
        for job in (stage.jobs if on_gpu else stage.on_host)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    end = time.monotonic() + 60 * options.minutes
    # What ends it ends what runs, and still has the table.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = options.output.resolve()
    cache = options.cache or (prebuild.BUILT if prebuild.BUILT.exists() else None)
    try:
        stages = gpu_profiles.chosen(
            *(options.profile, options.stage, options.family, options.changed_since),
            options.old and options.old.resolve(),
        )
        if options.list:
            print(listed(stages, options.device == "cuda"))
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        if options.resume is not None and options.resume.resolve() != folder:
            shutil.copytree(options.resume, folder, dirs_exist_ok=True)
        surroundings(cache)
        found = probed()
        if options.device == "cuda" and found["reason"] is not None:
            raise ValueError(f"{found['reason']} --device host needs none")
        provenance = found["provenance"]
        provenance["commit"] = options.commit or provenance["commit"]
        day = Day(folder, options.device == "cuda", end, provenance, found["sources"])
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
