"""A source is one text with its includes, found and read late."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cuda_sources import ALL

from detmode.cuda import CompileError, Source
from detmode.cuda.source import INCLUDE_DIRECTORY


def write(folder, **files: str) -> Source:
    for name, text in files.items():
        suffix = "cu" if name == "main" else "cuh"
        (folder / f"{name}.{suffix}").write_text(text)
    return Source(str(folder / "anchor.py"), "main.cu", ("f",))


def test_construction_is_free(tmp_path) -> None:
    """Nothing is read, so the file need not exist yet."""
    assert Source(str(tmp_path / "x.py"), "none.cu", ("f",)).entries == ("f",)


def test_import_needs_neither_cupy_nor_a_compiler() -> None:
    """Importing the package imports no CuPy and starts no process."""
    script = (
        "import subprocess, sys\n"
        "def refuse(*args, **kwargs): raise AssertionError('a process at import')\n"
        "import torch\n"
        "subprocess.Popen.__init__ = refuse\n"
        "import detmode.cuda\n"
        "assert not any(name.split('.')[0] == 'cupy' for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_includes_are_expanded_once(tmp_path) -> None:
    """A header included twice appears once, and what follows keeps its file and line."""
    source = write(
        tmp_path,
        main='#include "a.cuh"\n#include "b.cuh"\nlast\n',
        a='#pragma once\n#include "b.cuh"\nfrom_a\n',
        b="from_b\n",
    )
    assert source.text == (
        '#line 1 "main.cu"\n#line 1 "a.cuh"\n\n#line 1 "b.cuh"\nfrom_b\n#line 3 "a.cuh"\nfrom_a\n'
        '#line 2 "main.cu"\n\nlast\n'
    )


def test_neighbours_come_before_the_package(tmp_path) -> None:
    """A header beside the file wins over one of detmode/cuda/include with its name."""
    source = write(tmp_path, main='#include "types.cuh"\n', types="mine\n")
    assert "mine" in source.text
    (tmp_path / "types.cuh").unlink()
    assert "int64_t" in Source(str(tmp_path / "x.py"), "main.cu", ("f",)).text


def test_text_follows_the_includes(tmp_path) -> None:
    """A change in an included file changes the text, which the caches of both compilers key on."""
    before = write(tmp_path, main='#include "a.cuh"\n', a="1\n").text
    assert write(tmp_path, main='#include "a.cuh"\n', a="1\n").text == before
    assert write(tmp_path, main='#include "a.cuh"\n', a="2\n").text != before


def test_missing_and_system_headers(tmp_path) -> None:
    """A header that is missing or that NVRTC would not have is named with its line."""
    with pytest.raises(CompileError, match=r'main\.cu:2: included file "gone\.cuh" not found'):
        _ = write(tmp_path, main='\n#include "gone.cuh"\n').text
    with pytest.raises(CompileError, match=r"main\.cu:1: <cmath> is a system header"):
        _ = write(tmp_path, main="#include <cmath>\n").text


def test_entries_are_checked() -> None:
    """No entry, an entry twice, and a plain string instead of a sequence are refused."""
    with pytest.raises(ValueError, match="has no entries"):
        Source(__file__, "x.cu", ())
    with pytest.raises(ValueError, match="listed twice: f"):
        Source(__file__, "x.cu", ("f", "g", "f"))
    with pytest.raises(TypeError, match="must be a sequence of str"):
        Source(__file__, "x.cu", "f")
    with pytest.raises(ValueError, match="no entry 'g'; add it"):
        Source(__file__, "x.cu", ("f",)).position("g")


def test_sources_have_no_system_headers() -> None:
    """Every header of the package and every source of its tests expands."""
    for source in ALL:
        assert source.text.count("#line") > 2
    assert {path.name for path in INCLUDE_DIRECTORY.iterdir()} >= {
        "accumulator.cuh",
        "block_reduce.cuh",
        "dtype.cuh",
        "index.cuh",
        "owner.cuh",
        "segment_reduce.cuh",
        "types.cuh",
    }
