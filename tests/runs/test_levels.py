"""Coarse recordings: they name the first step that differs, and a second run finds the call."""

import json
import random
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import checkpoint

import detmode
from detmode import diff, record
from detmode.runs.trace_file import Reader
from detmode.runs.trace_writer import _WAITING, Writer
from tests.shared.processes import run_forked
from tests.shared.programs import in_threads
from tests.shared.traces import check_hostile_copy
from tests.shared.training import Fault, Training

STEPS = 6
FAULTY = 3
"""The step that has the fault: each calls ``addmm`` twice."""


def add_one(args: tuple[Any, ...], result: torch.Tensor) -> None:
    result.view(-1).add_(1)


def recorded(path: Path, faulty: bool = False, **options: Any) -> Path:
    fault = Fault("aten::addmm.default", 2 * FAULTY + 1, add_one) if faulty else None
    Training(fault=fault).run(record(path, **options), STEPS)
    return path


@pytest.mark.parametrize("level", ["step", "module"])
def test_the_first_step_and_then_the_call(level, tmp_path):
    """A coarse recording names the step; recording this step alone names the call."""
    first = recorded(tmp_path / "first", level=level)
    assert diff(first, recorded(tmp_path / "again", level=level)).identical
    comparison = diff(first, recorded(tmp_path / "second", True, level=level))
    assert (comparison.identical, comparison.step) == (False, FAULTY)
    assert comparison.same == FAULTY + (level == "module")  # and what is before the first step
    assert f"record both runs again with {comparison.next}" in str(comparison)
    data = json.loads(comparison.to_json())
    assert (data["step"], data["next"]) == (FAULTY, f"--steps {FAULTY}:{FAULTY + 1}")
    assert f"first in step {FAULTY}" in comparison.to_html()
    names = comparison.firsts[0].names
    if level == "step":
        assert names == ("parameters", "gradients", "optimizer state")
    else:
        assert "Sequential.3" in names
    option, steps = comparison.next.split()
    assert option == "--steps"
    fine = diff(
        recorded(tmp_path / "fine_first", steps=steps),
        recorded(tmp_path / "fine_second", True, steps=steps),
    )
    divergence = fine.divergence
    assert (divergence.kind, divergence.call.overload) == ("outputs", "aten::addmm.default")
    assert (divergence.step, divergence.call.module) == (FAULTY, "Sequential.3")
    assert f"again with --steps {steps} --dump aten::addmm.default@1" in str(fine)


def test_calls_say_their_steps(tmp_path):
    """Steps of a range have the numbers and the calls that they have in the whole run."""
    whole = Reader(recorded(tmp_path / "whole"))
    calls = list(whole.calls())
    own = [call for call in calls if whole.step_of(call.number) in (2, 3)]
    part = Reader(recorded(tmp_path / "part", steps="2:4"))
    found = list(part.calls())
    assert [call.outputs for call in found] == [call.outputs for call in own]
    assert [call.inputs for call in found] == [call.inputs for call in own]
    assert {part.step_of(call.number) for call in found} == {2, 3}
    assert len(list(part.steps())) == 2
    assert part.complete


def test_a_program_marks_its_steps(tmp_path):
    """Without an optimizer, each ``end_step`` ends one, with the tensors that it names."""
    for name, value in (("first", 2.0), ("second", 3.0)):
        detmode.end_step()  # without a recording, nothing happens
        with record(tmp_path / name, level="step"):
            for step in range(4):
                detmode.end_step(loss=torch.full((3,), value if step == 2 else 1.0))
    comparison = diff(tmp_path / "first", tmp_path / "second")
    assert (comparison.step, comparison.firsts[0].names) == (2, ("loss",))
    assert comparison.same == 3
    with record(tmp_path / "third", level="step"), pytest.raises(TypeError, match="must be a ten"):
        detmode.end_step(loss=1.0)


def test_two_recordings_in_two_threads(tmp_path):
    """Each has the steps of the optimizers, and the ends of steps, of its own thread."""
    both, each_done = threading.Barrier(2), threading.Barrier(2)

    def train(name, steps):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
        with record(tmp_path / name, level="step"):
            both.wait()
            for _ in range(steps):
                optimizer.step()
            detmode.end_step()
            each_done.wait()

    in_threads(lambda: train("short", 2), lambda: train("long", 5))
    steps = [len(list(Reader(tmp_path / name).steps())) for name in ("short", "long")]
    assert steps == [3, 6]


def test_steps_of_a_thread_without_a_recording(tmp_path):
    """They end in what another thread records: it may be the main thread of a training thread."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    with record(tmp_path / "main", level="step"):
        in_threads(optimizer.step)
    assert len(list(Reader(tmp_path / "main").steps())) == 1


def test_recordings_end_in_any_order(tmp_path):
    """The first to begin may be the first to end: the other goes on, and nothing is left."""
    seeds = random.seed, torch.manual_seed, torch.random.manual_seed, numpy.random.seed
    first, second = (record(tmp_path / name, level="step") for name in ("first", "second"))
    first.__enter__()
    second.__enter__()
    detmode.end_step()
    first.__exit__(None, None, None)
    torch.manual_seed(3)
    detmode.end_step()
    second.__exit__(None, None, None)
    assert seeds == (random.seed, torch.manual_seed, torch.random.manual_seed, numpy.random.seed)
    counts = [len(list(Reader(tmp_path / name).steps())) for name in ("first", "second")]
    assert counts == [1, 2]
    with record(tmp_path / "third", level="step"):
        detmode.end_step()
    assert len(list(Reader(tmp_path / "third").steps())) == 1


def test_generators_of_gpus_belong_to_the_state(tmp_path, monkeypatch):
    """A step that only drew otherwise on a GPU differs; such a generator is a CPU's in disguise."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    for name, draws in (("first", 1), ("second", 2)):
        generator = torch.Generator().manual_seed(0)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
        with record(tmp_path / name, level="step"):
            for step in range(3):
                torch.rand(draws if step == 1 else 1, generator=generator)
                optimizer.step()
    comparison = diff(tmp_path / "first", tmp_path / "second")
    assert (comparison.step, comparison.firsts[0].names) == (1, ("generators",))


def test_a_run_that_is_shorter(tmp_path):
    """The first step that only one run has is named."""
    for name, steps in (("first", 3), ("second", 2)):
        with record(tmp_path / name, level="step"):
            for _ in range(steps):
                detmode.end_step()
    comparison = diff(tmp_path / "first", tmp_path / "second")
    assert (comparison.identical, comparison.only_first) == (False, 1)
    assert comparison.verdict.startswith("only one of the runs has step 2")


@pytest.mark.parametrize("level", ["call", "module", "step"])
def test_digest_of_a_run(level, tmp_path):
    """It is that of the steps that have ended: the same for the same steps, whatever follows."""
    found = []
    for name, value, more in (("a", 1.0, 0), ("b", 1.0, 1), ("c", 2.0, 0)):
        with record(tmp_path / name, level=level):
            loss = torch.full((3,), value).neg()
            detmode.end_step(loss=loss)
            for _ in range(more):
                loss.neg()
            found.append(detmode.run_digest())
    assert found[0] == found[1] != found[2]
    with pytest.raises(RuntimeError, match="no recording is running"):
        detmode.run_digest()


# PyTorch 2.8 calls what is deprecated.
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
# It is meant for many ranks, and says so.
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("settings", [{}, {"flatten_state_dict": False}])
def test_digest_in_a_checkpoint(settings, tmp_path):
    """A checkpoint is loaded as without the digest; an unrecorded program saves none."""
    weights, key = torch.arange(4.0), "detmode.run_digest"
    found = {}
    for name, context in (("recorded", record(tmp_path / "run")), ("plain", nullcontext())):
        with context:
            detmode.end_step()
            planner = detmode.RecordedSavePlanner(**settings)
            path = tmp_path / name
            checkpoint.save({"weights": weights}, checkpoint_id=path, planner=planner)
            expected = detmode.run_digest() if name == "recorded" else None
        data = checkpoint.FileSystemReader(path).read_metadata().planner_data or {}
        found[name] = data.get(key)
        assert found[name] == expected
        loaded = {"weights": torch.zeros(4)}
        checkpoint.load(loaded, checkpoint_id=path)
        assert torch.equal(loaded["weights"], weights)
    assert found["recorded"]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_hostile_steps_are_refused(tmp_path, data):
    """Any bytes in a coarse recording are shown, or refused with one line."""
    path = tmp_path / "run"
    if not path.exists():
        recorded(path, level="step")
    check_hostile_copy(path, path, "*.*", data, tmp_path)


KILLED = """
import os, signal, sys, time, torch, detmode
from pathlib import Path
from detmode.runs import recording
recording._SECONDS = 0.1
lines = Path(sys.argv[1], "calls.jsonl")
with detmode.record(sys.argv[1], level="step"):
    while not lines.stat().st_size:
        time.sleep(0.01)
        detmode.end_step(loss=torch.ones(3))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_killed_run_has_its_steps(tmp_path):
    """A batch of steps is written after a time, a second, however few digests it has."""
    path = tmp_path / "run"
    ended = run_forked("-c", [(KILLED, path)], tmp_path, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    reader = Reader(path)
    assert not reader.complete
    assert {tuple(step) for step in reader.steps()} == {("loss",)}


class Slow:
    """A file whose writing waits."""

    def __init__(self, file: Any) -> None:
        self.file, self.open = file, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, content: bytes) -> None:
        self.open.wait(30)
        self.file.write(content)


def test_writing_does_not_hold_up_the_program_until_memory_is_full(tmp_path):
    """Batches wait for a slow disk, up to a few; then the program waits, and nothing is lost."""
    writer = Writer(tmp_path / "run", {})
    slow = writer._digests = Slow(writer._digests)
    for _ in range(_WAITING + 1):  # one is being written
        writer.flush(bytes(16))
    ahead = threading.Thread(target=writer.flush, args=(bytes(16),))
    ahead.start()
    ahead.join(0.3)
    assert ahead.is_alive()
    slow.open.set()
    ahead.join(30)
    assert not ahead.is_alive()
    writer.close(True)
    assert (tmp_path / "run" / "digests.bin").stat().st_size == 16 * (_WAITING + 2)
    assert not writer._thread.is_alive()


class FailsOnce(Slow):
    """A file whose first write fails; later ones would go through."""

    has_failed = False

    def write(self, content: bytes) -> None:
        self.open.wait(30)
        if not self.has_failed:
            self.has_failed = True
            raise OSError("the disk was away")
        self.file.write(content)


def test_nothing_is_written_behind_what_was_lost(tmp_path):
    """Digests are identified by their position, so that a later batch would be taken for others."""
    writer = Writer(tmp_path / "run", {})
    file = writer._digests = FailsOnce(writer._digests)
    for _ in range(3):
        writer.flush(bytes(16))
    file.open.set()
    with pytest.raises(OSError, match="the disk was away"):
        writer.close(True)
    assert (tmp_path / "run" / "digests.bin").stat().st_size == 0
