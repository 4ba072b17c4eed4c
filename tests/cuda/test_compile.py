"""Every entry of this package's sources compiles for every supported GPU, without a GPU."""

import os
import re
import struct

import pytest

from detmode.cuda import CompileError, Source, compile_for, device
from detmode.cuda.rows.assign import SOURCE as ASSIGN
from tests.shared.cuda_sources import ALL, EXPONENTIAL, KERNELS, PRIMITIVES, REDUCTIONS, source_in

nvrtc = pytest.importorskip("cupy.cuda", reason="CuPy is not installed").nvrtc

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", ALL, ids=lambda source: source.path.stem)
def test_every_entry_compiles(source: Source, arch: str) -> None:
    """NVRTC makes machine code of all entries."""
    assert compile_for(source, arch).startswith(b"\x7fELF")


def test_machine_code_is_whole() -> None:
    """The CUBIN ends where its last table ends, which CuPy's own copy does not."""
    code = compile_for(KERNELS, "sm_90", ("scale<half>",))
    programs, sections = struct.unpack_from("<2Q", code, 32)
    size, count, section_size, section_count = struct.unpack_from("<4H", code, 54)
    assert len(code) == max(programs + size * count, sections + section_size * section_count)


def test_log_in_errors(tmp_path) -> None:
    """A file that NVRTC rejects raises CompileError with file, line and NVRTC's words."""
    source = source_in(tmp_path, '#include "index.cuh"\n__global__ void f() { oops(); }\n')
    with pytest.raises(CompileError, match=r"(?s)for sm_80.*text\.cu\(2\).*oops"):
        compile_for(source, "sm_80")


def test_unknown_entries_and_architectures() -> None:
    """An entry that the file does not list, and an architecture of another form, are refused."""
    with pytest.raises(ValueError, match="no entry 'scale<int>'"):
        compile_for(KERNELS, "sm_80", ("scale<int>",))
    with pytest.raises(ValueError, match="arch must be like 'sm_90'"):
        compile_for(KERNELS, "80")


@pytest.mark.parametrize(
    ("source", "instruction"), [(KERNELS, "mul.rn.f32"), (EXPONENTIAL, "fma.rn.f32")]
)
def test_denormals_are_kept(source: Source, instruction: str) -> None:
    """The PTX has no flush to zero and no approximate instruction, which each GPU may round in its
    own way: CuPy's own options would add them.
    """
    text = compile_for(source, "compute_80").decode()
    assert instruction in text
    assert ".ftz" not in text
    assert ".approx" not in text


def test_products_are_not_fused(tmp_path) -> None:
    """A plain product and sum round twice, as on the host; fma_rn is the one that rounds once."""
    written = (
        '#include "types.cuh"\n'
        "__global__ void plain(double* x) { x[0] = x[0] * x[1] + x[2]; }\n"
        "__global__ void fused(double* x) { x[0] = fma_rn(x[0], x[1], x[2]); }\n"
    )
    source = source_in(tmp_path, written, "plain", "fused")
    text = compile_for(source, "compute_80").decode()
    assert (text.count("fma.rn.f64"), text.count("mul.rn.f64")) == (1, 1)


def test_no_float_atomics() -> None:
    """The accumulator's machine-independent code holds integer atomics only."""
    entries = tuple(entry for entry in KERNELS.entries if entry.startswith("accumulate"))
    text = compile_for(KERNELS, "compute_80", entries).decode()
    lines = [line for line in text.splitlines() if re.search(r"\b(atom|red)\.", line)]
    assert lines
    assert not [line for line in lines if ".f32" in line or ".f64" in line or ".f16" in line]


@pytest.mark.parametrize(
    ("source", "entry", "atomics"),
    [
        (KERNELS, "accumulate_keys<float>", {"ld"}),
        (ASSIGN, "assign_elect<int32_t>", {"ld", "st"}),
        (REDUCTIONS, "extremum_observe<double>", {"ld"}),
        (PRIMITIVES, "look_back", {"ld", "st"}),
    ],
    ids=lambda value: value.path.stem if isinstance(value, Source) else None,
)
def test_what_other_blocks_write_is_read_in_the_scope_of_a_gpu(
    source: Source, entry: str, atomics: set[str]
) -> None:
    """A volatile access would have that of the system: all GPUs and the CPU."""
    text = compile_for(source, "compute_75", (entry,)).decode()
    assert set(re.findall(r"\b(ld|st)\.relaxed\.gpu\.global\.", text)) == atomics
    assert ".volatile" not in text


def test_cache_on_disk(tmp_path, monkeypatch) -> None:
    """One entry is one file of code, its lowered name beside it; a second call compiles nothing.

    Others may read the files where the process's umask lets them.
    """
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path))
    umask = os.umask(0o022)
    try:
        file = device.compiled(KERNELS, "scale<half>", "sm_80")
    finally:
        os.umask(umask)
    assert {entry.stat().st_mode & 0o777 for entry in file.path.parent.iterdir()} == {0o644}
    assert file.path.read_bytes().startswith(b"\x7fELF")
    assert "scale" in file.note
    monkeypatch.setattr(device, "compile_entries", None)
    again = device.compiled(KERNELS, "scale<half>", "sm_80")
    assert (again.path, again.note, again.is_new) == (file.path, file.note, False)
    assert sorted(entry.suffix for entry in file.path.parent.iterdir()) == [".cubin", ".digest"]


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((8, 1), "compute_80")]
)
def test_architecture_of_a_device(monkeypatch, capability: tuple[int, int], expected: str) -> None:
    """Machine code for a GPU that NVRTC knows, else PTX of the nearest older one."""
    monkeypatch.setattr(nvrtc, "getSupportedArchs", lambda: (75, 80, 90), raising=False)
    assert device._arch(capability) == expected
