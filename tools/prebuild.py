"""Compile every CUDA kernel for a GPU that is elsewhere, into a cache that travels there.

NVRTC needs no GPU. The cache is keyed by the text, the options and NVRTC's version, so the kernels
are made with the version that the other machine has: fetched from the package index into
``build/``, or taken from a folder. Kernels of the tests are among them. Does nothing again that the
cache has. A copy of the cache named ``detmode_kernels`` beside the package is found, too.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:  # imported with detmode, NVRTC would be another one: see `load`
    from detmode.cuda import Source

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "kernels"
OWN = ROOT / "build" / "cache"

Entry = tuple[str, str]
"""The file and the name of a kernel."""


def load(library: Path) -> None:
    """Load the NVRTC of this folder, before anything looks for one.

    CuPy takes the library of its name that the process has, and looks for one only then. NVRTC's
    own second library is found so too.

    Raises:
        FileNotFoundError: there is none.
    """
    for name in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
        found = sorted(library.rglob(name))
        if not found:
            raise FileNotFoundError(f"{library} has no {name}; give a folder that holds NVRTC")
        ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)


def fetched(version: str) -> Path:
    """The folder of the newest NVRTC of a version, such as ``"13.0"``, fetched where missing.

    Raises:
        FileNotFoundError: pip does not get it.
    """
    folder = ROOT / "build" / f"nvrtc-{version}"
    if not folder.exists():
        major = int(version.partition(".")[0])
        name = "nvidia-cuda-nvrtc" if major >= 13 else f"nvidia-cuda-nvrtc-cu{major}"
        part = folder.with_suffix(".part")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade")
        command = (*pip, "--target", str(part), f"{name}=={version}.*")
        if subprocess.run(command, check=False).returncode != 0:
            raise FileNotFoundError(
                f"pip does not get NVRTC {version}; give the folder of one with --library"
            )
        part.rename(folder)
    return folder


@cache
def sources() -> dict[str, Source]:
    """All sources of the package and of the tests that a GPU runs, by file."""
    import detmode.cuda
    from detmode.bits import digest
    from detmode.mode.warm import kernels

    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tests.shared import cuda_sources

    tests = vars(cuda_sources).values()
    values = [*kernels(detmode.default_rules()), digest.SOURCE, *tests]
    # Of a file with several sources each has its entries: they are joined.
    found: dict[str, Source] = {}
    for source in values:
        if isinstance(source, detmode.cuda.Source):
            known = found.setdefault(str(source.path), source)
            if not set(source.entries) <= set(known.entries):
                both = dict.fromkeys((*known.entries, *source.entries))
                found[str(source.path)] = detmode.cuda.Source(
                    str(source.path), source.path.name, tuple(both)
                )
    return found


def entries(folders: Iterable[str] = ()) -> list[Entry]:
    """Every kernel, or those of the files in folders of these names."""
    chosen = set(folders)
    return [
        (path, entry)
        for path, source in sources().items()
        if not chosen or Path(path).parent.name in chosen
        for entry in source.entries
    ]


def compiled(entry: Entry, arch: str) -> Path:
    """The kernel's file in the cache, made where it is missing."""
    from detmode.cuda import device

    path, name = entry
    return device.compiled(sources()[path], name, arch).path


def missing(wanted: Iterable[Entry], arch: str) -> Iterator[Entry]:
    """The kernels that the cache lacks; none is compiled."""
    from cupy.cuda import nvrtc

    class MissingError(Exception):
        pass

    with mock.patch.object(nvrtc, "createProgram", side_effect=MissingError):
        for entry in wanted:
            try:
                compiled(entry, arch)
            except MissingError:
                yield entry


def install(built: Path) -> Path:
    """Copy a cache that came from elsewhere into one of this user's; the folder of that.

    It is ``DETMODE_CACHE``, else one beside the built kernels. The copies belong to this user, who
    alone may write them, whoever had the files and whatever rights they travelled with: a cache
    that others could write is not to be trusted.
    """
    own = Path(os.environ.get("DETMODE_CACHE") or OWN)
    for file in built.rglob("*"):
        copy = own / file.relative_to(built)
        if file.is_file() and not copy.exists():
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            copy.chmod(0o644)
    return own


def arch_of_gpu() -> str:
    """The architecture for which detmode compiles on this machine's first GPU.

    Raises:
        ValueError: there is none.
    """
    import torch

    from detmode.cuda import device

    if not torch.cuda.is_available():
        raise ValueError("there is no GPU here; say for which one with --arch, like sm_90")
    return device._arch(torch.cuda.get_device_capability())


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--arch", help="such as sm_90; default: the GPU that is here")
    found.add_argument(
        "--nvrtc", metavar="VERSION", help="such as 13.0; default: the one that CuPy finds"
    )
    found.add_argument(
        "--library", type=Path, metavar="FOLDER", help="of NVRTC; default: fetch that version"
    )
    found.add_argument("--output", type=Path, help=f"the cache; default: {BUILT.relative_to(ROOT)}")
    found.add_argument("--folder", action="append", metavar="NAME", help="only files in it")
    found.add_argument("--processes", type=int, default=2, metavar="N", help="default: 2")
    found.add_argument(
        "--check", action="store_true", help="compile nothing; exit code 1 if something is missing"
    )
    return found


def run(options: argparse.Namespace) -> int:
    """Run the command, with its checks.

    Raises:
        ValueError: NVRTC is another one than was asked for, or there is no GPU to compile for.
        FileNotFoundError: there is no such NVRTC.
    """
    library = options.library or (fetched(options.nvrtc) if options.nvrtc else None)
    if library is not None:
        load(library)
    from cupy.cuda import nvrtc

    version = ".".join(map(str, nvrtc.getVersion()))
    if options.nvrtc not in (None, version):
        raise ValueError(f"NVRTC {options.nvrtc} was asked for, but CuPy has {version}")
    arch = options.arch or arch_of_gpu()
    wanted = entries(options.folder or ())
    lacking = list(missing(wanted, arch))
    what = f"{len(wanted)} kernels for {arch} by NVRTC {version}"
    if options.check:
        print(f"{what}: {len(lacking)} missing in the cache")
        return 1 if lacking else 0
    # Not forked: PyTorch has threads.
    context = multiprocessing.get_context("spawn")
    start = None if library is None else load
    given = () if library is None else (library,)
    with ProcessPoolExecutor(options.processes, context, start, given) as pool:
        from detmode.reports.progress import progress

        jobs = [pool.submit(compiled, entry, arch) for entry in lacking]
        for job in progress(jobs, "compiling", "kernels"):
            job.result()
    folder = Path(os.environ["DETMODE_CACHE"])
    left = sum(1 for _ in missing(lacking, arch))
    if left:
        raise OSError(f"{left} kernels did not stay in {folder}; can this user alone write it?")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / (1 << 20)
    print(f"{what}: {len(lacking)} compiled now; {folder} has {size:.1f} MiB")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.output is not None or not options.check:
        os.environ["DETMODE_CACHE"] = str((options.output or BUILT).resolve())
    try:
        return run(options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"cannot prebuild: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
