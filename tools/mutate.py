"""Break the code in one line at a time, and see whether the tests notice.

``python tools/mutate.py`` makes each mutant of ``tools/mutants.py`` in a copy of the tree, runs the
tests that concern it, and prints the mutants that survive. Exit code 1 where one does.

The tests must pass without the mutant for its end to mean something: each selection of tests is run
once on the unchanged tree first.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from mutants import MUTANTS, Mutant
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design" / "mutants.md"
COPIED = (".ci", "detmode", "tests", "tools", "benchmarks", "examples", "docs")
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


def run_tests(tree: Path, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Run tests in a copy of the tree; pytest's exit code, or None at the limit, and its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
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
    """Run the tests of one mutant on the broken tree."""
    begun = time.monotonic()
    with broken(tree, mutant):
        code, output = run_tests(tree, mutant.tests, limit_s)
    seconds = time.monotonic() - begun
    if code is None:
        return Outcome(mutant, KILLED, seconds, f"its tests did not end in {limit_s:.0f} s")
    # Of pytest's summary, not of what a test logs.
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+\.py.*)", output, re.MULTILINE)
    told = failed[0].split(" - ")[0] if failed else ""
    if code in _NOTICED and told:
        return Outcome(mutant, KILLED, seconds, told)
    if code == 0:
        return Outcome(mutant, SURVIVED, seconds, "")
    return Outcome(mutant, INVALID, seconds, f"pytest ended with {code}: {output[-200:]}")


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
            selections = list(dict.fromkeys(mutant.tests for mutant in chosen))
            green = dict(
                zip(
                    selections,
                    pool.map(lambda tests: in_a_tree(run_tests, tests, 10 * limit_s), selections),
                )
            )
            valid = []
            for mutant in chosen:
                code, output = green[mutant.tests]
                if code == 0:
                    valid.append(mutant)
                else:
                    told = f"without it its tests end with {code}: {output[-400:]}"
                    yield Outcome(mutant, INVALID, 0.0, told)
            yield from pool.map(lambda mutant: in_a_tree(check, mutant, limit_s), valid)


def page(outcomes: Iterable[Outcome], commit: str) -> str:
    """The page of the documentation: the list and its score."""
    found = list(outcomes)
    killed = sum(each.outcome == KILLED for each in found)
    rows = [
        (
            f"`{each.mutant.file}`",
            _cell(each.mutant.old),
            _cell(each.mutant.new),
            f"{each.outcome}: `{each.told}`" if each.told else each.outcome,
        )
        for each in found
    ]
    heads = ("file", "line", "broken", "outcome")
    return (
        "<!-- Generated by tools/mutate.py. -->\n\n# Mutants\n\n"
        "Each line below was broken by itself, and the tests that concern it were run: the test\n"
        "that noticed is named. `python tools/mutate.py` does it again.\n\n"
        f"**{killed} of {len(found)} mutants were noticed**, at commit {commit}, without a GPU.\n\n"
        + tabulate(rows, headers=heads, tablefmt="pipe", disable_numparse=True)
        + "\n"
    )


def _cell(code: str) -> str:
    """Code on one line of a table."""
    return f"`{' '.join(code.split())}`".replace("|", "\\|")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument(
        "-k", dest="only", default="", help="only mutants of files with this in them"
    )
    found.add_argument("-j", "--jobs", type=int, default=2, help="copies of the tree (default 2)")
    found.add_argument("--limit", type=float, default=300, help="seconds for a mutant's tests")
    found.add_argument("--write", action="store_true", help="write docs/design/mutants.md")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Check the chosen mutants; print each, and at the end those that survive."""
    options = parser().parse_args(argv)
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.file]
    if not chosen:
        print(f"no mutant's file has {options.only!r} in its path", file=sys.stderr)
        return 2
    outcomes = {}
    for each in check_all(chosen, options.jobs, options.limit):
        outcomes[each.mutant] = each
        print(f"{each.outcome:9}{each.seconds:6.1f} s  {each.mutant}  {each.told}", flush=True)
    ordered = [outcomes[mutant] for mutant in chosen]
    left = [each for each in ordered if each.outcome != KILLED]
    print(f"\n{len(ordered) - len(left)} of {len(ordered)} mutants were noticed")
    for each in left:
        print(f"{each.outcome}: {each.mutant}")
    if options.write and not left:
        git = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        PAGE.write_text(page(ordered, commit), encoding="utf-8")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
