"""The tests of a module, by rule: those that mirror its path, else those that name it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def tests_of(file: str, root: Path) -> tuple[str, ...]:
    """Arguments of pytest for the tests of a file: the first of these that there are.

    1. ``test_<name>.py`` in the folder below ``tests`` that mirrors the file's, or in one above;
       the name of a folder's ``__init__.py`` is the folder's.
    2. All that is claimed of its family of operators; of a CUDA source or a launcher that families
       share, of the first that uses it.
    3. Test files that import it, of its outermost folder if some of those do.
    4. Tests named after a folder that it is in.
    5. All tests of its outermost folder.

    Empty if there are none.
    """
    path = PurePosixPath(file).relative_to("detmode")
    for rule in (_mirrored, _of_a_family, _importing, _of_folders):
        tests = tuple(str(each) for each in rule(path, root))
        if tests:
            return tests
    folder = f"tests/{path.parts[0]}"
    return (folder,) if (root / folder).is_dir() else ()


def _name(path: PurePosixPath) -> str:
    return path.parent.name if path.stem == "__init__" else path.stem


def _mirrored(path: PurePosixPath, root: Path) -> Iterator[PurePosixPath]:
    for folder in path.parents:
        test = "tests" / folder / f"test_{_name(path)}.py"
        if (root / test).exists():
            yield test
            return


def _of_a_family(path: PurePosixPath, root: Path) -> tuple[str, ...]:
    rules = root / "detmode" / "rules"
    parts = path.parts
    if parts[0] == "rules" and len(parts) > 2:
        return ("tests/rules", "--family", parts[1])
    if path.parent.name not in ("include", "rows"):
        return ()
    families = sorted(each.parent.name for each in _users(path, rules))
    return ("tests/rules", "--family", families[0]) if families else ()


def _users(path: PurePosixPath, rules: Path) -> set[Path]:
    """The sources of families that use a shared one, or another shared one that does."""
    shared = [each for each in (rules.parent / "cuda").rglob("*") if each.suffix in _SOURCES]
    families = [each for each in rules.rglob("*") if each.suffix in _SOURCES]
    known, names = {path.name}, [path.stem]
    for name in names:  # which grows
        word = re.compile(rf"\brows(?:\.| import .*\b){name}\b|\b{name}\.cuh?\b|\"{name}\.cu")
        for each in shared:
            if each.name not in known and word.search(each.read_text(encoding="utf-8")):
                known.add(each.name)
                names.append(each.stem)
    word = re.compile("|".join(rf"rows(?:\.| import .*\b){name}\b|\b{name}\.cuh" for name in names))
    return {each for each in families if word.search(each.read_text(encoding="utf-8"))}


_SOURCES = (".py", ".cu", ".cuh")


def _importing(path: PurePosixPath, root: Path) -> list[Path]:
    if path.stem == "__init__":
        return []  # whose folder nearly all import
    module = ".".join(("detmode", *path.with_suffix("").parts))
    package, _, name = module.rpartition(".")
    named = rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import [^\n]*\b{name}\b"
    importing = [
        test.relative_to(root)
        for test in sorted((root / "tests").rglob("test_*.py"))
        if re.search(named, test.read_text(encoding="utf-8"))
    ]
    near = [test for test in importing if test.parts[1] == path.parts[0]]
    return near or importing


def _of_folders(path: PurePosixPath, root: Path) -> Iterator[Path]:
    for folder in path.parents:
        tests = sorted((root / "tests").rglob(f"test_{folder.name}.py")) if folder.name else []
        if tests:
            yield from (each.relative_to(root) for each in tests)
            return
