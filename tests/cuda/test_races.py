"""The host runner finds data races, in whatever order it ran the threads, and only races."""

import re
import shutil

import pytest
import torch
from torch import Tensor

from detmode.cuda import host, launch_blocks
from tests.shared.cuda_sources import FAULTS, RACES


def _run(entry: str, seed: int | None, output: Tensor, n: int = 3, **others: Tensor) -> None:
    with host.schedule(seed), host.check_races():
        launch_blocks(RACES, entry, 4, 64, output=output, n=n, **others)


def _output() -> Tensor:
    return torch.zeros(256, dtype=torch.int64)


ORDERED = (
    "neighbour_in_block<true>",
    "neighbour_twice<true>",
    "neighbour_in_warp<true>",
    "neighbour_in_half<true>",
    "through_both<true>",
    "same_element<true>",
    "read_beside_atomics<false>",
    "read_written<true>",
)
RACING = {
    "neighbour_in_block<false>": "shared memory",
    "neighbour_twice<false>": "shared memory",
    "neighbour_in_warp<false>": "shared memory",
    "neighbour_in_half<false>": "shared memory",
    "through_both<false>": "shared memory",
    "same_element<false>": "argument 'output' at byte 0",
    "read_beside_atomics<true>": "argument 'output' at byte 0",
    "read_written<false>": "shared memory .* no thread of its block has",
}
SEEDS = (None, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("entry", ORDERED)
def test_ordered_accesses_pass(entry: str, seed: int | None) -> None:
    """Barriers of block and warp order plain accesses; atomics and volatile reads need none."""
    output = _output()
    _run(entry, seed, output)
    assert output.any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("entry", RACING)
def test_races_are_errors(entry: str, seed: int | None) -> None:
    """Without the barrier each is an error that names the memory; nothing is written.

    A read that ran before the write is reported as one of memory that nobody has written.
    """
    output = _output()
    with pytest.raises(host.LaunchError, match=f"(data race|reads 8 bytes).* {RACING[entry]}"):
        _run(entry, seed, output)
    assert not output.any()


@pytest.mark.parametrize("reader", [0, 100, 255])
def test_any_reader_beside_atomics_races(reader: int) -> None:
    """A plain read races with the others' atomics, whether those ran before it or after."""
    with pytest.raises(host.LaunchError, match="data race: .* atomically"):
        _run("read_beside_atomics<true>", None, _output(), n=reader)


@pytest.mark.parametrize("seed", SEEDS)
def test_fences_order_blocks(seed: int | None) -> None:
    """Memory that a block wrote before its fence is another's to read after a fence of its own."""

    def run(before: int, after: int) -> Tensor:
        output, parts = _output(), torch.zeros(4, dtype=torch.int64)
        done = torch.zeros(1, dtype=torch.int32)
        _run(f"last_block<{before}, {after}>", seed, output, parts=parts, done=done)
        return output

    assert run(1, 1)[0] == 0 + 1 + 2 + 3
    for fences in ((0, 1), (1, 0), (0, 0)):
        with pytest.raises(host.LaunchError, match="data race: .* argument 'parts' at byte"):
            run(*fences)


def test_a_flag_that_another_replaces_orders_nothing() -> None:
    """Who reads the other's word knows nothing of what was written before the first one."""

    def run(replaces: str) -> Tensor:
        output = _output()
        _run(f"flag_of_another<{replaces}>", None, output, flag=torch.zeros(1, dtype=torch.int64))
        return output

    assert run("false")[:2].tolist() == [7, 8]
    with pytest.raises(host.LaunchError, match="data race: .*argument 'output' at byte 0"):
        run("true")
    assert run("false")[:2].tolist() == [7, 8]


@pytest.mark.parametrize("second", [0, 1])
def test_a_word_remembers_each_byte(second: int) -> None:
    """A read of one byte is not forgotten for a later one of its neighbour, which it precedes."""
    with pytest.raises(host.LaunchError, match="data race: .*writes 1 bytes of argument 'output'"):
        _run(f"bytes_of_a_word<{second}>", None, torch.zeros(4))


@pytest.mark.parametrize("entry", ["read_after", "read_before"])
def test_reads_out_of_bounds_are_errors(entry: str) -> None:
    """Also where what was read is used for nothing; a write is seen in any launch."""
    output = torch.zeros(1)
    with host.check_races(), pytest.raises(host.LaunchError, match="reads 4 bytes out of bounds"):
        launch_blocks(FAULTS, entry, 1, 64, input=torch.zeros(100), output=output, n=100)
    assert output.item() == 0


@pytest.mark.parametrize(
    ("name", "dtype"), [("bool", torch.bool), ("int16_t", torch.int16), ("double", torch.float64)]
)
def test_neighbouring_elements_are_no_race(name: str, dtype: torch.dtype) -> None:
    """Elements narrower than a word do not race with their neighbours; one element twice does."""
    output = torch.zeros(100, dtype=dtype)
    _run(f"element_each<{name}, 1>", 1, output, n=100)
    assert output.all()
    with pytest.raises(host.LaunchError, match="data race"):
        _run(f"element_each<{name}, 2>", 1, output, n=100)


def test_the_message_names_threads_and_lines() -> None:
    """Both threads and both lines of the CUDA file are said."""
    if shutil.which("addr2line") is None:
        pytest.skip("addr2line is not installed; the message has offsets instead of lines")
    with pytest.raises(host.LaunchError) as error:
        _run("neighbour_twice<false>", None, _output())
    lines = (RACES.path).read_text().splitlines()
    first, second = re.findall(
        r"thread \(\d+, 0, 0\) of block \(0, 0, 0\) \w+ [^(]*\(at races\.cu:(\d+)\)",
        str(error.value),
    )
    assert "values[threadIdx.x] =" in lines[int(first) - 1]
    assert "values[(threadIdx.x + 1)" in lines[int(second) - 1]


def test_the_environment_asks_for_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DETMODE_HOST_RACES=1` has launches checked that are in no block; else the check ends with
    its block, also by an exception.
    """

    def launch() -> None:
        launch_blocks(RACES, "same_element<false>", 4, 64, output=_output(), n=3)

    monkeypatch.setenv("DETMODE_HOST_RACES", "1")
    with pytest.raises(host.LaunchError, match="data race"):
        launch()
    monkeypatch.setenv("DETMODE_HOST_RACES", "0")
    with pytest.raises(host.LaunchError), host.check_races():
        launch()
    launch()
