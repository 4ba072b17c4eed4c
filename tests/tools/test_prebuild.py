"""A GPU's machine finds what tools/prebuild.py makes elsewhere: it compiles nothing."""

from pathlib import Path
from typing import Any

import prebuild
import pytest

SMALL = ("--arch", "sm_90", "--folder", "histograms")
nvrtc = pytest.importorskip("cupy.cuda", reason="CuPy is not installed").nvrtc


@pytest.fixture(scope="module")
def library() -> Path:
    """The folder of the NVRTC that CuPy finds here."""
    nvrtc.getVersion()
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("libraries are found by Linux's list of them")
    lines = (line.split() for line in maps.read_text(encoding="utf-8").splitlines())
    return next(Path(words[-1]).parent for words in lines if "libnvrtc.so" in words[-1])


@pytest.mark.thorough
def test_a_fresh_process_compiles_nothing(library: Path, tmp_path: Path, run_python: Any) -> None:
    """All kernels are in a cache that another process made: NVRTC may not be called.

    The cache is first copied, with rights for all, as a machine may get it. Of another architecture
    none is there.
    """
    version = ".".join(map(str, nvrtc.getVersion()))
    given = (prebuild.__file__, *SMALL, "--nvrtc", version, "--library", str(library))
    made = run_python(*given, "--output", str(tmp_path / "made"))
    assert made.returncode == 0, made.stderr
    assert f"2 kernels for sm_90 by NVRTC {version}: 2 compiled now; " in made.stdout
    for file in (tmp_path / "made").rglob("*"):
        file.chmod(0o777)
    script = (
        f"import sys; sys.path.insert(0, {str(Path(prebuild.__file__).parent)!r})\n"
        "import prebuild\n"
        "from pathlib import Path\n"
        f"print(prebuild.install(Path({str(tmp_path / 'made')!r})))\n"
        "from cupy.cuda import nvrtc\n"
        "nvrtc.createProgram = nvrtc.compileProgram = None\n"
        "for entry in prebuild.entries(['histograms']):\n"
        "    print(prebuild.compiled(entry, 'sm_90').read_bytes()[:4])\n"
        "print(len([*prebuild.missing(prebuild.entries(['histograms']), 'sm_80')]))\n"
    )
    own = tmp_path / "own"
    found = run_python("-c", script, DETMODE_CACHE=str(own))
    assert found.stdout.splitlines() == [str(own), *[str(b"\x7fELF")] * 2, "2"], found.stderr
    assert not [file for file in own.rglob("*") if file.stat().st_mode & 0o022]
    check = run_python(*given, "--check", DETMODE_CACHE=str(own))
    assert (check.returncode, check.stdout.rpartition(": ")[2]) == (0, "0 missing in the cache\n")


def test_another_nvrtc_is_refused(library: Path, tmp_path: Path, run_python: Any) -> None:
    """Kernels of an NVRTC that the other machine does not have would never be found there."""
    given = (prebuild.__file__, *SMALL, "--nvrtc", "12.9", "--output", str(tmp_path))
    found = run_python(*given, "--library", str(library))
    version = ".".join(map(str, nvrtc.getVersion()))
    message = f"cannot prebuild: NVRTC 12.9 was asked for, but CuPy has {version}\n"
    assert (found.returncode, found.stderr) == (2, message)
    empty = run_python(*given, "--library", str(tmp_path))
    assert empty.returncode == 2
    assert empty.stderr.startswith(f"cannot prebuild: {tmp_path} has no libnvrtc-builtins.so.*;")


def test_every_file_is_among_them() -> None:
    """No kernel of the package or of the tests is left to be compiled on the GPU's machine."""
    folders = (prebuild.ROOT / "detmode", prebuild.ROOT / "tests" / "shared")
    files = {str(path) for folder in folders for path in folder.rglob("*.cu")}
    assert set(prebuild.sources()) == files
    counts = {entry for path, entry in prebuild.entries() if path.endswith("shared/kernels.cu")}
    assert {"naive_scatter<float>", "scale<half>", "accumulate_keys<double>"} <= counts
