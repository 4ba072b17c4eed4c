"""Parts of a day on a GPU for few minutes: two calls, some families, an order by seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import changed
from prebuild import ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
import sides
from gpu_stages import (
    CUDA,
    MANY,
    STAGES,
    Job,
    Stage,
    by_pytest,
    for_families,
    key_of,
    profiled,
    python,
    read_last_line,
    read_printed,
    read_profile,
    read_tests,
    read_timed,
    timed,
)
from results import FOLDER, of_gpus

SECONDS = FOLDER / "gpu_day.jsonl"
"""The committed ``results.jsonl`` of a day, by whose seconds jobs are ordered."""
STRIPS = ("grid_sampler", "max_unpool", "scatter", "scatter_assign", "scatter_reduce")
"""The families whose blocks collect planes in shared memory."""
SANITIZED = (
    *((family, ("strips",)) for family in STRIPS if family != "grid_sampler"),
    ("grid_sampler", ("strips", "few_taps")),
    ("put", ("bins", "elect", "mark")),
    ("upsample", ("lanes",)),
)
"""By family, parts of the names of kernels whose threads share memory, or meet in it."""
SANITIZED_AS_LARGE = (("grid_sampler", ("boxes", "tiles")), ("index", ("few_destinations",)))
"""Those that only large inputs have."""
LARGE = ("grid_sampler", "index", "max_pool3d", "put", "scatter", "upsample")
"""The families in which large inputs have other kernels than samples."""
BITS = "tests/rules/test_bits.py"
SHARED = (64, 99)
"""KiB of shared memory that a block has on Turing and on Ada."""


def _stage(name: str) -> Stage:
    return next(stage for stage in STAGES if stage.name == name)


def _of_each(
    families: Sequence[str], file: str, *arguments: str, variant: str = ""
) -> tuple[Job, ...]:
    """Tests of each family on the GPU, which a variant of them makes others."""
    arguments += ("--variant", variant) if variant else ()
    return tuple(
        replace(job, name=", ".join(filter(None, (family, variant))))
        for family in families
        for job in by_pytest(file, *CUDA, "--family", family, *arguments)
    )


def _as_large(file: str) -> tuple[Job, ...]:
    return _of_each(LARGE, file, "-p", "as_large", "--as-large", variant="as large")


def _sanitized() -> tuple[Job, ...]:
    return tuple(
        Job(
            f"{', '.join((family, *how))}, {tool}",
            python("tools/sanitize.py", "--family", family, "--tool", tool, *how)
            + tuple(word for part in parts for word in ("--entry", part)),
            needs="compute-sanitizer",
        )
        for kernels, how in ((SANITIZED, ()), (SANITIZED_AS_LARGE, ("--as-large",)))
        for family, parts in kernels
        for tool in ("racecheck", "synccheck")
    )


def _never_timed() -> tuple[str, ...]:
    """The families of which no committed result has a time in float32."""
    known = {row.family for results in of_gpus() for row in results.rows}
    return tuple(family for family in sides.timed_families() if family not in known)


_TIMED = ("--part", "operators", "--rounds", "6", "--side", sides.ATEN)
_TIMED += ("--side", sides.ATEN_IN_PLACE)


def first() -> tuple[Stage, ...]:
    """Nine minutes: whether it works and has the right bits, then times of 16-bit dtypes."""
    runner, graphs = _stage("runner"), _stage("surroundings")
    as_large = _as_large("tests/gpu/test_host_runner.py")
    named = ("-k", "index or grid_sampler")
    many_blocks = by_pytest("tests/gpu/test_many_blocks.py", *CUDA, *named)
    half = timed("16 bits", *_TIMED, "--dtype", "bfloat16", "--dtype", "float16")
    return (
        replace(_stage("contact"), minutes=1),
        replace(runner, jobs=(*runner.jobs, *as_large), minutes=2),
        Stage(
            "strips",
            "no race in kernels whose blocks add or assign in shared memory, or elect",
            _sanitized(),
            (),
            read_last_line,
            minutes=2,
            processes=MANY,
        ),
        Stage(
            "strips' bits",
            "100 runs have the same bits, with other GPUs' shared memory, and as large inputs",
            (
                *_of_each(STRIPS, BITS),
                *(
                    job
                    for kib in SHARED
                    for job in _of_each(
                        *(STRIPS, BITS, "-p", "less_shared", f"--shared={kib}"),
                        variant=f"{kib} KiB",
                    )
                ),
                *_as_large(BITS),
                *(replace(job, name="many blocks") for job in many_blocks),
            ),
            (),
            read_tests,
            minutes=2,
            processes=MANY,
        ),
        replace(
            graphs,
            jobs=by_pytest(
                *("tests/gpu/test_plans.py", "tests/gpu/test_graphs.py"),
                *("tests/gpu/test_streams.py", *CUDA),
                shares=MANY,
            ),
            minutes=2,
        ),
        Stage("halves", "times of 16-bit dtypes", (half,), (), read_timed, minutes=4, patience=200),
    )


def second(old: Path) -> tuple[Stage, ...]:
    """Four minutes: times of what has none, the kernels beside the old ones, two profiles.

    Args:
        old: the folder with the other version's ``detmode``.
    """
    never = for_families(_never_timed())
    beside = python("benchmarks/new_against_old.py", "--old", str(old), "--rounds", "6")
    return (
        Stage(
            "never timed",
            "each family that has no time yet, compared with ATen",
            (timed("rest", *_TIMED, "--dtype", "float32", *never),),
            (),
            read_timed,
            minutes=1.5,
        ),
        Stage(
            "beside",
            "the kernels beside those of another version, in one process",
            tuple(
                Job(family, (*beside, "--family", family)) for family in ("scatter", "grid_sampler")
            ),
            (),
            read_printed,
            minutes=1,
        ),
        replace(
            _stage("profile"),
            jobs=(
                profiled(
                    *("index_add_strips", "scatter"),
                    *("aten::scatter_add", "pooling_8x64x16k_to_1k"),
                ),
                profiled("sorted_rows", "index", "aten::index_add", "graph_1m_edges_64"),
            ),
            read=read_profile,
            minutes=1,
        ),
    )


def narrowed(stage: Stage, families: Sequence[str]) -> Stage:
    """The stage with what concerns families only; what concerns none stays."""
    jobs = tuple(job for each in stage.jobs for job in _narrowed(each, families))
    on_host = tuple(job for each in stage.on_host for job in _narrowed(each, families))
    return replace(stage, jobs=jobs, on_host=on_host)


def _narrowed(job: Job, families: Sequence[str]) -> tuple[Job, ...]:
    words = job.command
    named = [words[i + 1] for i, word in enumerate(words) if word == "--family"]
    if "benchmarks/families.py" in words and not {"host", "steps", "captured"} & {*words}:
        chosen = [family for family in named or sides.timed_families() if family in families]
        bare = _without(words, "--family")
        return (replace(job, command=(*bare, *for_families(chosen))),) if chosen else ()
    if named:
        return (job,) if {*named} <= {*families} else ()
    if "pytest" in words and any("tests/rules/" in word or "host_runner" in word for word in words):
        # pytest takes one family; shares of a family would be small.
        if not job.name.startswith("tests 1/"):
            return ()
        bare = _without(words, "--share")
        return tuple(
            Job(f"{job.name.partition(' ')[0]} {family}", (*bare, "--family", family))
            for family in families
        )
    return (job,)


def _without(words: Sequence[str], option: str) -> tuple[str, ...]:
    """The command without an option and what follows it."""
    return tuple(
        word for i, word in enumerate(words) if option not in (word, words[i - 1] if i else "")
    )


def in_order(stage: Stage, seconds: Mapping[str, float]) -> Stage:
    """The stage with its jobs by the seconds that they took.

    Of jobs that run beside others the longest is first, so that all end early. Of the others it is
    the shortest, so that most are done when the minutes are over. What was not measured is last.
    """
    sign = -1 if stage.processes > 1 else 1

    def place(job: Job) -> tuple[bool, float]:
        known = seconds.get(key_of(stage, job))
        return known is None, 0.0 if known is None else sign * known

    return replace(stage, jobs=tuple(sorted(stage.jobs, key=place)))


def measured(path: Path = SECONDS) -> dict[str, float]:
    """The seconds of each job of a ``results.jsonl``; none where there is no such file."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:])
    return {line["job"]: line["seconds"] for line in lines if "job" in line}


def chosen(
    profile: str | None,
    names: Sequence[str] | None,
    families: Sequence[str] | None,
    since: str | None,
    old: Path | None,
) -> list[Stage]:
    """The stages that are asked for, in the order in which they run.

    Args:
        profile: ``"first"``, ``"second"``, or None for a whole day.
        names: of the stages; all, if None.
        families: all, if None.
        since: a commit or a ``results.jsonl``: of the runner's bits only families that changed.
        old: see :func:`second`.

    Raises:
        ValueError: options that do not go together; or as :func:`changed.since`.
    """
    if profile == "second" and old is None:
        raise ValueError("--profile second needs --old, a folder with the other version's detmode")
    stages = {"first": first, None: lambda: STAGES}.get(profile, lambda: second(old or Path()))()
    unknown = {*(names or ())} - {stage.name for stage in stages}
    if unknown:
        raise ValueError(f"--stage {sorted(unknown)[0]}: this run has no such stage")
    stages = [stage for stage in stages if not names or stage.name in names]
    if since is not None:
        found = changed.since(since)
        print(f"changed since {since}: {', '.join(found) or 'no family'}", file=sys.stderr)
        stages = [
            narrowed(stage, found) if stage.name in ("runner", "bits", "verify") else stage
            for stage in stages
        ]
    if families:
        stages = [narrowed(stage, families) for stage in stages]
    seconds = measured()
    return [in_order(stage, seconds) for stage in stages]
