"""The logger ``detmode``: a line for each intercepted call, and the warnings."""

import json
import logging

import pytest
import torch

from detmode import DeterminismWarning
from detmode.process import log
from detmode.process.log import FIELDS
from tests.shared.programs import cumsum, histc, image, index_add, put

BECAUSE = "atomic additions"


@pytest.fixture(autouse=True)
def _level():
    logger = logging.getLogger("detmode")
    level = logger.level
    yield
    logger.setLevel(level)


def test_a_line_for_each_call(mode, caplog, line):
    """At DEBUG a call is one line: its number, what, how, which tensors, where and why."""

    def user():
        torch.ones(2, 3).cumsum(0)  # here

    with caplog.at_level(logging.DEBUG, "detmode"), mode():
        user()
        user()
    expected = (
        f"aten::cumsum.default native [small] float32[2, 3]@cpu at {line(user)[0]}: "
        "the scan has a deterministic path"
    )
    assert caplog.messages == [f"1 {expected}", f"2 {expected}"]
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_each_action_is_logged(mode, caplog):
    """Substitutes, native calls, allowed, warned and refused ones all have their line."""
    with caplog.at_level(logging.DEBUG, "detmode"):
        with mode(overrides={"aten::histc": "allow", "aten::cumprod": "error"}):
            cumsum()
            index_add()
            histc()
            with pytest.raises(RuntimeError):
                torch.ones(3).cumprod(0)
        with mode(True), pytest.warns(DeterminismWarning):
            put()
    actions = [m.split()[2] for m in caplog.messages if m.split()[1].startswith("aten::")]
    assert actions == ["native", "substitute", "allow", "error", "warn"]
    assert "int64[1]@cpu, float32[1]@cpu at" in caplog.messages[1]


def test_the_fields_of_a_call(mode, caplog, line):
    """A record has what a handler may want to filter by, a backward one the forward's line."""

    def user():
        return net(x).sum()  # here

    net = torch.nn.Sequential(torch.nn.Upsample(scale_factor=2, mode="bilinear"))
    x = image()
    with caplog.at_level(logging.DEBUG, "detmode"), mode():
        user().backward()
    (record,) = caplog.records
    call = "1 aten::upsample_bilinear2d_backward.default substitute [small] float32[1, 1, 4, 4]@cpu"
    assert caplog.messages == [f"{call} at {line(user)[0]}: {BECAUSE}"]
    assert {name: getattr(record, name) for name in FIELDS} == {
        "call": 1,
        "overload": "aten::upsample_bilinear2d_backward.default",
        "action": "substitute",
        "family": "small",
        "guarantee": "gpu_to_gpu",
        "site": line(user)[0],
        "nn_module": "Sequential.0",
        "shapes": ["float32[1, 1, 4, 4]@cpu"],
        "reason": BECAUSE,
    }


def test_a_row_has_ten_lines(mode, caplog):
    """A loop does not flood the log: after ten lines one says that no more come."""
    with caplog.at_level(logging.DEBUG, "detmode"), mode():
        for _ in range(30):
            torch.ones(3).cumsum(0)
        torch.ones(3).cumsum(0)
    numbers = [message.split()[0] for message in caplog.messages]
    assert numbers == [*map(str, range(1, 11)), "aten::cumsum.default", "31"]
    assert caplog.messages[10].endswith(": further calls are not logged")


def test_warnings_are_logged_once(mode, caplog):
    """A warning is one WARNING for each site, with the warning's own text."""
    with mode(True), pytest.warns(DeterminismWarning) as caught:
        for _ in range(3):
            put()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages == [str(caught[0].message)]


def test_nothing_is_formatted_below_debug(mode, monkeypatch):
    """Unless DEBUG is asked for, no line is made up."""
    made = mode()
    monkeypatch.setattr("detmode.mode.row_counter._describe", lambda tensor: 1 / 0)
    with made:
        cumsum()
    assert len(made.records) == 1


@pytest.mark.parametrize("level", ["debug", "DEBUG", logging.DEBUG])
def test_log_takes_a_level(mode, caplog, level):
    """``log=`` as a level sets it on the logger ``detmode``."""
    with mode(log=level):
        cumsum()
    assert logging.getLogger("detmode").level == logging.DEBUG
    assert len(caplog.messages) == 1


def test_log_takes_a_logger(mode, caplog):
    """``log=`` as a logger sends the lines there, and leaves the logger ``detmode`` alone."""
    mine = logging.getLogger("mine.detmode")
    with caplog.at_level(logging.DEBUG, "mine.detmode"), mode(log=mine):
        cumsum()
    assert [record.name for record in caplog.records] == ["mine.detmode"]
    assert logging.getLogger("detmode").level != logging.DEBUG


@pytest.mark.parametrize(
    ("asked", "levels"),
    [
        ("debug", ["DEBUG", "WARNING"]),
        ("WARNING", ["WARNING"]),
        ("error", []),
        ("", []),
        ("?", []),
        ("debug json", ["DEBUG", "WARNING"]),
        ("warning ?", ["WARNING"]),
    ],
)
def test_the_environment_sets_the_level(mode, monkeypatch, capsys, asked, levels):
    """``DETMODE_LOG=debug`` prints the lines on stderr, without a change to the program.

    Without it, and with what is no level, nothing is printed: a warning is shown by Python's
    warnings already. ``DETMODE_LOG_FORMAT=json`` makes them JSON, and what is no format text.
    """
    wanted, _, form = asked.partition(" ")
    monkeypatch.setenv("DETMODE_LOG", wanted)
    monkeypatch.setenv("DETMODE_LOG_FORMAT", form)
    logger = logging.getLogger("detmode")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel(logging.NOTSET)
    log.configure()
    with mode(True), pytest.warns(DeterminismWarning):
        put()
    lines = capsys.readouterr().err.splitlines()
    called = "1 aten::put_.default warn [small] float32[3]@cpu, int64[1]@cpu, float32[1]@cpu"
    if form == "json":
        call, warning = map(json.loads, lines)
        assert [each["level"] for each in (call, warning)] == levels
        assert (call["call"], call["module"]) == (1, None)
        assert call["message"].startswith(called)
        assert set(call) == {"time", "level", "message", "module", *FIELDS} - {"nn_module"}
        assert set(warning) == {"time", "level", "message"}
    else:
        told = [text for text in lines if text.startswith("detmode ")]
        assert lines[:1] == told[:1]
        assert [text.split()[1] for text in told] == [f"{level}:" for level in levels]
        assert levels[:1] != ["DEBUG"] or told[0].startswith(f"detmode DEBUG: {called}")
