"""The logger ``detmode``: a line for each intercepted call, and the warnings."""

import json
import logging
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterminismWarning
from detmode.environment.log import FIELDS

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
            torch.ones(3).cumsum(0)
            torch.ones(3).index_add(0, torch.tensor([0]), torch.ones(1))
            torch.histc(torch.ones(3))
            with pytest.raises(RuntimeError):
                torch.ones(3).cumprod(0)
        with mode(True), pytest.warns(DeterminismWarning):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    actions = [m.split()[2] for m in caplog.messages if m.split()[1].startswith("aten::")]
    assert actions == ["native", "substitute", "allow", "error", "warn"]
    assert "int64[1]@cpu, float32[1]@cpu at" in caplog.messages[1]


def test_unlisted_calls_are_not_logged(mode, caplog):
    """An operator in no rule has no line."""
    with caplog.at_level(logging.DEBUG, "detmode"), mode():
        torch.ones(3).neg()
    assert caplog.messages == []


def test_the_backwards_line_names_the_forward(mode, caplog, line):
    """A backward operator's line has the place of the forward call."""

    def user(x):
        return F.interpolate(x, scale_factor=2, mode="bilinear").sum()  # here

    with caplog.at_level(logging.DEBUG, "detmode"), mode():
        user(torch.ones(1, 1, 2, 2, requires_grad=True)).backward()
    assert caplog.messages == [
        "1 aten::upsample_bilinear2d_backward.default substitute [small] float32[1, 1, 4, 4]@cpu "
        f"at {line(user)[0]}: {BECAUSE}"
    ]


def test_the_fields_of_a_call(mode, caplog, line):
    """A record has what a handler may want to filter by, as attributes."""

    def user():
        return net(x).sum()  # here

    net = torch.nn.Sequential(torch.nn.Upsample(scale_factor=2, mode="bilinear"))
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    with caplog.at_level(logging.DEBUG, "detmode"), mode():
        user().backward()
    (record,) = caplog.records
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

    def user():
        for _ in range(3):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))

    with mode(True), pytest.warns(DeterminismWarning) as caught:
        user()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages == [str(caught[0].message)]


def test_nothing_is_formatted_below_debug(mode, monkeypatch):
    """Unless DEBUG is asked for, no line is made up."""
    made = mode()
    monkeypatch.setattr("detmode.mode.row_counter._describe", lambda tensor: 1 / 0)
    with made:
        torch.ones(3).cumsum(0)
    assert len(made.records) == 1


@pytest.mark.parametrize("level", ["debug", "DEBUG", logging.DEBUG])
def test_log_takes_a_level(mode, caplog, level):
    """``log=`` as a level sets it on the logger ``detmode``."""
    with mode(log=level):
        torch.ones(3).cumsum(0)
    assert logging.getLogger("detmode").level == logging.DEBUG
    assert len(caplog.messages) == 1


def test_log_takes_a_logger(mode, caplog):
    """``log=`` as a logger sends the lines there, and leaves the logger ``detmode`` alone."""
    mine = logging.getLogger("mine.detmode")
    with caplog.at_level(logging.DEBUG, "mine.detmode"), mode(log=mine):
        torch.ones(3).cumsum(0)
    assert [record.name for record in caplog.records] == ["mine.detmode"]
    assert logging.getLogger("detmode").level != logging.DEBUG


SCRIPT = """
import importlib, io, logging, os, sys, warnings
warnings.simplefilter("ignore")
import torch, detmode
table = detmode.RuleTable(
    [detmode.Rule(op="aten::put", action=detmode.Refuse(), alert="put_", because="races")]
)
logger = logging.getLogger("detmode")
for level in ("debug", "WARNING", "error", "", "?", "debug json", "warning ?"):
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    os.environ["DETMODE_LOG"], _, os.environ["DETMODE_LOG_FORMAT"] = level.partition(" ")
    sys.stderr = io.StringIO()
    importlib.reload(detmode)
    with detmode.DeterministicMode(True, rules=table):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    print(f"[{level}]", sys.stderr.getvalue())
"""


def test_the_environment_sets_the_level():
    """``DETMODE_LOG=debug`` prints the lines on stderr, without a change to the program.

    Without it, and with what is no level, nothing is printed: a warning is shown by Python's
    warnings already. ``DETMODE_LOG_FORMAT=json`` makes them JSON, and what is no format text.
    """
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    printed = {}
    for text in run.stdout.splitlines():
        if text.startswith("["):
            level, _, text = text[1:].partition("] ")
            printed[level] = []
        if text.startswith("detmode "):
            printed[level].append(text.split()[1])
        if text.startswith("{"):
            printed[level].append(json.loads(text))
    called, warned = printed.pop("debug json")
    assert (called["level"], called["call"], called["module"]) == ("DEBUG", 1, None)
    assert called["message"].startswith("1 aten::put_.default warn [user] float32[3]@cpu")
    assert set(called) == {"time", "level", "message", "module", *FIELDS} - {"nn_module"}
    assert (set(warned), warned["level"]) == ({"time", "level", "message"}, "WARNING")
    assert printed == {
        "debug": ["DEBUG:", "WARNING:"],
        "WARNING": ["WARNING:"],
        "error": [],
        "": [],
        "?": [],
        "warning ?": ["WARNING:"],
    }
    assert (
        "detmode DEBUG: 1 aten::put_.default warn [user] float32[3]@cpu, int64[1]@cpu" in run.stdout
    )
    assert "[?] \n" in run.stdout
