"""A launch's arguments: named, checked and packed as the kernel's text declares them."""

import importlib
import re
import struct
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch

from detmode.cuda import UnsizedLaunch, host, launch
from detmode.cuda.signature import kernels_of
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
    whose tensors come with them, then the others; both in the order of the parameters and not of
    the arguments.
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
    assert (signature.offsets, signature.n_words) == ([0, 1, 4], 5)
    words, (output,) = signature.bind({"after": 4, "both": Mixed(1, 2, 3.0), "output": X})
    assert struct.unpack("=qqdq", words) == (1, 2, 3.0, 4)
    assert output is X


def test_a_launch_that_is_kept() -> None:
    """It launches with each call's tensors, on all threads that it was made for."""
    scale = UnsizedLaunch(KERNELS, "scale<float>", ("n",), factor=2.0)
    twice = scale.of_threads(300, 300)
    reverse = UnsizedLaunch(KERNELS, "reverse_in_shared", (), (128,), 1024, n=256).of_blocks(1)
    for values in (torch.ones(300), torch.arange(300.0)):
        output, reversed = torch.zeros(300), torch.zeros(256)
        twice(output=output, input=values)
        assert torch.equal(output, 2 * values)
        reverse(input=values, output=reversed)
        assert torch.equal(reversed, values[:256].flip(0))
    scale.of_threads(0, 0)(output=X, input=X)
    for given, message in (
        ({"input": X}, "missing 1 required keyword-only argument: 'output'"),
        ({"input": X, "output": X, "n": 3}, "got an unexpected keyword argument 'n'"),
    ):
        with pytest.raises(TypeError, match=rf"kernels\.cu: scale<float>\(\) {message}"):
            twice(**given)
    for wrong in (1, X.numpy(), X.untyped_storage()):
        message = f"input is pointer, so it takes a Tensor or None, but got {type(wrong).__name__}"
        for tensors in ({"input": wrong, "output": X}, {"output": X, "input": wrong}):
            with pytest.raises(TypeError, match=message):
                twice(**tensors)
    other = torch.zeros(300)
    with (
        mock.patch.object(LAUNCH, "_device_of", lambda tensor: 1 if tensor is other else 0),
        mock.patch.object(LAUNCH, "_start") as started,
        mock.patch.object(LAUNCH, "check_devices", side_effect=RuntimeError) as refused,
        pytest.raises(RuntimeError),
    ):
        twice(input=X, output=other)
    refused.assert_called_once_with("scale<float>", X, other)
    started.assert_not_called()


@pytest.mark.parametrize("name", ["in", "_data"])
def test_pointers_that_no_launch_can_name(name: str, tmp_path: Path) -> None:
    """They are refused where the launch is planned, and still serve a launch by name."""
    text = f"__global__ void fill(float* {name}) {{ *{name} = 1.0f; }}\n"
    source = source_in(tmp_path, text, "fill")
    with pytest.raises(ValueError, match=f"fill: a launch cannot name '{name}', rename it"):
        UnsizedLaunch(source, "fill", ())
    x = torch.zeros(1)
    launch(source, "fill", 1, **{name: x})
    assert x == 1


def test_pointers_without_tensors() -> None:
    """They are null, whether they were left out or None is given."""
    values = {"anything": X[1:], "output": X, "flag": True, "real": 2.5, "whole": -5}
    numbers = {name: value for name, value in values.items() if name not in POINTERS}
    given = {name: value for name, value in values.items() if name in POINTERS}
    seen: list[tuple[torch.Tensor | None, ...]] = []
    with mock.patch.object(LAUNCH, "_start", lambda what, grid, bound, *_: seen.append(bound)):
        UnsizedLaunch(WARP, "kinds", (), **numbers).launch(1, input=None, **given)
        UnsizedLaunch(WARP, "kinds", (), input=None, **numbers).launch(1, **given)
        # With numbers before and behind one that is still to come.
        fixed = {name: number for name, number in numbers.items() if name != "real"}
        UnsizedLaunch(WARP, "kinds", ("real",), input=None, **fixed).launch(1, 2.5, **given)
        launch(WARP, "kinds", 1, input=None, **values)
    (words, tensors), *others = seen
    assert sum(tensor is None for tensor in tensors) == 1
    for other_words, other_tensors in others:
        assert other_words == words
        assert all(one is other for one, other in zip(tensors, other_tensors, strict=True))
    with pytest.raises(ValueError, match="kinds: a launch needs at least one tensor"):
        UnsizedLaunch(WARP, "kinds", (), **numbers, **dict.fromkeys(POINTERS))


def test_a_launch_whose_size_is_to_come() -> None:
    """Each launch has the threads or grid and the numbers that it was made with, and the rest."""
    output = torch.zeros(4, dtype=torch.int64)
    by_value = UnsizedLaunch(WARP, "by_value", ("both",), after=9)
    in_blocks = UnsizedLaunch(WARP, "by_value", ["after", "both"], (2, 1))
    for made, members in (
        (by_value.of_threads(1, (-7, 2**62, 0.75)), [-7, 2**62, 3, 9]),
        (by_value.of_blocks(1, (1, 2, 0.5)), [1, 2, 2, 9]),
        (in_blocks.of_blocks((1, 1), 7, (3, 4, 5.0)), [3, 4, 20, 7]),
    ):
        output.zero_()
        made(output=output)
        assert output.tolist() == members
    by_value.of_threads(0, (1, 2, 3.0))(output=output)
    assert output.tolist() == [3, 4, 20, 7]
    by_value.launch(1, (5, 6, 0.25), output=output)
    assert output.tolist() == [5, 6, 1, 9]
    in_blocks.launch_blocks(1, 8, (7, 8, 0.5), output=output)
    assert output.tolist() == [7, 8, 2, 8]
    with pytest.raises(
        TypeError, match="output is pointer, so it takes a Tensor or None, but got "
    ):
        by_value.launch(1, (1, 2, 3.0), output=[1])
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'output'"):
        by_value.launch(1, (1, 2, 3.0))
    for numbers in ((), ((1, 2, 3.0), 1)):
        with pytest.raises(TypeError, match="positional argument"):
            by_value.of_threads(1, *numbers)
    for numbers in ((1,), ((1, 2),), ((1, 2.0, 3.0),), ((1, 2**63, 3.0),)):
        with pytest.raises(
            ValueError, match=re.escape(f"warp.cu: by_value: both cannot hold {numbers}")
        ):
            by_value.of_threads(1, *numbers)
    for open, numbers, message in (
        (
            ("bot",),
            {"after": 1},
            "'bot' is no parameter (did you mean 'both'?); nothing is given for ",
        ),
        (("both",), {}, "nothing is given for 'after'. The kernel's parameters are both, after"),
        (("both", "after"), {"after": 1}, "a parameter is unset twice, or has a number as well"),
        (
            ("both", "output"),
            {"after": 1},
            "'output' is no parameter. The kernel's parameters are ",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(f"warp.cu: by_value: {message}")):
            UnsizedLaunch(WARP, "by_value", open, **numbers)
    with pytest.raises(TypeError, match="after is int64_t, so it takes an int, but got float"):
        UnsizedLaunch(WARP, "by_value", ("both",), after=1.0)
    with pytest.raises(ValueError, match=r"by_value: after is \d+, which no int64_t holds"):
        UnsizedLaunch(WARP, "by_value", ("both",), after=2**63)
    with pytest.raises(ValueError, match=r"UnsizedLaunch\(\): block must hold 1 to 1024 threads"):
        UnsizedLaunch(WARP, "by_value", ("both",), 2048, after=1)
    with pytest.raises(ValueError, match="threads must not be negative, but got -1"):
        by_value.of_threads(-1, (1, 2, 3.0))
    for grid, message in (
        ((1, 2**16), "grid must be below"),
        ((1, 2**16, 1), "grid must be below"),
        ((1, 1, 2**16), "grid must be below"),
        ((2**31, 1, 1), "grid must be below"),
        ((1, -1, 1), "grid must not be negative"),
        ((-1, 1, 1), "grid must not be negative"),
        (2**31, "grid must be below"),
        (-1, "grid must not be negative"),
    ):
        with pytest.raises(ValueError, match=rf"of_blocks\(\): {message}"):
            in_blocks.of_blocks(grid, 1, (1, 2, 3.0))
        with pytest.raises(ValueError, match=rf"launch_blocks\(\): {message}"):
            in_blocks.launch_blocks(grid, 1, (1, 2, 3.0), output=output)
    in_blocks.of_blocks((2**31 - 1, 2**16 - 1, 2**16 - 1), 1, (1, 2, 3.0))
    in_threads = partial(in_blocks.launch, output=output)
    for launched in (in_blocks.of_threads, in_threads):
        with pytest.raises(
            ValueError, match="has a block of its own; call of_blocks or launch_blocks"
        ):
            launched(1, 1, (1, 2, 3.0))


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
