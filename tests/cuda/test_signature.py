"""A launch's arguments: named, checked and packed as the kernel's text declares them."""

import ctypes
import re
import struct
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from cuda_sources import KERNELS, WARP, source_in

from detmode.cuda import host, launch
from detmode.cuda.signature import kernels_of
from detmode.cuda.source import CompileError

X = torch.zeros(1)
FITTING = {"factor": 2.0, "n": 1, "output": X, "input": X}


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factr": 1.0}, "'factr' is no parameter. "),
        (
            {"factor": ..., "factr": 1.0},
            "'factr' is no parameter (did you mean 'factor'?); nothing",
        ),
        ({"n": ...}, "nothing is given for 'n'. The kernel's parameters are input, output, n, "),
        ({"n": ..., "input": ...}, "nothing is given for 'input', 'n'. "),
    ],
)
def test_names(change: dict[str, object], message: str, threads: int) -> None:
    """A missing or unknown name is an error that says the kernel and the names it has.

    So it is where no thread is launched.
    """
    arguments = {name: x for name, x in (FITTING | change).items() if x is not ...}
    with pytest.raises(ValueError, match=re.escape(f"kernels.cu: scale<float>: {message}")):
        launch(KERNELS, "scale<float>", threads, **arguments)


class Mixed(NamedTuple):
    whole: int
    other: int
    real: float


class Swapped(NamedTuple):
    other: int
    whole: int
    real: float


def test_structs_travel_by_value() -> None:
    """A NamedTuple's fields arrive as the struct's members, and what follows it in its place."""
    output = torch.zeros(4, dtype=torch.int64)
    for seed in (None, 1):
        with host.schedule(seed):
            launch(WARP, "by_value", 1, output=output, both=Mixed(-7, 2**62, 0.75), after=9)
        assert output.tolist() == [-7, 2**62, 3, 9]
    with host.check_races():
        launch(WARP, "by_value", 1, output=output, both=Mixed(1, 2, 3.0), after=4)
    assert output.tolist() == [1, 2, 12, 4]


@pytest.mark.parametrize(
    ("both", "error", "message"),
    [
        (Swapped(1, 2, 3.0), TypeError, "both is mixed, .* whole, other, real, but got Swapped"),
        ((1, 2, 3.0), TypeError, "both is mixed, so it takes a NamedTuple of .* but got tuple"),
        (Mixed(1, 2**63, 3.0), ValueError, "both.other is 9223372036854775808, which no int64_t"),
        (Mixed(1, None, 3.0), ValueError, "both.other is None, which no int64_t holds"),
    ],
)  # fmt: skip
def test_structs_that_do_not_fit(both: object, error: type[Exception], message: str) -> None:
    """Other fields, or a value that a member cannot hold, is an error that names the member."""
    output = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(error, match=rf"^warp.cu: by_value: {message}"):
        launch(WARP, "by_value", 1, output=output, both=both, after=9)


def test_arguments_are_packed_in_words() -> None:
    """Both runtimes read 8 bytes an argument, or a member, in the order of the parameters and
    not of the arguments.
    """
    words = (ctypes.c_ulonglong * 6)()
    values = {"anything": X[1:], "flag": True, "real": 2.5, "whole": -5, "input": None, "output": X}
    signature = WARP.signature("kinds")
    signature.pack_into(words, signature.bind(values))
    assert struct.unpack("=QQqdqQ", bytes(words)) == (0, X.data_ptr(), -5, 2.5, 1, X[1:].data_ptr())
    signature = WARP.signature("by_value")
    assert (signature.offsets, signature.n_words) == ([0, 1, 4], 5)
    values = {"after": 4, "both": Mixed(1, 2, 3.0), "output": X}
    signature.pack_into(words, signature.bind(values))
    assert struct.unpack("=Qqqdq", bytes(words)[:40]) == (X.data_ptr(), 1, 2, 3.0, 4)


def test_declarations() -> None:
    """Templates, bounds, comments and structs are read as a compiler reads them."""
    kernels = kernels_of("""
        struct axis { int64_t size, out; double scale; };
        struct Other { int64_t size; int32_t narrow; };
        template <typename T>
        __global__ void __launch_bounds__(256, sizeof(T) == 8 ? 2 : 3)
            sums(const typename pair<T, int>::key_t* __restrict__ keys,  // not, this
                 const axis w, T* out, Other other) {}
        __global__ void none() {}
    """)
    members = (("size", "int64_t"), ("out", "int64_t"), ("scale", "double"))
    assert kernels["none"] == ()
    assert kernels["sums"] == (
        ("keys", "pointer", ()),
        ("w", "axis", members),
        ("out", "pointer", ()),
        ("other", "Other", ()),
    )


def test_struct_of_another_size_does_not_compile(tmp_path: Path) -> None:
    """The compilers see the size that the launcher packs: a member that it cannot see shows."""
    source = source_in(
        tmp_path,
        '#include "index.cuh"\n#define MORE int64_t more;\n'
        "struct axis { int64_t size; };\n__global__ void f(axis w) {}\n",
    )
    assert "static_assert(sizeof(axis) == 8" in source.text
    source.__dict__["text"] = source.text.replace("{ int64_t size; }", "{ int64_t size; MORE }")
    with pytest.raises(CompileError, match="axis"):
        host.compile(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__global__ void f(int n) {}", "parameter 'n' is of type int; a kernel takes pointers, "),
        ("static void f(int64_t n) {}", "the file declares no __global__ function 'f'"),
    ],
)
def test_kernels_that_no_launch_can_call(tmp_path: Path, text: str, message: str) -> None:
    """A parameter of another type, or no kernel of that name, is an error before it compiles."""
    with pytest.raises(ValueError, match=f"^text.cu: f: {message}"):
        launch(source_in(tmp_path, text), "f", 1, n=1)
