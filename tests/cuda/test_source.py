"""A source is one text with its includes, found and read late."""

import pytest
import torch

from detmode.cuda import CompileError, Source


def write(folder, **files: str) -> Source:
    for name, text in files.items():
        suffix = "cu" if name == "main" else "cuh"
        (folder / f"{name}.{suffix}").write_text(text)
    return Source(str(folder / "anchor.py"), "main.cu", ("f",))


def test_construction_is_free(tmp_path) -> None:
    """Nothing is read, so the file need not exist yet."""
    assert Source(str(tmp_path / "x.py"), "none.cu", ("f",)).entries == ("f",)


def test_includes_are_expanded_once(tmp_path) -> None:
    """A header included twice appears once, and what follows keeps its file and line.

    A change in it changes the text, which the caches of both compilers key on.
    """
    main, a = (
        '#include "a.cuh"\n#include "b.cuh"\nlast\n',
        '#pragma once\n#include "b.cuh"\nfrom_a\n',
    )
    source = write(tmp_path, main=main, a=a, b="from_b\n")
    assert source.text == (
        '#line 1 "main.cu"\n#line 1 "a.cuh"\n\n#line 1 "b.cuh"\nfrom_b\n#line 3 "a.cuh"\nfrom_a\n'
        '#line 2 "main.cu"\n\nlast\n'
    )
    assert write(tmp_path, b="from_b\n").text == source.text
    assert write(tmp_path, b="other\n").text == source.text.replace("from_b", "other")


def test_neighbours_come_before_the_package(tmp_path) -> None:
    """A header beside the file wins over one of detmode/cuda/include with its name."""
    source = write(tmp_path, main='#include "types.cuh"\n', types="mine\n")
    assert "mine" in source.text
    (tmp_path / "types.cuh").unlink()
    assert "int64_t" in Source(str(tmp_path / "x.py"), "main.cu", ("f",)).text


def test_missing_and_system_headers(tmp_path) -> None:
    """A header that is missing or that NVRTC would not have is named with its line."""
    with pytest.raises(CompileError, match=r'main\.cu:2: included file "gone\.cuh" not found'):
        _ = write(tmp_path, main='\n#include "gone.cuh"\n').text
    with pytest.raises(CompileError, match=r"main\.cu:1: <cmath> is a system header"):
        _ = write(tmp_path, main="#include <cmath>\n").text


def test_entries_are_checked() -> None:
    """No entry, an entry twice, and a plain string instead of a sequence are refused."""
    for entries, error, message in (
        ((), ValueError, "has no entries"),
        (("f", "g", "f"), ValueError, "listed twice: f"),
        ("f", TypeError, "must be a sequence of str"),
    ):
        with pytest.raises(error, match=message):
            Source(__file__, "x.cu", entries)
    with pytest.raises(ValueError, match="no entry 'g'; add it"):
        Source(__file__, "x.cu", ("f",)).position("g")


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (torch.float32, "sum<float>, sum<float, int64_t>, opmath<float>, words<int16_t>, always"),
        (torch.float16, "sum<half>, sum<half, float>, opmath<float>, words<int16_t>, always"),
        (torch.complex64, "sum<complex<float>, 2>, words<int16_t>, always"),
        (torch.float64, "sum<double>, words<int16_t>, always"),
        (torch.int64, "sum<int64_t>, words<int16_t>, always"),
        (torch.bool, "words<int16_t>, always"),
    ],
    ids=str,
)
def test_entries_for_a_dtype(dtype: torch.dtype, wanted: str) -> None:
    """Those that name the dtype, or what it is computed in; all of a kernel that goes by no dtype.

    A type beside a smaller one is that of sums, and an integer beside a float that of positions.
    """
    entries = (
        *("sum<half>", "sum<float>", "sum<half, float>", "sum<double>", "sum<complex<float>, 2>"),
        *("sum<float, int64_t>", "sum<int64_t>", "opmath<float>", "words<int16_t>", "always"),
    )
    assert ", ".join(Source(__file__, "x.cu", entries).entries_for(dtype)) == wanted
