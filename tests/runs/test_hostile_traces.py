"""Traces of any bytes: each is shown, in little time and memory, or refused with one line."""

import json
import math
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detmode import TraceError, diff, record
from detmode.runs.trace_file import Reader
from tests.shared.traces import check_hostile_copy


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run"
    torch.manual_seed(0)
    with record(path):
        x = torch.rand(5)
        for _ in range(5):
            x = (x + 1).sin()
    return path


@pytest.fixture
def copy(trace, tmp_path):
    """A copy of the trace, to be damaged."""
    return shutil.copytree(trace, tmp_path / "copy")


@pytest.mark.parametrize(
    "fields",
    [
        [-1, 2, None, [], [0], [], 0, ""],
        [0.0, 2, None, [], [0], [], 0, ""],
        [True, 2, None, [], [0], [], 0, ""],
        [0, 9999, None, [], [0], [], 0, ""],
        [0, 2, -1, [], [0], [], 0, ""],
        [0, 2, None, [], [-1], [], 0, ""],
        [0, 2, None, [], 0, [], 0, ""],
        [0, 2, None, [], [0], 0, ""],
        [0, 2, None, [], [0], [], 2, ""],
        [0, 2, None, [], [0], [], 0, 7],
        [],
    ],
    ids=str,
)
def test_a_line_that_means_nothing_is_refused(fields, copy):
    """A number that stands for no text is not taken for one that stands for another."""
    lines = (copy / "calls.jsonl").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if "call" in line)
    lines[first] = json.dumps({"call": fields})
    (copy / "calls.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match=rf"calls.jsonl:{first + 1} is not a line of a trace"):
        list(Reader(copy).calls())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_trace_is_refused(trace, tmp_path, data):
    """Whatever bytes are in its files, a trace is read or refused with one line."""
    check_hostile_copy(trace, trace, "*.*", data, tmp_path)


@contextmanager
def memory(more: int) -> Iterator[None]:
    """No more than that many bytes beyond what the process has."""
    if sys.platform != "linux":
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture
def run_diff(tmp_path, run_command):
    """``detmode diff`` with all that it writes, in little memory: code, stdout, stderr."""

    def run(first, second, form="table"):
        files = ("--html", "page.html", "--sarif", "run.sarif")
        with memory(1 << 30):
            ours = run_command("diff", "--format", form, *files, str(first), str(second))
        assert ours.returncode in (0, 1, 2)
        if ours.returncode == 2:
            assert (ours.stdout, ours.stderr.count("\n")) == ("", 1)
        else:
            json.loads((tmp_path / "run.sarif").read_text(encoding="utf-8"))
        return ours.returncode, ours.stdout, ours.stderr

    return run


FILES = ("trace.json", "calls.jsonl", "digests.bin")


def written(path: Path, head: dict[str, Any], lines: list[Any], digests: bytes) -> Path:
    """A trace of these lines, which may be anything."""
    path.mkdir()
    (path / "trace.json").write_text(
        json.dumps({"format": "detmode-trace", "version": 2, **head}), encoding="utf-8"
    )
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (path / "calls.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (path / "digests.bin").write_bytes(digests)
    return path


def two_written(folder: Path, lines: list[Any], tensors: int) -> tuple[Path, Path]:
    """Two traces of the same lines, in which every tensor has other bytes."""
    return (
        written(folder / "one", {}, lines, b"\0" * (16 * tensors)),
        written(folder / "other", {}, lines, b"\1" * (16 * tensors)),
    )


def call_fields() -> dict[str, Any]:
    fields = {"operator": 0, "site": 0, "module": 0, "inputs": [0]}
    return fields | {"outputs": [], "mutated": [], "random": 0, "arguments": ""}


def call(**changes: Any) -> dict[str, Any]:
    """The line of a call, whose texts are number 0 where nothing else is said."""
    return {"call": list((call_fields() | changes).values())}


NESTED = "[" * 900 + "]" * 900
TEXTS = ["aten::add.Tensor", "aten::__class__.x", "load_library::x.y", "::", "", "m." * 20_000]
TEXTS += [
    "x" * 400,
    "x" * 1_000_000,
    "\ud800",
    "\udcff",
    "\x1b[2J\r\n",
    "/a\ud800\0.py:3",
    "/a.py:",
]
TEXTS += ["/a.py:" + "9" * 5000, "/a.py:-1", "<b>"]
VALUES = st.sampled_from(
    [json.loads(NESTED), 1e999, math.nan, "x" * 100_000, "\ud800", 10**30, [], {"torch": "\ud800"}]
)
HEADS = st.dictionaries(
    st.sampled_from(["torch", "arguments", "generators", "rank", "threads"]), VALUES
)
# Lines that are of a trace, if there are three texts.
NUMBERS = st.integers(0, 2)
SIDES = st.builds(lambda number, n: [number] * n, NUMBERS, st.sampled_from([0, 1, 1, 2000]))
CALLS = st.fixed_dictionaries(
    {"operator": NUMBERS, "site": NUMBERS, "module": NUMBERS, "inputs": SIDES},
    optional={"mutated": SIDES, "arguments": st.sampled_from(TEXTS)},
).map(lambda changes: call(**changes))
# Lines that are not.
OTHERS = st.one_of(
    st.tuples(st.sampled_from(list(call_fields())), VALUES | st.integers(-2, 10)).map(
        lambda change: call(**dict([change]))
    ),
    st.sampled_from([{"end": "complete"}, {"text": 1}, {}, [], 1, None, NESTED, '{"call":NaN}']),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.tuples(HEADS, HEADS),
    texts=st.lists(st.sampled_from(TEXTS), min_size=3, max_size=3),
    calls=st.lists(CALLS, min_size=1, max_size=4),
    others=st.lists(OTHERS, max_size=1),
    form=st.sampled_from(["table", "json"]),
)
def test_hostile_trace_takes_little_memory(heads, texts, calls, others, form, run_diff, tmp_path):
    """Whatever its lines name, a trace is shown in each form or refused with one line."""
    lines = [*({"text": text} for text in texts), *calls, *others]
    one, other = (
        written(tmp_path / str(uuid4()), head, lines, byte * (1 << 17))
        for head, byte in zip(heads, (b"\0", b"\1"))
    )
    run_diff(one, other, form)
    shutil.rmtree(one)
    shutil.rmtree(other)


def sparse(file: Path) -> None:
    os.truncate(file, 0)
    os.truncate(file, 40 << 30)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("part", FILES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (sparse, "is not"),
        (pipe, "not a regular file"),
        (device, "not a regular file"),
        (folder, "Is a directory"),
    ],
)
def test_what_is_no_file_of_a_trace(change, said, part, copy, run_diff):
    """It is not read, nor waited for: one line. Digests that no call has are passed over."""
    change(copy / part)
    code, _, error = run_diff(copy, copy)
    if (change, part) == (sparse, "digests.bin"):
        assert code == 0
    else:
        assert code == 2
        assert said in error


def test_a_text_that_many_tensors_have(tmp_path, run_diff):
    """Some megabytes on disk that would be 20 gigabytes in a report are refused."""
    lines = [{"text": "x" * 1_000_000}, call(inputs=[0] * 20_000)]
    assert run_diff(*two_written(tmp_path, lines, 20_000))[0] == 2
    # A long one beside many short ones is shown, each as long as it is.
    lines = [{"text": "x" * 100_000}, {"text": "y" * 40}, call(inputs=[1] * 5_000, outputs=[0])]
    (tmp_path / "real").mkdir()
    code, out, _ = run_diff(*two_written(tmp_path / "real", lines, 5_001))
    assert code == 1
    assert len(out) < 2_000_000


def test_texts_that_many_lines_have(tmp_path, run_diff):
    """So are the names of a report's table, where calls share long ones."""
    lines = [{"text": f"{number}" + "x" * 30_000} for number in range(30)]
    lines += [call(operator=a, site=b, module=a, inputs=[]) for a in range(30) for b in range(30)]
    one = written(tmp_path / "one", {}, lines, b"")
    code, _, error = run_diff(one, written(tmp_path / "other", {}, [], b""))
    assert code == 2
    assert "has more than 64 MiB of operator, site and module names" in error


def test_a_line_that_is_too_long(tmp_path, run_diff):
    """It is refused, and not taken for the last one, which was being written."""
    lines = [{"text": "x"}, call(arguments="y" * (1 << 20)), call()]
    one = written(tmp_path / "one", {}, lines, bytes(32))
    code, _, error = run_diff(one, one)
    assert code == 2
    assert "calls.jsonl:2 is not a line of a trace" in error


def test_texts_that_cannot_be_written(tmp_path, run_diff):
    """Lone surrogates and control characters are shown as escapes; the bytes of a name stay."""
    lines = [{"text": "\ud800\x1b[2J"}, {"text": f"{Path.cwd()}/\udcff\udbff.py:3"}, call(site=1)]
    code, out, _ = run_diff(*two_written(tmp_path, lines, 1))
    assert code == 1
    assert "\\ud800\\x1b[2J" in out
    assert "\\udcff\\udbff.py:3" in out
    page = (tmp_path / "page.html").read_bytes()
    assert b"\\ud800\\x1b[2J" in page
    assert b"\xff\\udbff" in page
    assert "%FF%5Cudbff.py" in (tmp_path / "run.sarif").read_text()


@pytest.mark.parametrize("generators", [None, 1, [], "torch", {"torch": []}])
def test_other_generators_than_a_recording_has(generators, trace, copy):
    """The states of generators in ``trace.json`` are read as they are, and need not be there."""
    head = json.loads((copy / "trace.json").read_text())
    (copy / "trace.json").write_text(json.dumps({**head, "generators": generators}))
    os.truncate(copy / "calls.jsonl", (copy / "calls.jsonl").stat().st_size // 2)
    assert diff(trace, copy).only_first > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no trace at"),
        ("not JSON", "is not JSON"),
        ("[]", "is not a trace of detmode"),
        ('{"format": "detmode-trace", "version": 1}', "reads 2"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_unreadable_is_one_line_and_exit_code_2(content, said, tmp_path, run_diff):
    """A folder that is no trace ends ``detmode diff`` with one line and exit code 2."""
    if content is not None:
        (tmp_path / "trace.json").write_text(content)
    code, _, error = run_diff(tmp_path, tmp_path)
    assert code == 2
    assert said in error


def test_exit_codes(trace, tmp_path, run_diff):
    """Identical runs give 0, different ones 1, as a table and as JSON."""
    torch.manual_seed(1)
    with record(tmp_path / "other"):
        torch.rand(5)
    code, out, _ = run_diff(trace, trace)
    assert code == 0
    assert "the runs are identical" in out
    code, out, _ = run_diff(trace, tmp_path / "other", "json")
    assert code == 1
    found = json.loads(out)
    assert not found["identical"]
    assert found["divergence"]["overload"] == "aten::rand.default"
    assert found["divergence"]["kind"] == "seed"
