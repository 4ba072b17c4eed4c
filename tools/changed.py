"""The families of operators whose kernels, or what launches them, changed since a commit.

A family's digest is of its CUDA sources with what they include, and of the Python files of its
folder and of the folder of rows that it imports. ``--changed-since`` of ``gpu_day.py`` runs only
the families whose digest differs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
SHARED = ("detmode.cuda.rows", "detmode.cuda.accumulator")
"""The modules outside of the families that decide on launches."""


def digests() -> dict[str, str]:
    """The digest of each family that has kernels, of the detmode that is imported."""
    from detmode.rules import families

    found = {family: _digest(family) for family in families()}
    return {family: digest for family, digest in found.items() if digest is not None}


def _digest(family: str) -> str | None:
    from detmode.cuda import Source

    has_kernels = False
    texts: dict[str, str] = {}
    for module in _modules(family):
        path = Path(str(module.__file__))
        texts[path.name + module.__name__] = path.read_text(encoding="utf-8")
        for value in vars(module).values():
            if isinstance(value, Source):
                has_kernels = True
                texts[value.name] = "".join((value.text, *value.entries))
    if not has_kernels:
        return None
    # A line directive names the file, which lies elsewhere in another tree.
    lines = (
        line
        for name in sorted(texts)
        for line in (name, *texts[name].splitlines())
        if not line.startswith("#line")
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _modules(family: str) -> Iterator[ModuleType]:
    """The modules of a family and of what it imports that decide on launches."""
    within = (f"detmode.rules.{family}", *SHARED)
    names = [f"detmode.rules.{family}"]
    folder = Path(str(importlib.import_module(names[0]).__file__)).parent
    names += [f"{names[0]}.{file.stem}" for file in sorted(folder.glob("*.py"))]
    for name in names:
        if name.endswith((".__init__", ".samples", ".reference")):
            continue
        module = importlib.import_module(name)
        yield module
        for value in vars(module).values():
            imported = value.__name__ if isinstance(value, ModuleType) else None
            imported = imported or getattr(value, "__module__", None)
            if isinstance(imported, str) and imported.startswith(within) and imported not in names:
                names.append(imported)


def digests_at(commit: str) -> dict[str, str]:
    """The digests of a commit of this repository.

    Raises:
        ValueError: git knows no such commit, or its detmode cannot be read.
    """
    listed = ("git", "-C", str(ROOT), "archive", commit, "detmode")
    archive = subprocess.run(listed, capture_output=True, check=False)
    if archive.returncode != 0:
        said = archive.stderr.decode(errors="replace").strip()
        raise ValueError(f"--changed-since {commit}: {said}")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        return _digests_in(Path(folder))


def _digests_in(folder: Path) -> dict[str, str]:
    """Those of a tree, in a process that has imported nothing else."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    answer = subprocess.run(
        (sys.executable, __file__),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        said = answer.stderr.strip().splitlines()[-1]
        raise ValueError(f"the kernels' digests cannot be read: {said}")
    found: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return found


def since(commit: str) -> list[str]:
    """The families whose digest differs from the commit's.

    Args:
        commit: of this repository; or a ``results.jsonl``, whose first line has the digests of what
            was measured, where there is no repository.

    Raises:
        ValueError: there are no digests of it.
    """
    path = Path(commit)
    before = _of_results(path) if path.suffix == ".jsonl" else digests_at(commit)
    now = _digests_in(ROOT)
    return [family for family, digest in now.items() if before.get(family) != digest]


def _of_results(path: Path) -> dict[str, str]:
    try:
        first = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        found: dict[str, str] = first["sources"]
    except (OSError, LookupError, ValueError) as error:
        raise ValueError(f"--changed-since {path}: it has no digests ({error!r})") from None
    return found


if __name__ == "__main__":
    print(json.dumps(digests()))
