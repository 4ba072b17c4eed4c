"""Threads that recheck, record, catch warnings and draw numbers at the same time."""

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy
import pytest
import torch
import torch._dynamo  # it wraps torch.manual_seed, once
from torch._inductor.output_code import CompiledFxGraph

import detmode
from detmode import DeterministicMode, record
from detmode.runs import steps
from detmode.runs.trace_file import Reader
from tests.shared.selection import PROFILE


def process_state() -> list[object]:
    """All that rechecks and recordings might leave behind in the process."""
    return [
        list(warnings.filters),
        warnings._showwarnmsg,  # type: ignore[attr-defined]  # it is not public
        *(random.seed, numpy.random.seed, torch.manual_seed, torch.seed),
        *(torch.random.manual_seed, torch.random.seed),
        [*steps._running, *steps._hooks],
        *("resize_" in vars(torch.UntypedStorage), "copy_" in vars(torch.UntypedStorage)),
        CompiledFxGraph.__call__,
    ]


@contextmanager
def running(works: list[Callable[[], None]]) -> Iterator[list[BaseException]]:
    """Do each work again and again, in a thread for each, during the block; yield their errors."""
    over, errors = threading.Event(), list[BaseException]()

    def go_on(work: Callable[[], None]) -> None:
        while not over.is_set():
            try:
                work()
            except BaseException as error:
                errors.append(error)
                over.set()

    threads = [threading.Thread(target=go_on, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        over.set()
        for thread in threads:
            thread.join()


def rechecked() -> None:
    """Calls that draw, or do not, or are substituted: none is blamed."""
    with DeterministicMode(simulate="cuda", recheck=1.0):
        for _ in range(10):
            x = torch.ones(64).normal_()
            torch.nn.functional.dropout(x, 0.5).add_(1)
            x.index_add_(0, torch.zeros(8, dtype=torch.int64), torch.ones(8))


def heard() -> None:
    """A thread that catches its warnings hears each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("beside", stacklevel=1)
    assert [str(each.message) for each in caught] == ["beside"]


def test_a_recording_leaves_pytorch_as_it_was(tmp_path):
    """Nothing that shows it storages and compiled graphs stays replaced after its block."""
    before = process_state()
    with record(tmp_path / "outer"):
        with record(tmp_path / "inner"):
            pass
        assert process_state() != before
        torch.ones(4).untyped_storage().resize_(4)
    assert process_state() == before
    assert "resize_" not in vars(torch.UntypedStorage)


# What other threads warn of is theirs; heard() looks for its own.
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_left_lost_or_repeated(tmp_path):
    """No warning is lost and no number drawn twice; recordings have their own steps, and end."""
    numbers = []

    def draw():
        numbers.append(torch.rand((), dtype=torch.float64).item())
        time.sleep(0)

    def recorded():
        ended = random.SystemRandom().randrange(1, 5)
        path = tmp_path / f"{threading.get_ident()}-{time.monotonic_ns()}"
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
        with record(path, level="step"):
            for _ in range(ended):
                optimizer.step()
                detmode.end_step()
        assert len(list(Reader(path).steps())) == 2 * ended

    before = process_state()
    with running([rechecked, rechecked, recorded, recorded, heard, draw]) as errors:
        time.sleep(PROFILE.beside)
    assert not errors
    assert len(numbers) == len(set(numbers))
    assert process_state() == before
