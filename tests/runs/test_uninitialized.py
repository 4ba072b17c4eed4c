"""Memory that nobody has written: a recording leaves it as it is, and blames who reads it."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detmode
from detmode import record
from detmode.runs import unwritten
from detmode.runs.marks import Mark
from detmode.runs.trace_file import UNDEFINED
from detmode.sites.observers import observer
from tests.shared import needs
from tests.shared.traces import calls, compared, new

BYTE = 0x3F
HELD = torch.full((1,), BYTE, dtype=torch.uint8).expand(4).contiguous().view(torch.float32).item()
"""The number that new memory holds here."""


def some(x: torch.Tensor) -> None:
    x[:1] = 1


def scattered(x: torch.Tensor) -> None:
    x[torch.tensor([0, 5, len(x) - 1])] = 1


def masked(x: torch.Tensor) -> None:
    x.masked_fill_(torch.arange(len(x)) == 5, 1)


def in_parts(x: torch.Tensor) -> None:
    x[1:6].fill_(1)
    x.numpy()[7] = 1
    x[9:10] = 1


def by_column(x: torch.Tensor) -> None:
    x.view(-1, 8)[:, 3] = 1


def transposed(x: torch.Tensor) -> None:
    x.view(-1, 8).t_().squeeze_()


def rebound(x: torch.Tensor) -> None:
    torch.empty(0).set_(x.untyped_storage())


WRITES = (some, scattered, masked, in_parts, by_column, transposed, rebound)


# The program reads elements that it has not written, and is told so.
@pytest.mark.filterwarnings("ignore:detmode.record.*uninitialized")
@pytest.mark.parametrize("numel", [16, 4096])
@pytest.mark.parametrize("write", WRITES)
def test_a_recording_leaves_what_memory_holds(write, numel, tmp_path):
    """Elements beside written ones read as they would without a recording, in it and after it."""
    wanted = torch.full((numel,), HELD)
    write(wanted)
    with record(tmp_path / "run"):
        x, unread = new(numel, BYTE), new(numel, BYTE)
        write(x)
        write(unread)
        total = x.sum().item()
    assert total == wanted.sum().item()
    assert np.array_equal(x.numpy(), wanted.numpy())
    assert np.array_equal(unread.numpy(), wanted.numpy())


def test_reading_what_is_written_in_part(tmp_path):
    """A warning names the call, and ``diff`` says why the runs differ, and not that it varies."""

    def program(byte, recording):
        with pytest.warns(UserWarning, match=r"1 call read .*uninitialized.*aten::sum"), recording:
            x = new(4096, byte)
            x[:2048] = 0.25
            x.sum()

    comparison = compared(tmp_path, program, 0x3F, 0x40)
    assert comparison.divergence is not None
    assert comparison.divergence.kind == "uninitialized"
    assert "varies, or" not in str(comparison)
    assert "write to what empty() returns" in comparison.next_step
    assert compared(tmp_path / "same", program, 0x3F, 0x3F).identical


def test_runs_of_which_not_all_is_known(tmp_path):
    """Runs are not called identical where calls read nothing but uninitialized memory."""

    def program(byte, recording):
        with pytest.warns(UserWarning, match=r"2 calls is not recorded.*uninitialized"), recording:
            new(64, byte).exp().sum()

    comparison = compared(tmp_path, program, 0x3F, 0x40)
    assert comparison.divergence is None
    assert "in all that is recorded: not the results of 2 calls" in comparison.verdict

    def written(byte, recording):
        with recording:
            x = new(64, byte)
            x.view(8, 8)[0].fill_(1)
            x.view(8, 8).copy_(torch.ones(8, 8))
            x.mul_(2).sum()

    assert compared(tmp_path / "written", written, 1, 2).verdict == "the runs are identical"


def test_elementwise_calls_pass_it_on(tmp_path):
    """Copies and elementwise calls make unwritten elements of unwritten ones, and of no others.

    A program that pads its memory and reads only what it has written is blamed for nothing.
    """

    def program(values, recording):
        byte, value = values
        with recording:
            cache = new(64, byte).view(4, 16)
            cache[:, :10] = value
            longer = (cache.clone().t() * 2 + torch.ones(4)).to(torch.float64)
            longer[:10].sum()
            torch.zeros(4, 16).copy_(cache)[:, :10].sum()

    assert compared(tmp_path / "same", program, (1, 2.0), (2, 2.0)).identical
    assert not compared(tmp_path / "other", program, (1, 2.0), (2, 3.0)).identical


def test_a_factor_that_is_not_read(tmp_path):
    """With ``beta=0``, as attention is often written, ``baddbmm`` does not read its first."""

    def program(byte, recording):
        a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
        with recording:
            torch.baddbmm(new(30, byte).view(2, 3, 5), a, b, beta=0).sum()

    assert compared(tmp_path, program, 1, 2).identical


@pytest.mark.parametrize("level", ["call", "module", "step"])
def test_copies_of_modules(level, tmp_path):
    """Copies of modules and tensors, for averages and best weights, are the same in equal runs."""
    for folder in ("first", "second"):
        torch.manual_seed(0)
        with record(tmp_path / folder, level=level):
            net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            average = copy.deepcopy(net)
            net(torch.randn(8, 4)).sum().backward()
            best = copy.deepcopy(net.state_dict())
            sum(t.double().sum().item() for t in [*best.values(), *average.state_dict().values()])
            detmode.end_step(weight=average.state_dict()["0.weight"])
    assert detmode.diff(tmp_path / "first", tmp_path / "second").identical


def test_a_storage_is_an_input(tmp_path):
    """A tensor that is given other memory differs as that memory does, and nobody varies."""

    def program(value, recording):
        source = torch.full((4,), value)
        with recording:
            torch.empty(0).set_(source.untyped_storage(), 0, (2, 2), (2, 1)).sum()

    comparison = compared(tmp_path, program, 1.0, 2.0)
    assert comparison.divergence is not None
    assert comparison.divergence.kind == "inputs"
    assert compared(tmp_path / "same", program, 1.0, 1.0).identical


def test_memory_beside_a_view(tmp_path):
    """A view that shows more memory than its input covers does not vary: its memory differs."""

    def program(value, recording):
        whole = torch.tensor([1.0, 2.0, value])
        with recording:
            whole[:2].as_strided((3,), (1,)).sum()

    comparison = compared(tmp_path, program, 1.0, 2.0)
    assert comparison.divergence is not None
    assert comparison.divergence.kind == "inputs"


@needs.distributed
def test_a_collective_writes_after_its_call(tmp_path):
    """The memory that it writes has no mark any more, which would be taken off too late."""
    c10d = torch.ops.c10d.broadcast_.default
    with record(tmp_path / "run"):
        x = new(16, BYTE)
        recording = observer()
        assert isinstance(recording, record)
        # The call returns, and another thread fills the memory at any time after it has begun.
        before = bytes_while_called(recording, c10d, x)
    assert set(before) == {BYTE}


def bytes_while_called(recording: record, func: Any, *parts: torch.Tensor) -> bytes:
    """The bytes of tensors while a collective that is about to write them is called."""
    seen: list[bytes] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        seen.extend(part.numpy().tobytes() for part in parts)
        return list(parts), None

    recording.observe(func, (list(parts), None, 0, 0, False, -1), {}, run)
    return b"".join(seen)


@needs.distributed
def test_a_collective_that_writes_parts_of_memory(tmp_path, monkeypatch):
    """No part gets a mark again when the call has returned: another thread may be writing it."""
    marked = []

    def mark(storage, begin, end, device):
        marked.append((begin, end))
        return Mark(storage, begin, end, device)

    monkeypatch.setattr(unwritten, "Mark", mark)
    with record(tmp_path / "run"):
        x = new(16, BYTE)
        recording = observer()
        assert isinstance(recording, record)
        assert set(bytes_while_called(recording, torch.ops.c10d.broadcast_.default, x)) == {BYTE}
        x = new(16, BYTE)
        assert marked
        marked.clear()
        bytes_while_called(recording, torch.ops.c10d.broadcast_.default, *x.chunk(2))
    assert marked == []


@needs.distributed
def test_memory_that_is_freed_and_had_again(tmp_path):
    """A storage that is emptied and filled, as FSDP does it, is undefined until it is written."""
    with record(tmp_path / "run"):
        x = torch.empty(16)
        for _ in range(3):
            x.untyped_storage().resize_(0)
            x.untyped_storage().resize_(64)
        recording = observer()
        assert isinstance(recording, record)
        bytes_while_called(recording, torch.ops.c10d.broadcast_.default, x)
    (broadcast,) = calls(tmp_path / "run", "c10d::broadcast_.default")
    assert broadcast.inputs.digests == (UNDEFINED,)


def written_first() -> None:
    memory = torch.empty(8)
    memory.fill_(1)
    torch.nn.functional.gelu(memory.view(2, 4)).sum()


def trained() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(model.parameters()).step()


def read_in_part() -> None:
    memory = torch.empty(8)
    memory[:4] = 1
    (memory * 2)[:4].sum()


def read_elsewhere() -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(torch.empty(8).sum).result()


@torch.library.custom_op("detmode_uninitialized_test::foreign", mutates_args=())
def foreign(x: torch.Tensor) -> torch.Tensor:
    return x + 1


# Some of the calls read what they have not written, and are told so.
@pytest.mark.filterwarnings("ignore:detmode.record.*uninitialized")
@pytest.mark.parametrize(
    ("call", "options", "expected"),
    [
        pytest.param(written_first, {}, True, id="written first"),
        pytest.param(written_first, {"level": "module"}, True, id="by module"),
        pytest.param(trained, {}, True, id="a training"),
        pytest.param(lambda: None, {}, False, id="no call"),
        pytest.param(lambda: torch.empty(8).sum(), {}, False, id="read"),
        pytest.param(read_in_part, {}, False, id="read element by element"),
        # What is not followed is not claimed.
        pytest.param(written_first, {"level": "step"}, False, id="by step"),
        pytest.param(written_first, {"steps": "0:1"}, False, id="some steps"),
        pytest.param(read_elsewhere, {}, False, id="another thread"),
        pytest.param(lambda: foreign(torch.empty(8)), {}, False, id="another library"),
        pytest.param(
            torch.compile(written_first, backend="eager"), {}, True, id="compiled, call by call"
        ),
    ],
)
def test_whether_new_memory_must_be_filled(call, options, expected, tmp_path):
    """A recording says that no call read unwritten memory only where it has followed all of it."""
    with record(tmp_path / "run", **options) as recorded:
        call()
    assert recorded.reads_written_memory is expected
