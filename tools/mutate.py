"""Break the code in one place at a time, and see whether the tests notice.

``python tools/mutate.py`` makes each mutant of ``tools/mutants.py``, which are kept by hand; with
``--changed-since COMMIT`` or ``--files`` it makes those of the grammar of ``tools/mutations.py``,
in the lines that changed or in whole files, and ``--sample`` draws some of them. Each is made in a
copy of the tree, in which the tests that concern it run; exit code 1 where one survives. What
survives is a hole in the tests, or means the same as the line that was there.

The tests must pass without the mutant for its end to mean something: each selection of tests is run
once on the unchanged tree first. What the quick profile does not notice runs in the thorough one.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from module_tests import tests_of
from mutants import KEPT
from mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
COPIED = (".ci", ".github", "detmode", "tests", "tools", "benchmarks", "examples", "docs")
BROKEN = (".py", ".cu", ".cuh", ".h")
# What a test compares with is no code that a test should notice.
NOT_BROKEN = ("samples.py", "reference.py")
KILLED, SURVIVED, INVALID = "killed", "survived", "invalid"
# Of pytest: tests failed, and collection was interrupted, as by an import that fails.
_NOTICED = (1, 2)


@dataclass(frozen=True)
class Outcome:
    """The fate of a mutant.

    Args:
        mutant: which.
        outcome: ``"killed"``, ``"survived"``, or ``"invalid"`` where its tests cannot tell.
        seconds: the time its tests ran.
        told: the test that noticed it, or why it is invalid.
    """

    mutant: Mutant
    outcome: str
    seconds: float
    told: str


def copy_tree(to: Path) -> None:
    """Copy what the tests need, without caches."""
    ignored = shutil.ignore_patterns("__pycache__", "_build", ".*")
    to.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy2(file, to / file.name)


def run_tests(
    tree: Path, tests: Sequence[str], limit_s: float, profile: str = "quick"
) -> tuple[int | None, str]:
    """Run tests in a copy of the tree; pytest's exit code, or None at the limit, and its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["DETMODE_PROFILE"] = profile
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    try:
        ended = subprocess.run(
            [*command, "-p", "no:xdist", *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return ended.returncode, ended.stdout + ended.stderr


@contextmanager
def broken(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The tree with one mutant in it."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.apply(text), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def check(tree: Path, mutant: Mutant, limit_s: float) -> Outcome:
    """Run the tests of one mutant on the broken tree, in the thorough profile if need be."""
    outcome = check_in(tree, mutant, limit_s, "quick")
    if outcome.outcome != SURVIVED:
        return outcome
    code, output = run_tests(tree, mutant.tests, 10 * limit_s, "thorough")
    if code != 0:
        return replace(outcome, outcome=INVALID, told=_without_it(code, output))
    return check_in(tree, mutant, limit_s, "thorough")


def check_in(tree: Path, mutant: Mutant, limit_s: float, profile: str) -> Outcome:
    """Run the tests of one mutant on the broken tree, in one profile."""
    begun = time.monotonic()
    with broken(tree, mutant):
        code, output = run_tests(tree, mutant.tests, limit_s, profile)
    seconds = time.monotonic() - begun
    if code is None:
        return Outcome(mutant, KILLED, seconds, f"its tests did not end in {limit_s:.0f} s")
    # Of pytest's summary, not of what a test logs.
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+\.py.*)", output, re.MULTILINE)
    told = failed[0].split(" - ")[0] if failed else ""
    if "does not compile for the host runner" in output and not mutant.file.endswith(".py"):
        return Outcome(mutant, INVALID, seconds, "it does not compile")
    if code in _NOTICED and told:
        return Outcome(mutant, KILLED, seconds, told)
    if code < 0:
        return Outcome(mutant, KILLED, seconds, f"signal {-code} ended its tests")
    if code == 0:
        return Outcome(mutant, SURVIVED, seconds, "")
    return Outcome(mutant, INVALID, seconds, f"pytest ended with {code}: {output[-200:]}")


def _without_it(code: int | None, output: str) -> str:
    return f"without it its tests end with {code}: {output[-400:]}"


def check_all(chosen: Sequence[Mutant], jobs: int, limit_s: float) -> Iterator[Outcome]:
    """Check mutants in as many copies of the tree as there are jobs."""
    with TemporaryDirectory(prefix="mutants-") as folder:
        trees: Queue[Path] = Queue()
        for number in range(jobs):
            copy_tree(Path(folder) / str(number))
            trees.put(Path(folder) / str(number))

        def in_a_tree(action, *args):
            tree = trees.get()
            try:
                return action(tree, *args)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            selections = list(dict.fromkeys(mutant.tests for mutant in chosen if mutant.tests))
            green = dict(
                zip(
                    selections,
                    pool.map(lambda tests: in_a_tree(run_tests, tests, 10 * limit_s), selections),
                )
            )
            valid = []
            for mutant in chosen:
                code, output = green.get(mutant.tests, (None, "there are none"))
                if code == 0:
                    valid.append(mutant)
                else:
                    yield Outcome(mutant, INVALID, 0.0, _without_it(code, output))
            yield from pool.map(lambda mutant: in_a_tree(check, mutant, limit_s), valid)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("--changed-since", metavar="COMMIT", help="break lines that changed since")
    found.add_argument("--files", nargs="+", help="break these files, or those of these folders")
    found.add_argument("--sample", type=int, metavar="N", help="draw N mutants")
    found.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    found.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    found.add_argument(
        "-k", dest="only", default="", help="only mutants of files with this in them"
    )
    found.add_argument("-j", "--jobs", type=int, default=2, help="copies of the tree (default 2)")
    found.add_argument("--limit", type=float, default=300, help="seconds for a mutant's tests")
    return found


def changed_lines(commit: str) -> dict[str, frozenset[int]]:
    """The lines of each source below ``detmode`` that are not as they were at a commit."""
    git = ("git", "-C", str(ROOT), "diff", "-U0", "--no-color", "--no-ext-diff", commit, "--")
    text = subprocess.run(
        [*git, "detmode"], capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout
    lines = defaultdict(set)
    file = ""
    for found in re.finditer(
        r"^\+\+\+ (?:b/)?(.*)|^@@ \S+ \+(\d+)(?:,(\d+))? @@", text, re.MULTILINE
    ):
        if found[1] is not None:
            file = found[1]
        else:
            lines[file].update(range(int(found[2]), int(found[2]) + int(found[3] or 1)))
    return {file: frozenset(numbers) for file, numbers in lines.items() if numbers}


def sources(paths: Iterable[str]) -> list[str]:
    """Files, and the sources below folders."""
    found = [path for each in paths for path in [ROOT / each, *sorted((ROOT / each).rglob("*"))]]
    return list(
        dict.fromkeys(path.relative_to(ROOT).as_posix() for path in found if path.is_file())
    )


def generated(paths: Iterable[str] | None, commit: str | None, only: str) -> Iterator[Mutant]:
    """The mutants of the grammar, each with the tests of its module."""
    changed = None if commit is None else changed_lines(commit)
    for file in sources(changed or () if paths is None else paths):
        name = Path(file).name
        if not name.endswith(BROKEN) or name in NOT_BROKEN or only not in file:
            continue
        lines = None if changed is None else changed.get(file, frozenset())
        mutants = mutants_of(file, (ROOT / file).read_text(encoding="utf-8"), lines)
        tests = tests_of(file, ROOT) if mutants else ()
        yield from (replace(mutant, tests=tests) for mutant in mutants)


def draw(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Some of the mutants, of each operator about as many, in the order of their files."""
    random_numbers = random.Random(seed)
    by_operator = defaultdict(list)
    for mutant in random_numbers.sample(mutants, len(mutants)):
        by_operator[mutant.operator].append(mutant)
    ranked = sorted(
        (rank, operator, mutant.file, mutant.start, mutant.new, mutant)
        for operator, group in by_operator.items()
        for rank, mutant in enumerate(group)
    )
    return sorted((row[-1] for row in ranked[:count]), key=lambda each: (each.file, each.start))


def chosen_mutants(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that the command line asks for."""
    if options.files is None and options.changed_since is None:
        mutants = [kept.mutant() for kept in KEPT]
        mutants = [mutant for mutant in mutants if options.only in mutant.file]
    else:
        mutants = list(generated(options.files, options.changed_since, options.only))
    return mutants if options.sample is None else draw(mutants, options.sample, options.seed)


def main(argv: Sequence[str] | None = None) -> int:
    """Check the chosen mutants; print each, and at the end those that survive."""
    options = parser().parse_args(argv)
    chosen = chosen_mutants(options)
    if not chosen:
        print("no mutant is in these files and lines", file=sys.stderr)
        return 2
    if options.list:
        print(*chosen, sep="\n")
        return 0
    outcomes = {}
    for each in check_all(chosen, options.jobs, options.limit):
        outcomes[each.mutant] = each
        print(f"{each.outcome:9}{each.seconds:6.1f} s  {each.mutant}  {each.told}", flush=True)
    ordered = [outcomes[mutant] for mutant in chosen]
    left = [each for each in ordered if each.outcome != KILLED]
    print(f"\n{len(ordered) - len(left)} of {len(ordered)} mutants were noticed")
    for each in left:
        print(f"{each.outcome}: {each.mutant}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
