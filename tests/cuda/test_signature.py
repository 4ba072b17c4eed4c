"""A launch's arguments: named, checked and packed as the kernel's text declares them."""

import importlib
import re
import struct
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch

from detmode.cuda import host, launch
from detmode.cuda import signature as signatures
from detmode.cuda.signature import KernelSignature, kernels_of
from detmode.cuda.source import CompileError
from tests.shared.cuda_sources import KERNELS, WARP, source_in

LAUNCH = importlib.import_module("detmode.cuda.launch")
X = torch.zeros(1)
POINTERS = ("input", "output", "anything")
"""Of `kinds`, in the kernel's order."""
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


def test_no_arguments() -> None:
    """A launch without any names all that is missing."""
    with pytest.raises(ValueError, match="nothing is given for 'input', 'output', 'n', 'factor'"):
        launch(KERNELS, "scale<float>", 1)


def test_types_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches with the types of an earlier one check none; one with another type is refused."""
    signature = KernelSignature("kernels.cu: scale<float>", KERNELS.kernels["scale"])
    fits = mock.Mock(side_effect=signatures._fits)
    monkeypatch.setattr(signatures, "_fits", fits)
    expected = signature.bind(FITTING)
    assert fits.call_count == 4
    assert signature.bind(FITTING) == expected
    assert signature.bind(FITTING | {"n": 2}) != expected
    assert fits.call_count == 4
    for _ in range(2):
        with pytest.raises(TypeError, match="n is int64_t, so it takes an int, but got bool"):
            signature.bind(FITTING | {"n": True})


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


class Factor(NamedTuple):
    scaled: bool
    re: float


def test_structs_with_bools(tmp_path: Path) -> None:
    """A bool arrives as its struct's member, which fills a word as the others do."""
    text = "__global__ void f(double* x, factor by) { x[0] = by.scaled; x[1] = by.re; }\n"
    source = source_in(tmp_path, "struct factor { bool scaled; double re; };\n" + text, "f")
    x = torch.zeros(2, dtype=torch.float64)
    for by in (Factor(False, 2.0), Factor(True, 0.5)):
        launch(source, "f", 1, x=x, by=by)
        assert x.tolist() == [by.scaled, by.re]


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
    """Both runtimes read 8 bytes an argument, or a member: first the pointers, which are zeros, and
    whose tensors come with them, then numbers, then structs; each in the order of the parameters
    and not of the arguments.
    """
    values = {"anything": X[1:], "flag": True, "real": 2.5, "whole": -5, "input": None, "output": X}
    signature = WARP.signature("kinds")
    words, tensors = signature.bind(values)
    assert struct.unpack("=qdq", words) == (-5, 2.5, 1)
    assert all(values[name] is x for name, x in zip(POINTERS, tensors))
    assert (signature.pointers, signature.offsets) == ([0, 1, 5], [0, 1, 3, 4, 5, 2])
    written = bytearray(8 * signature.n_words)
    signature.put(written, words, tensors)
    addresses = [0 if values[name] is None else values[name].data_ptr() for name in POINTERS]
    assert written == struct.pack("=3Q", *addresses) + words
    signature = WARP.signature("by_value")
    assert (signature.offsets, signature.n_words) == ([0, 2, 1], 5)
    words, (output,) = signature.bind({"after": 4, "both": Mixed(1, 2, 3.0), "output": X})
    assert struct.unpack("=qqqd", words) == (4, 1, 2, 3.0)
    assert output is X


@pytest.mark.parametrize("wrong", [1, X.numpy(), X.untyped_storage()], ids=type)
def test_what_is_no_tensor(wrong: object) -> None:
    """A pointer takes a tensor or None, whichever of the pointers it is."""
    message = f"is pointer, so it takes a Tensor or None, but got {type(wrong).__name__}"
    for change in ({"input": wrong}, {"output": wrong}):
        with pytest.raises(TypeError, match=f"{next(iter(change))} {message}"):
            launch(KERNELS, "scale<float>", 1, **FITTING | change)
    output = torch.zeros(1)
    launch(KERNELS, "scale<float>", 1, **FITTING | {"input": X + 1, "output": output})
    assert output == 2


def test_pointers_without_tensors() -> None:
    """They are null; a launch has at least one that is not."""
    values = {"anything": X[1:], "output": X, "flag": True, "real": 2.5, "whole": -5}
    with mock.patch.object(LAUNCH, "_start") as started:
        launch(WARP, "kinds", 1, input=None, **values)
        (_, _, (words, tensors), first, _) = started.call_args.args
        assert struct.unpack("=qdq", words) == (-5, 2.5, 1)
        assert (tensors[0], tensors[1], first) == (None, X, X)
        with pytest.raises(ValueError, match="a launch needs at least one tensor"):
            launch(WARP, "kinds", 1, input=None, **values | {"anything": None, "output": None})


def test_declarations() -> None:
    """Templates, bounds, comments and structs are read as a compiler reads them."""
    kernels = kernels_of("""
        struct axis { int64_t size, out; bool wraps; double scale; };
        struct Other { int64_t size; int32_t narrow; };
        template <typename T>
        __global__ void __launch_bounds__(256, sizeof(T) == 8 ? 2 : 3)
            sums(const typename pair<T, int>::key_t* __restrict__ keys,  // not, this
                 const axis w, T* out, Other other) {}
        __global__ void none() {}
    """)
    members = (("size", "int64_t"), ("out", "int64_t"), ("wraps", "bool"), ("scale", "double"))
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
