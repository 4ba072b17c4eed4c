"""Reports, certificates, locks and baselines that anybody may have written: read, or refused."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import detmode
from detmode import DeterministicMode, Report
from detmode.environment.lock import lock_file
from detmode.environment.lock.drift import differences
from detmode.environment.lock.here import lock_of
from detmode.mode.audit.audit_report import AuditReport
from detmode.process.files import FileError
from detmode.testing import baseline
from detmode.verify.certificates import Certificate

Run = Callable[..., subprocess.CompletedProcess[str]]

HOSTILE = "x\x1b[2J\r\n::error::forged\u2028\x9b31m\u202e\ud800"
"""Clears a terminal, begins a line that GitHub takes for a command, and cannot be encoded."""

texts = st.one_of(st.text(max_size=8), st.just(HOSTILE))
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(1 << 70),
        st.floats(),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A value of JSON in which one part is another, is missing, or is new."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(value)))
        change = draw(st.sampled_from(["within", "within", "within", "less", "more"]))
        if change == "less":
            return {name: each for name, each in value.items() if name != key}
        if change == "more":
            return {**value, draw(texts): draw(values)}
        return {**value, key: draw(mutated(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(mutated(value[place])), *value[place + 1 :]]
    return draw(values)


def check_printable(text: str) -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text)
    text.encode("utf-8", "surrogateescape")


def check_shown(report: Report) -> None:
    """Every form can be made; nothing steers a terminal, or forges a command of GitHub's."""
    for text in (report.text(), report.text(long=True, width=60), report.opening(), str(report)):
        check_printable(text)
        assert "\n::" not in text
    annotations = report.to_github()
    check_printable(annotations)
    assert annotations.count("\n") <= len(report) + 1
    report.to_html().encode("utf-8", "surrogateescape")
    json.loads(report.to_sarif())
    again = Report.from_json(Report(report.records, head=report.head).to_json())
    assert again.records == report.records


def check_refusal(file: Path, error: Exception) -> None:
    """An error is one line, and names the file."""
    assert str(file) in str(error)
    assert "\n" not in str(error)
    check_printable(str(error))


def program() -> None:
    x = torch.ones(4, requires_grad=True)
    torch.nn.Linear(4, 2)(x).sum().backward()
    torch.zeros(3).index_add_(0, torch.tensor([0, 1, 1]), torch.ones(3))


def a_report() -> Report:
    with DeterministicMode(warn_only=True, recheck=1.0) as mode:
        program()
    return Report([*mode.report().by(1)], head={**mode.report().head, "world_size": 2})


with_simulation = a_report()
audited = detmode.audit(program)
certificate = Certificate(
    kernel="k",
    language="CUDA C++",
    sha256="0" * 64,
    arguments=("x: float32[3]",),
    grid=(1,),
    schedules=2,
    races_checked=True,
    verdict="order-independent",  # type: ignore[arg-type]  # its text, as in JSON
)
thorough = settings(
    max_examples=max(settings().max_examples, 100),  # a value is read in a millisecond
    suppress_health_check=list(HealthCheck),
)


def check_certificate(certificate: Certificate) -> None:
    check_printable(str(certificate))
    assert Certificate.from_json(certificate.to_json()) == certificate


@pytest.mark.parametrize(
    ("written", "check"),
    [(with_simulation, check_shown), (audited, check_shown), (certificate, check_certificate)],
    ids=["report", "audit", "certificate"],
)
@thorough
@given(data=st.data())
def test_json(written: Any, check: Callable[[Any], None], data: st.DataObject) -> None:
    """A report, of an audit too, or a certificate is shown, or refused with a ValueError."""
    value = data.draw(st.one_of(mutated(json.loads(written.to_json())), values))
    try:
        read = type(written).from_json(json.dumps(value))
    except ValueError:
        return
    check(read)


def without_none(value: Any) -> Any:
    """Leave out, and replace, what no TOML has."""
    if isinstance(value, dict):
        return {
            name.encode(errors="replace").decode(): without_none(each)
            for name, each in value.items()
            if each is not None
        }
    if isinstance(value, list):
        return [without_none(each) for each in value if each is not None]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


@thorough
@given(mutated({"format": 1, **lock_of()}))
def test_locks(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    """A lock is compared, or refused; what is missing in it is a difference."""
    file = tmp_path_factory.getbasetemp() / "a.lock"
    file.write_text(tomli_w.dumps(without_none(value if isinstance(value, dict) else {"a": value})))
    try:
        lock = lock_file.read(file)
    except FileError as error:
        check_refusal(file, error)
        return
    here = lock_of()
    found = differences(lock, here)
    for each in found:
        check_printable(str(each))
        assert "\n" not in str(each)
    for section in here.keys() - lock.keys():
        assert any(each.name == f"section [{section}]" for each in found)


@thorough
@given(
    st.one_of(
        mutated(
            {
                "format": "detmode-baseline",
                "version": 1,
                "offenders": [{"overload": "o", "file": "f", "code": "c"}],
            }
        ),
        values,
    )
)
def test_baselines(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    """The offenders of a baseline are texts, or it is refused."""
    file = tmp_path_factory.getbasetemp() / "a.baseline"
    file.write_text(json.dumps(value))
    try:
        keys = baseline.read(file)
    except FileError as error:
        check_refusal(file, error)
        return
    assert all(isinstance(text, str) for key in keys for text in key)


DEEP = "[" * 100_000
READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "lock": (lock_file.read, FileError),
    "baseline": (baseline.read, FileError),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "folder", "missing", "deep", "bytes"])
def test_what_is_no_file_of_that_kind(kind: str, reader: str, tmp_path: Path) -> None:
    """It is neither waited for nor taken into memory: one line of the documented type."""
    file = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    elif kind == "sparse":
        file.touch()
        os.truncate(file, 1 << 40)
    elif kind == "deep":
        file.write_text(f"format = {DEEP}" if reader == "lock" else DEEP)
    elif kind == "bytes":
        file.write_bytes(b"\xff\xfe\x00")
    read, error = READERS[reader]
    with pytest.raises(error) as refused:
        read(file)
    check_refusal(file, refused.value)


@pytest.mark.parametrize("read", [Report.from_json, AuditReport.from_json, Certificate.from_json])
def test_deeply_nested_json(read: Callable[[str], object]) -> None:
    """It is a ValueError, as any other text that is no report."""
    with pytest.raises(ValueError, match="nested too deeply"):
        read(DEEP)


def hostile_run(folder: Path) -> Path:
    """A recording in which each text of each file is hostile."""
    with detmode.record(folder):
        torch.rand(3)
    head = json.loads((folder / "trace.json").read_text())
    head |= {"arguments": [HOSTILE], "nccl_environment": {HOSTILE: HOSTILE}, "gpus": HOSTILE}
    (folder / "trace.json").write_text(json.dumps(head))
    lines = (folder / "calls.jsonl").read_text().splitlines()
    lines = [json.dumps({"text": HOSTILE}) if '"text"' in line else line for line in lines]
    (folder / "calls.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def hostile_lock(folder: Path) -> Path:
    lock = lock_of()
    hostile = HOSTILE.encode(errors="replace").decode()
    sections = {
        name: {key: hostile if isinstance(value, str) else value for key, value in section.items()}
        | {hostile: hostile}
        for name, section in lock.items()
    }
    lock_file.write(sections, folder / "hostile.lock")
    return folder / "hostile.lock"


@pytest.mark.parametrize("form", ["table", "github"])
def test_commands_that_print_what_a_file_says(form: str, run_command: Run, tmp_path: Path) -> None:
    """Neither a run's nor a lock's texts steer the terminal, or forge a command of GitHub's."""
    first, second = hostile_run(tmp_path / "first"), tmp_path / "second"
    with detmode.record(second):
        torch.rand(4)
    head = json.loads((second / "trace.json").read_text())
    (second / "trace.json").write_text(json.dumps({**head, "nccl_environment": {HOSTILE: ""}}))
    lock = hostile_lock(tmp_path)
    (tmp_path / "x.py").write_text("")
    commands = [
        ("diff", "--format", form, str(first), str(second)),
        ("doctor", "--format", form, "--against", str(lock)),
        ("run", "--locked", "--lock", str(lock), "x.py"),
        ("run", "--locked=warn", "--lock", str(lock), "x.py"),
    ]
    for command in commands:
        found = run_command(*command)
        assert found.returncode in (0, 1)
        for text in (found.stdout, found.stderr):
            check_printable(text)
            assert "\n::error::forged" not in text
        assert "\\x1b[2J" in found.stdout + found.stderr


@pytest.mark.parametrize("content", ["format = 1\n", "format = 1\n[versions]\n[machine]\n"])
def test_a_lock_that_locks_nothing(content: str, run_command: Run, tmp_path: Path) -> None:
    """It is refused, names the sections that it lacks, and says to write it again."""
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "detmode.lock").write_text(content)
    found = run_command("run", "--locked", "train.py")
    assert (found.returncode, found.stdout) == (1, "")
    for section in ("versions", "machine", "settings", "variables"):
        assert f"section [{section}]: locked nothing, here " in found.stderr
    assert "write the lock again" in found.stderr
    found = run_command("doctor", "--against", "detmode.lock", "--format", "json")
    assert found.returncode == 1
    sections = {each["subject"] for each in json.loads(found.stdout)}
    assert {"section [versions]", "section [machine]", "section [settings]"} <= sections
    assert run_command("lock").returncode == 0
    assert run_command("run", "--locked", "--quiet", "train.py").returncode == 0


def test_a_recording_whose_lock_lacks_its_versions(run_command: Run, tmp_path: Path) -> None:
    """The runs are compared all the same."""
    for name in ("first", "second"):
        with detmode.record(tmp_path / name):
            torch.zeros(3).add(1)
    (tmp_path / "first" / "detmode.lock").write_text("format = 1\n")
    found = run_command("diff", "first", "second")
    assert found.returncode == 0, found.stderr
