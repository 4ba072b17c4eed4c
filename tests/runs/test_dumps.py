"""Dumps: what is written is what went in and came out, and how two of them differ is told truly."""

import json
import math
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from detmode import diff, record
from detmode.bits.difference import same_bits
from detmode.bits.tensors import parts
from detmode.runs import dump_file
from detmode.runs.dump_file import DumpReader, dumps_of
from tests.shared.traces import check_hostile_copy, dumped
from tests.shared.training import Fault, bits


def read(dump: DumpReader, name: str) -> Tensor:
    array = dump.arrays[name][1]
    chunks = [*dump.chunks(name), torch.empty(0, dtype=getattr(torch, array.dtype))]
    # Joined as bytes: not every dtype can be joined.
    joined = torch.cat([chunk.view(torch.uint8) for chunk in chunks])
    return joined.view(getattr(torch, array.dtype)).reshape(array.shape)


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
def test_dumped_tensor_is_the_tensor(make, chunk, tmp_path, monkeypatch):
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


def test_inputs_are_those_before_the_call(tmp_path):
    """Of a call that writes its arguments, and of the one that was asked for."""

    def run():
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


def test_memory_that_nobody_wrote_is_left_out(tmp_path):
    """As in the trace, what ``empty`` gave means nothing until it is written."""
    dump = dumped(tmp_path / "run", "aten::fill_.Scalar@0", lambda: torch.empty(3).fill_(1))
    assert list(dump.arrays) == ["mutated 0"]


def test_call_that_raises_is_not_counted(tmp_path):
    """It is in no trace either; nothing of it is left."""

    def run():
        with pytest.raises(RuntimeError):
            torch.ones(2, 3).mm(torch.ones(2, 3))
        assert os.listdir(tmp_path / "run" / "dumps") == []
        torch.eye(2).mm(torch.eye(2))

    assert read(dumped(tmp_path / "run", "aten::mm@0", run), "output 0").trace() == 2


def test_dump_that_cannot_be_written(tmp_path):
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
def test_diff_says_what_to_dump_and_then_how_it_differs(more, tmp_path):
    """The advice of the first comparison, followed, gives the elements and ULPs of the fault.

    Where one run makes calls more, its call has another index: both are said, and compared.
    """
    runs = [{}, {"at": 3, "more": more}]
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
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    dump = {"dump": ["aten::addmm@3", "aten::tanh@4"]}
    return program(folder / "first", **dump), program(folder / "second", at=3, **dump)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_dump_is_refused(runs, tmp_path, data):
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
def test_malformed_dump_is_one_line_and_exit_code_2(change, said, runs, tmp_path, run_command):
    """Nothing of it is executed, waited for, or shown as a traceback."""
    shutil.copytree(runs[1], tmp_path / "copy")
    change(tmp_path / "copy" / "dumps" / "aten.addmm.default@3")
    ours = run_command("diff", str(runs[0]), "copy")
    assert (ours.returncode, ours.stdout) == (2, "")
    (line,) = ours.stderr.splitlines()
    assert said in line
    assert not (tmp_path / "executed").exists()


def test_a_dump_that_was_being_written_is_passed_over(runs, tmp_path):
    """A killed run's last dump is none, and the rest is read."""
    copy = tmp_path / "copy"
    shutil.copytree(runs[1], copy)
    dumps = copy / "dumps"
    (dumps / "aten.addmm.default@3").rename(dumps / ".aten.addmm.default@3")
    os.truncate(dumps / ".aten.addmm.default@3" / "call.json", 5)
    assert [str(each.first) for each in diff(runs[0], copy).dumped] == ["aten::tanh.default@4"]


PROGRAM = ("-c", "import torch, sys; torch.ones(2).exp(); sys.exit(7)", "--lr", "0.1")


def test_dump_that_the_run_does_not_reach(run_command, tmp_path):
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
def test_wrong_dump_is_refused_before_the_program_runs(text, tmp_path, run_command):
    """One line, exit code 2, and no folder."""
    ours = run_command("record", "-o", "run", "--dump", text, *PROGRAM)
    assert (ours.returncode, ours.stdout) == (2, "")
    (line,) = ours.stderr.splitlines()
    assert repr(text) in line
    assert not (tmp_path / "run").exists()


def test_dump_of_the_wrong_type():
    """One text is no list of them."""
    with pytest.raises(TypeError, match="must be a list of calls"):
        record("run", dump="aten::exp@0")
