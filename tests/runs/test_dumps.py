"""Dumps: what is written is what went in and came out, and how two of them differ is told truly."""

import json
import math
import os
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from detmode import diff, record
from detmode.bits.difference import same_bits
from detmode.bits.tensors import parts
from detmode.runs import dump_file
from detmode.runs.dump_diff import ArrayDifference, compare_dumps
from detmode.runs.dump_file import DumpReader, dumps_of
from tests.shared.traces import check_hostile_copy
from tests.shared.training import Fault, bits

Run = Callable[..., subprocess.CompletedProcess[str]]


def read(dump: DumpReader, name: str) -> Tensor:
    array = dump.arrays[name][1]
    chunks = [*dump.chunks(name), torch.empty(0, dtype=getattr(torch, array.dtype))]
    # Joined as bytes: not every dtype can be joined.
    joined = torch.cat([chunk.view(torch.uint8) for chunk in chunks])
    return joined.view(getattr(torch, array.dtype)).reshape(array.shape)


def dumped(path: Path, call: str, run: Callable[[], object]) -> DumpReader:
    """The dump of one call of a run."""
    with record(path, dump=[call]) as recording:
        run()
    assert recording.not_dumped == {}
    (dump,) = dumps_of(path)
    return dump


def values(dtype: torch.dtype) -> Tensor:
    return (torch.randn(6, 5, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)


DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn),
    *(torch.complex32, torch.complex64, torch.complex128, torch.float8_e5m2),
    *(torch.bool, torch.int8, torch.uint8, torch.uint16, torch.int32, torch.int64),
)
TENSORS: dict[str, Callable[[], Tensor]] = {
    **{str(dtype).removeprefix("torch."): partial(values, dtype) for dtype in DTYPES},
    "single": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "transposed": lambda: values(torch.float32).t()[1:, ::2],
    "expanded": lambda: torch.tensor([1.0, 2.0])[:, None].expand(2, 3),
    "conjugated": lambda: values(torch.complex64).conj(),
    "negated": lambda: values(torch.complex64).conj().imag,
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.25, 7, torch.quint8),
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_dumped_tensor_is_the_tensor(
    make: Callable[[], Tensor], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any dtype and layout the bytes come back; and NumPy alone reads them, without pickle."""
    monkeypatch.setattr(dump_file, "CHUNK", chunk)
    tensor = make()
    dump = dumped(tmp_path / "run", "aten::clone@0", tensor.clone)
    for name, part in parts(tensor).items():
        found = read(dump, f"input 0 {name}".rstrip())
        # What repeats in memory is there once.
        assert same_bits(found.expand(part.shape), part)
        output = read(dump, f"output 0 {name}".rstrip())
        assert same_bits(output.expand(part.shape), part)
        assert all(len(each) <= chunk for each in dump.chunks(f"input 0 {name}".rstrip()))
    for number, array in dump.arrays.values():
        found = np.load(dump.path / f"{number}.npy", allow_pickle=False)
        assert found.shape == array.shape
        if array.dtype == "bfloat16":
            assert found.dtype == np.uint16
    if tensor.is_quantized:
        assert (read(dump, "input 0 scale"), read(dump, "input 0 zero_point")) == (0.25, 7)


def test_inputs_are_those_before_the_call(tmp_path: Path) -> None:
    """Of a call that writes its arguments, and of the one that was asked for."""

    def run() -> None:
        x = torch.ones(3)
        for _ in range(4):
            x.mul_(2)
        torch._foreach_add_([torch.ones(2), torch.zeros(2)], 5.0)

    dump = dumped(tmp_path / "run", "aten::mul_.Tensor@2", run)
    assert read(dump, "input 0").tolist() == [4.0] * 3
    assert read(dump, "mutated 0").tolist() == [8.0] * 3
    assert list(dump.arrays) == ["input 0", "mutated 0"]
    assert (dump.number, str(dump.call)) == (3, "aten::mul_.Tensor@2")
    each = dumped(tmp_path / "other", "aten::_foreach_add_.Scalar@0", run)
    assert [read(each, name)[0].item() for name in each.arrays] == [1, 0, 6, 5]


def test_memory_that_nobody_wrote_is_left_out(tmp_path: Path) -> None:
    """As in the trace, what ``empty`` gave means nothing until it is written."""
    dump = dumped(tmp_path / "run", "aten::fill_.Scalar@0", lambda: torch.empty(3).fill_(1))
    assert list(dump.arrays) == ["mutated 0"]


def test_call_that_raises_is_not_counted(tmp_path: Path) -> None:
    """It is in no trace either; nothing of it is left."""

    def run() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(2, 3).mm(torch.ones(2, 3))
        assert os.listdir(tmp_path / "run" / "dumps") == []
        torch.eye(2).mm(torch.eye(2))

    assert read(dumped(tmp_path / "run", "aten::mm@0", run), "output 0").trace() == 2


def test_dump_that_cannot_be_written(tmp_path: Path) -> None:
    """The program goes on; the recording says why, and is whole."""
    with (
        pytest.warns(UserWarning, match="no dump of aten::sin.default@5: the run did not make"),
        pytest.warns(UserWarning, match="no dump of aten::exp.default@0: it could not be written"),
        record(tmp_path / "run", dump=["aten::exp@0", "aten::sin@5"]) as recording,
    ):
        (tmp_path / "run" / "dumps").write_text("in the way")
        torch.ones(3).exp()
    assert recording.not_dumped == {
        "aten::exp.default@0": "it could not be written: Not a directory",
        "aten::sin.default@5": "the run did not make that call",
    }
    (tmp_path / "run" / "dumps").unlink()
    assert diff(tmp_path / "run", tmp_path / "run").same == 2


def compared(tmp_path: Path, one: Tensor, other: Tensor) -> ArrayDifference | None:
    """Compare dumps of two tensors."""
    dumps = [
        dumped(tmp_path / str(uuid4()), "aten::clone@0", tensor.clone) for tensor in (one, other)
    ]
    found = compare_dumps(*dumps)
    assert found.missing == ()
    assert [each.name for each in found.differing] in ([], ["input 0", "output 0"])
    return found.differing[0] if found.differing else None


def ordered(dtype: torch.dtype) -> dict[int, int]:
    """Of each 16-bit pattern its place among all numbers of its sign; none if not finite."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    numbers = every.view(dtype).double()
    places = {}
    for sign in (False, True):
        mine = (torch.signbit(numbers) == sign) & numbers.isfinite()
        inwards = every[mine][numbers[mine].abs().argsort()].tolist()
        places.update(zip(inwards, range(len(inwards))))
    return places


PLACES = {dtype: ordered(dtype) for dtype in (torch.float16, torch.bfloat16)}
patterns = st.integers(-(1 << 15), (1 << 15) - 1)
nearby = st.tuples(patterns, st.integers(-40, 40)).map(
    lambda pair: (pair[0], max(-(1 << 15), min((1 << 15) - 1, sum(pair))))
)


def row_of(distance: int) -> str:
    if distance <= 2:
        return str(distance)
    high = 1 << math.ceil(math.log2(distance))
    return f"{high // 2 + 1}-{high}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.lists(st.one_of(nearby, st.tuples(patterns, patterns)), min_size=1, max_size=30),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
@example(pairs=[(0, -(1 << 15)), (0, 1), (1, 4), (1, 5), (1, 6), (1, 10)], dtype=torch.float16)
def test_histogram_counts_the_floats_between(
    pairs: list[tuple[int, int]], dtype: torch.dtype, tmp_path: Path
) -> None:
    """Against the places of both numbers in the sorted list of all 16-bit floats."""
    one, other = (
        torch.tensor(side, dtype=torch.int64).to(torch.int16).view(dtype) for side in zip(*pairs)
    )
    expected: Counter[str] = Counter()
    places = PLACES[dtype]
    for a, b in pairs:
        if a == b:
            expected["0"] += 1
        elif a not in places or b not in places:
            expected["NaN or Inf"] += 1
        elif (a < 0) != (b < 0):
            expected["other sign"] += 1
        else:
            expected[row_of(abs(places[a] - places[b]))] += 1
    found = compared(tmp_path, one, other)
    assert dict(found.ulps if found else [("0", len(pairs))]) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histogram_of_wide_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    """Steps of nextafter are counted, over powers of two and up to the largest number."""
    one = torch.tensor([1.0, -1.0, 0.0, 1e-30, 0.0], dtype=dtype)
    other = one.clone()
    largest = torch.finfo(dtype).max
    for _ in range(3):
        other = torch.nextafter(other, torch.tensor([0, 0, 1, 1, 0], dtype=dtype))
    other[4] = largest
    found = compared(tmp_path, one, other)
    size = {torch.float32: "i", torch.float64: "q"}[dtype]
    (steps,) = struct.unpack(f"={size}", struct.pack(f"={'f' if size == 'i' else 'd'}", largest))
    power = (steps - 1).bit_length()
    assert found.ulps == (("3-4", 4), (f"{(1 << power - 1) + 1}-{1 << power}", 1))


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.float8_e5m2],
    ids=str,
)
@pytest.mark.parametrize("chunk", [5, 1 << 18])
def test_where_and_how_far(
    dtype: torch.dtype, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count, positions, region and largest difference, whatever chunks they lie in."""
    monkeypatch.setattr(dump_file, "CHUNK", chunk)
    one, change = torch.full((4, 3, 5), 8.0), torch.zeros(4, 3, 5)
    places = [(1, 0, 4), (1, 2, 1), (3, 1, 2)]
    for place, by in zip(places, (-2.0, 4.0, 8.0)):
        change[place] = by
    found = compared(tmp_path, one.to(dtype), (one + change).to(dtype))
    assert (found.elements, found.size) == (3, 60)
    assert (found.first, found.last) == (places[0], places[2])
    assert found.region == ((1, 3), (0, 2), (1, 4))
    assert found.largest == 8
    assert sum(count for _, count in found.ulps) == {
        torch.float32: 60, torch.bfloat16: 60, torch.complex64: 120
    }.get(dtype, 0)  # fmt: skip
    assert "[1:4, 0:3, 1:5]" in str(found)


@pytest.mark.parametrize(
    ("one", "other", "largest"),
    [
        (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), 2**64 - 1),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53]), 1),
        (torch.tensor([200], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8), 197),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 0.0),
        (torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 3.0]), 2.0),
        (torch.tensor([math.inf]), torch.tensor([1.0]), None),
        (torch.tensor(2.0), torch.tensor(3.0), 1.0),
    ],
)
def test_largest_difference(one: Tensor, other: Tensor, largest: Any, tmp_path: Path) -> None:
    """Exact for integers of 64 bits, and of the finite elements."""
    found = compared(tmp_path, one, other)
    assert (found.largest, type(found.largest)) == (largest, type(largest))


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    """Tensors of other shapes or dtypes are named; so are parts that are the same."""
    found = compared(tmp_path, torch.ones(3), torch.ones(4))
    assert found.elements is None
    assert "float32[3] strides [1] cpu and float32[4] strides [1] cpu" in str(found)
    sparse = [
        dumped(tmp_path / str(scale), "aten::clone@0", (torch.eye(2) * scale).to_sparse().clone)
        for scale in (1, 2)
    ]
    parted = compare_dumps(*sparse)
    assert parted.same == ("input 0 indices", "output 0 indices")
    assert [each.name for each in parted.differing] == ["input 0 values", "output 0 values"]


def one_bit(args: tuple[Any, ...], result: Tensor) -> None:
    bits(result).view(-1)[[5, 9]] ^= 2


def program(path: Path, at: int | None = None, more: int = 0, **options: Any) -> Path:
    """A run in which call ``at`` of addmm goes wrong, after ``more`` calls that the other lacks."""
    torch.manual_seed(0)
    fault = Fault("aten::addmm.default", -1 if at is None else at + more, one_bit)
    with fault, record(path, **options):
        x, bias = torch.randn(4, 4), torch.ones(4)
        for _ in range(more):
            torch.addmm(bias, x, x, alpha=0.5)
        for _ in range(5):
            x = torch.addmm(bias, x, x.t()).tanh()
    return path


@pytest.mark.parametrize("more", [0, 2])
def test_diff_says_what_to_dump_and_then_how_it_differs(more: int, tmp_path: Path) -> None:
    """The advice of the first comparison, followed, gives the elements and ULPs of the fault.

    Where one run makes calls more, its call has another index: both are said, and compared.
    """
    runs: list[dict[str, Any]] = [{}, {"at": 3, "more": more}]
    comparison = diff(*(program(tmp_path / str(n), **run) for n, run in enumerate(runs)))
    advice = "to see how the tensors differ, record both runs again with --dump "
    advice += "aten::addmm.default@3"
    if more:
        advice = advice.replace("both runs", "the first run")
        advice += ", the second with --dump aten::addmm.default@5"
    assert str(comparison).splitlines()[-1] == advice
    calls = [[str(call) for call in each] for each in comparison.to_dump]
    comparison = diff(
        *(program(tmp_path / f"again {n}", dump=calls[n], **run) for n, run in enumerate(runs))
    )
    assert "--dump" not in str(comparison)
    (call,) = comparison.dumped
    assert (call.first.index, call.second.index) == (3, 3 + more)
    assert call.same == ("input 0", "input 1", "input 2")
    (output,) = call.differing
    assert (output.name, output.elements, output.size) == ("output 0", 2, 16)
    assert (output.first, output.last, output.region) == ((1, 1), (2, 1), ((1, 2), (1, 1)))
    assert output.ulps == (("0", 14), ("2", 2))
    assert "2 of 16 differ" in str(comparison)
    assert "2 of 16 differ" in comparison.to_html()
    data = json.loads(comparison.to_json())
    assert data["to_dump"] == [[], []]
    assert data["dumped"][0]["differing"][0]["ulps"] == [["0", 14], ["2", 2]]
    assert data["dumped"][0]["differing"][0]["region"] == [[1, 2], [1, 1]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    dump = {"dump": ["aten::addmm@3", "aten::tanh@4"]}
    return program(folder / "first", **dump), program(folder / "second", at=3, **dump)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_dump_is_refused(
    runs: tuple[Path, Path], tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever bytes are in its files, a dump is read or refused with one line."""
    check_hostile_copy(*runs, "dumps/aten.addmm.default@3/*", data, tmp_path)


def changed(of_array: bool = False, **entries: Any) -> Callable[[Path], None]:
    def change(dump: Path) -> None:
        head = json.loads((dump / "call.json").read_text())
        (head["arrays"][3] if of_array else head).update(entries)
        (dump / "call.json").write_text(json.dumps(head))

    return change


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def pickled(dump: Path) -> None:
    np.save(dump / "3.npy", np.array([Payload()], dtype=object), allow_pickle=True)


def piped(dump: Path) -> None:
    (dump / "3.npy").unlink()
    os.mkfifo(dump / "3.npy")


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "other_version": (changed(version=2), "reads 1"),
    "other_format": (changed(format="x"), "is not a dump"),
    "other_call": (changed(index=4), "describes another call"),
    "no_arrays": (changed(arrays=None), "does not describe"),
    "unknown_dtype": (changed(True, dtype="load"), "does not describe"),
    "other_dtype": (changed(True, dtype="int64"), "is not the int64[4, 4]"),
    "other_shape": (changed(True, shape=[10**18]), "is not the float32"),
    "negative_shape": (changed(True, shape=[-4, -4]), "does not describe"),
    "twice": (changed(True, name="input 0"), "twice"),
    "pickle": (pickled, "is not an array"),
    "pipe": (piped, "there is no file"),
    "no_file": (lambda dump: (dump / "3.npy").unlink(), "there is no file"),
    "cut_off": (lambda dump: os.truncate(dump / "3.npy", 150), "is truncated"),
    "empty": (lambda dump: os.truncate(dump / "call.json", 0), "is not JSON"),
    "no_json": (lambda dump: (dump / "call.json").unlink(), "cannot read"),
    "column_order": (
        lambda dump: np.save(dump / "3.npy", np.asfortranarray(np.ones((4, 4), np.float32))),
        "row-major",
    ),
}


@pytest.mark.parametrize(("change", "said"), HOSTILE.values(), ids=HOSTILE)
def test_malformed_dump_is_one_line_and_exit_code_2(
    change: Callable[[Path], object],
    said: str,
    runs: tuple[Path, Path],
    tmp_path: Path,
    run_command: Run,
) -> None:
    """Nothing of it is executed, waited for, or shown as a traceback."""
    shutil.copytree(runs[1], tmp_path / "copy")
    change(tmp_path / "copy" / "dumps" / "aten.addmm.default@3")
    ours = run_command("diff", str(runs[0]), "copy")
    assert (ours.returncode, ours.stdout) == (2, "")
    (line,) = ours.stderr.splitlines()
    assert said in line
    assert not (tmp_path / "executed").exists()


def test_a_dump_that_was_being_written_is_passed_over(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    """A killed run's last dump is none, and the rest is read."""
    copy = tmp_path / "copy"
    shutil.copytree(runs[1], copy)
    dumps = copy / "dumps"
    (dumps / "aten.addmm.default@3").rename(dumps / ".aten.addmm.default@3")
    os.truncate(dumps / ".aten.addmm.default@3" / "call.json", 5)
    assert [str(each.first) for each in diff(runs[0], copy).dumped] == ["aten::tanh.default@4"]


PROGRAM = ("-c", "import torch, sys; torch.ones(2).exp(); sys.exit(7)", "--lr", "0.1")


def test_dump_that_the_run_does_not_reach(run_command: Run, tmp_path: Path) -> None:
    """It is said at the end; the exit code and the recorded arguments are the program's."""
    dumps = ("aten::exp@0", "aten::exp@1", "mine::operator.overload@0")
    options = [option for dump in dumps for option in ("--dump", dump)]
    ours = run_command("record", "-o", "run", *options, *PROGRAM)
    assert ours.returncode == 7
    assert ours.stderr.splitlines() == [
        "detmode: recorded to run",
        "detmode: note: no dump of aten::exp.default@1: the run did not make that call",
        "detmode: note: no dump of mine::operator.overload@0: the run did not make that call",
    ]
    (dump,) = dumps_of(tmp_path / "run")
    assert read(dump, "output 0").tolist() == pytest.approx([math.e] * 2)
    about = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert about["arguments"] == ["-c", "--lr", "0.1"]


WRONG = ["aten::exp", "aten::exp@", "exp@1", "aten::exp@-1", "aten::nothing@1", "aten::exp.x@1"]


@pytest.mark.parametrize("text", [*WRONG, "", "aten::exp@1.5", "aten::../x@1", "aten::__class__@1"])
def test_wrong_dump_is_refused_before_the_program_runs(
    text: str, tmp_path: Path, run_command: Run
) -> None:
    """One line, exit code 2, and no folder."""
    ours = run_command("record", "-o", "run", "--dump", text, *PROGRAM)
    assert (ours.returncode, ours.stdout) == (2, "")
    (line,) = ours.stderr.splitlines()
    assert repr(text) in line
    assert not (tmp_path / "run").exists()


def test_dump_of_the_wrong_type() -> None:
    """One text is no list of them."""
    with pytest.raises(TypeError, match="must be a list of calls"):
        record("run", dump="aten::exp@0")
