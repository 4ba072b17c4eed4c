"""The texts: PyTorch's to the letter, then the place and the remedy on lines of their own."""

import pickle
import runpy
import warnings

import pytest
import torch
import torch.nn.functional as F

from detmode import DeterminismWarning, DeterministicMode, Refuse, allow
from detmode.mode import messages
from detmode.mode.audit import Audit
from detmode.table.rule import CUBLAS
from tests.shared.programs import enlarged, image, index_add, put, table_of


@pytest.fixture(params=["all", "listed"])
def mode(mode, request):
    """Modes that intercept all calls, or listed ones alone."""
    return lambda *args, **options: mode(*args, **{"intercept": request.param, **options})


def max_unpool():
    return F.max_unpool2d(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2)


def native_text(call, *, warn_only):
    """PyTorch's own message, without the place in its C++ sources that it appends."""
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        return str(caught[0].message).partition(" (Triggered internally")[0]
    except RuntimeError as error:
        return str(error)
    finally:
        torch.use_deterministic_algorithms(False)


def said(made, warn_only, call):
    """The error of the mode, or its one warning under ``warn_only``."""
    kind = pytest.warns(DeterminismWarning) if warn_only else pytest.raises(RuntimeError)
    with kind as caught, made:
        call()
    if warn_only:
        assert len(caught) == 1
        return str(caught[0].message)
    assert type(caught.value) is RuntimeError
    return str(caught.value)


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("call", [put, max_unpool])
def test_a_message_begins_with_pytorchs_text(mode, call, warn_only):
    """The first line is PyTorch's error or warning to the letter; then place, code and remedy."""
    first, at, code, remedy = said(mode(warn_only), warn_only, call).split("\n")
    assert first == native_text(call, warn_only=warn_only)
    assert at.startswith("  at ")
    assert code.startswith("    return ")
    assert "detmode.allow(" in remedy
    assert warn_only or "warn_only=True" in remedy


@pytest.mark.parametrize("warn_only", [False, True])
def test_cublas_text(warn_only):
    """The cuBLAS alert has PyTorch's own text, which is the same for errors and warnings."""
    made = DeterministicMode(warn_only, rules=table_of("aten::mm", Refuse(), alert=CUBLAS))
    text = said(made, warn_only, lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert text.startswith("Deterministic behavior was enabled with either `torch.use_determinis")
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8 or CUBLAS_WORKSPACE_CONFIG=:16:8. For more" in text
    assert text.split("\n")[0].endswith("/cublas/index.html#results-reproducibility")


def test_the_place_is_the_users_line(mode, line):
    """The line after PyTorch's text is the user's, for a backward operator that of the forward."""
    index = torch.zeros(1, 1, 2, 2, dtype=torch.int64)

    def user(x):
        F.max_unpool2d(x.detach(), index, 2)  # here
        y = F.interpolate(x, scale_factor=2, mode="bicubic")  # here
        y.sum().backward()

    with mode(True) as made, pytest.warns(DeterminismWarning) as caught:
        user(image())
    assert [str(each.message).split("\n")[1] for each in caught] == [
        f"  at {at}" for at in line(user)
    ]
    assert [record.site for record in made.records] == line(user)


def test_two_forwards_have_two_places(mode, line):
    """Two calls of one operator on two lines are two rows in backward, each with its own line."""

    def user(x):
        y = F.interpolate(x, scale_factor=2, mode="bicubic")  # here
        z = F.interpolate(y, scale_factor=2, mode="bicubic")  # here
        return z.sum()

    def train():
        for _ in range(3):
            user(torch.ones(1, 1, 2, 2, requires_grad=True)).backward()

    with mode(warn_only=True) as made, pytest.warns(DeterminismWarning) as caught:
        train()
    assert len(caught) == 2
    assert sorted(record.site for record in made.records) == sorted(line(user))
    assert [record.count for record in made.records] == [3, 3]


def test_the_module_path_stands_beside_the_place(mode):
    """The message and the record name the modules that are being called."""

    class Block(torch.nn.Module):
        def forward(self, x):
            return x.put(torch.tensor([0]), torch.ones(1))

    made = mode()
    net = torch.nn.Sequential(torch.nn.Identity(), Block(), Block())
    for number in (1, 2):
        place = rf"\n  at .*:\d+ \(Sequential\.{number}\)\n"
        with made, pytest.raises(RuntimeError, match=place):
            net(torch.zeros(3))
        net[number] = torch.nn.Identity()
    assert made.records[0].module == "Sequential.*"


def test_one_warning_for_each_site(mode, line):
    """10 calls on one line warn once, another line for itself, and PyTorch's C++ not at all."""

    def user():
        for _ in range(10):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))  # here
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))  # here

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mode(warn_only=True) as made:
            user()
            user()
    assert [f"{w.filename}:{w.lineno}" for w in caught] == line(user)
    assert {w.category for w in caught} == {DeterminismWarning}
    assert not any("Triggered internally" in str(w.message) for w in caught)
    assert [record.count for record in made.records] == [20, 2]


def test_a_mode_for_each_step_warns_once(mode):
    """Python's default filter shows a site's warning once, also when each step makes a mode."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(5):
            with mode(warn_only=True):
                put()
    assert len(caught) == 1


def test_filters_by_module_meet_the_users_module(mode):
    """The warning belongs to the user's Python module, where a filter by module looks for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The user's filter, which is the subject here.
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        with mode(warn_only=True) as made:
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert made.records[0].action == "warn"


def test_a_warning_as_error_comes_before_the_operator(mode):
    """With ``-W error`` the warning is raised at the call, before the operator runs."""
    target = torch.zeros(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeterminismWarning, match="put_"), mode(warn_only=True):
            target.put_(torch.tensor([0]), torch.ones(1))
    assert target.tolist() == [0, 0, 0]


@pytest.mark.parametrize("warn_only", [False, True])
def test_what_pytorch_is_silent_about(mode, warn_only):
    """A row without an alert warns in our own words, and the call runs."""
    with pytest.warns(DeterminismWarning) as caught, mode(warn_only):
        result = torch.tensor([2.0, 3.0]).cumprod(0)
    assert result.tolist() == [2, 6]
    text = str(caught[0].message)
    assert text.startswith("aten::cumprod.default may vary between runs, and PyTorch gives no")
    assert "the scan depends on the timing of its blocks\n  at " in text


@pytest.mark.parametrize("mode", ["all"], indirect=True)  # listed: where the player is there
def test_strict_raises_what_pytorch_is_silent_about(mode, table):
    """With ``strict=True`` such a row raises in the same words; what does not vary runs."""
    target = torch.tensor([2.0, 3.0])
    with warnings.catch_warnings(), mode(strict=True) as made:
        warnings.simplefilter("error")
        target.cumsum(0)
        with pytest.raises(RuntimeError) as caught:
            target.cumprod_(0)
        with allow("aten::cumprod"):
            target.cumprod(0)
        torch.use_deterministic_algorithms(False)
        with pytest.raises(RuntimeError, match="was turned off inside the block"):
            target.cumsum(0)
    first, _, code, remedy = str(caught.value).splitlines()
    assert code == "    target.cumprod_(0)"
    assert first.startswith("aten::cumprod_.default may vary between runs, and PyTorch gives")
    assert remedy.endswith("to get warnings instead of errors: strict=False")
    assert target.tolist() == [2, 3]
    assert [record.action for record in made.records] == ["native", "error", "allow", "error"]
    with Audit(strict=True, rules=table) as audit:
        target.cumsum(0)
        target.cumprod(0)
    assert [record.action for record in audit.records] == ["native", "error"]


@pytest.mark.parametrize(
    ("options", "reason", "remedy"),
    [
        ({"substitute": False}, None, "runs it without substitute=False"),
        ({}, "Install g++.", r"cannot run it here: Install g\+\+\."),
    ],
)
def test_without_its_kernel_the_row_refuses(mode, monkeypatch, options, reason, remedy):
    """PyTorch refuses if a kernel is switched off or cannot run, and the message says why."""
    made = mode(**options)
    monkeypatch.setattr("detmode.cuda.unavailable", lambda device: reason)
    with made, pytest.raises(RuntimeError, match=remedy):
        enlarged(image()).sum().backward()
    assert [record.action for record in made.records] == ["error"]


def test_without_a_device_a_native_path_is_taken(mode, monkeypatch, caplog):
    """PyTorch's own path runs instead if there is one, and the logger says why, once."""
    made = mode()
    monkeypatch.setattr("detmode.cuda.unavailable", lambda device: "Install g++.")
    with made:
        for _ in range(2):
            index_add()
    assert [(record.action, record.count) for record in made.records] == [("native", 2)]
    assert caplog.messages == ["no substitutes here: Install g++."]


SCRIPT = """
import torch, detmode
for _ in range(3):
    with detmode.DeterministicMode(warn_only=True, substitute=False):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))  # the line
"""


def test_a_script_shows_the_line_once(tmp_path):
    """One warning, with file, line and text, is what a user reads by Python's filter."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        runpy.run_path(str(script))
    (shown,) = (each for each in caught if each.category is DeterminismWarning)
    text = warnings.formatwarning(shown.message, shown.category, shown.filename, shown.lineno)
    assert text.startswith(f"{script}:5: DeterminismWarning: put_ does not have a deterministic")
    assert "# the line" in text


def test_alert_names_of_variants():
    """A row with two alert names uses the second for the ``out=`` variant."""
    table = table_of("aten::histc", Refuse(), alert=("one", "two"))
    x = torch.ones(3)
    for call, caller in (
        (lambda: torch.histc(x), "one"),
        (lambda: torch.histc(x, out=torch.empty(100)), "two"),
    ):
        with (
            DeterministicMode(rules=table),
            pytest.raises(RuntimeError, match=f"^{caller} does not have"),
        ):
            call()


def test_every_message_is_pure_text():
    """The templates hold nothing but the caller's name to fill in."""
    for warn in (False, True):
        assert messages.alert_text("a{b}c", warn=warn).startswith("a{b}c does not have")


def test_a_refusal_knows_its_line():
    """It does in another process as well, such as a worker's; other errors know none."""
    with (
        pytest.raises(RuntimeError) as caught,
        DeterministicMode(substitute=False, simulate="cuda"),
    ):
        max_unpool()
    site = messages.site_of(caught.value)
    assert f"\n  at {site}\n    return F.max_unpool2d(" in str(caught.value)
    assert messages.site_of(pickle.loads(pickle.dumps(caught.value))) == site
    assert messages.site_of(RuntimeError(str(caught.value))) is None
    assert messages.site_of(KeyError()) is None
