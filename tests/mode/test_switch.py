"""The drop-in functions: PyTorch's switches, with detmode's substitutes behind them."""

import inspect

import pytest
import torch

import detmode
from detmode import Refuse, default_rules
from detmode.mode import torch_api as switch
from detmode.mode.deterministic_mode import current_mode
from tests.shared.programs import in_another_thread, rule


@pytest.fixture(autouse=True)
def _off_afterwards():
    yield
    if switch._switched_on is not None:
        detmode.use_deterministic_algorithms(False)


def outcome(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    finally:
        torch.use_deterministic_algorithms(False)
    return None


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("use_deterministic_algorithms", (1,), {}),
        ("use_deterministic_algorithms", ("yes",), {}),
        ("use_deterministic_algorithms", (None,), {}),
        ("use_deterministic_algorithms", (True,), {"warn_only": 1}),
        ("use_deterministic_algorithms", (False,), {"warn_only": None}),
        ("use_deterministic_algorithms", (), {}),
        ("use_deterministic_algorithms", (True, True), {}),
        ("set_deterministic_debug_mode", ("foo",), {}),
        ("set_deterministic_debug_mode", (3,), {}),
        ("set_deterministic_debug_mode", (-1,), {}),
        ("set_deterministic_debug_mode", (1.5,), {}),
        ("set_deterministic_debug_mode", (None,), {}),
    ],
)
def test_bad_arguments_in_pytorchs_words(name, args, kwargs):
    """A bad argument raises the type and text that PyTorch's own function raises."""
    ours = outcome(getattr(detmode, name), *args, **kwargs)
    assert ours is not None
    assert ours == outcome(getattr(torch, name), *args, **kwargs)
    assert switch._switched_on is None


@pytest.mark.parametrize("warn_only", [False, True])
def test_switching_on_and_off(warn_only, monkeypatch):
    """``True`` enters a mode that acts, ``False`` leaves it and restores PyTorch's flag."""
    rules = default_rules() + [rule("aten::cos", Refuse(), alert="cos_alert")]
    monkeypatch.setattr(detmode.rules, "default_rules", lambda: rules)
    detmode.use_deterministic_algorithms(True, warn_only=warn_only)
    assert current_mode() is not None
    assert detmode.are_deterministic_algorithms_enabled() is True
    assert detmode.is_deterministic_algorithms_warn_only_enabled() is warn_only
    assert detmode.get_deterministic_debug_mode() == 2 - warn_only
    if warn_only:
        with pytest.warns(detmode.DeterminismWarning, match="cos_alert"):
            torch.ones(3).cos()
    else:
        with pytest.raises(RuntimeError, match=r"cos_alert[^\n]*\n  at .*test_switch.py"):
            torch.ones(3).cos()
    detmode.use_deterministic_algorithms(False)
    assert current_mode() is None
    assert detmode.are_deterministic_algorithms_enabled() is False


def test_switching_on_again_replaces_the_mode():
    """The last call holds: there is one mode, with the last ``warn_only``."""
    detmode.use_deterministic_algorithms(True)
    detmode.use_deterministic_algorithms(True, warn_only=True)
    assert detmode.get_deterministic_debug_mode() == 1
    detmode.use_deterministic_algorithms(False)
    assert current_mode() is None
    detmode.use_deterministic_algorithms(False)
    assert torch.are_deterministic_algorithms_enabled() is False


@pytest.mark.parametrize(
    ("value", "number"),
    [("default", 0), ("warn", 1), ("error", 2), (0, 0), (1, 1), (2, 2), (True, 1), (False, 0)],
)
def test_debug_modes(value, number):
    """Names and numbers mean what they mean to PyTorch."""
    detmode.set_deterministic_debug_mode(value)
    assert detmode.get_deterministic_debug_mode() == torch.get_deterministic_debug_mode() == number
    assert (current_mode() is not None) == (number > 0)


def test_an_open_block_is_not_pulled_away(mode):
    """Switching off inside an open block is refused: the block would lose its settings."""
    detmode.use_deterministic_algorithms(True)
    with mode():
        for value in (True, False):
            with pytest.raises(RuntimeError, match="leave that block first"):
                detmode.use_deterministic_algorithms(value)
    assert current_mode() is switch._switched_on


def test_another_thread_cannot_switch_it_off():
    """The mode belongs to the thread that switched it on."""
    detmode.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="another thread"):
        in_another_thread(detmode.use_deterministic_algorithms, False)
    assert torch.are_deterministic_algorithms_enabled()


def test_switching_off_what_pytorch_switched_on():
    """``False`` turns PyTorch's own flag off as well, whoever set it."""
    torch.use_deterministic_algorithms(True)
    detmode.use_deterministic_algorithms(False)
    assert torch.are_deterministic_algorithms_enabled() is False


@pytest.mark.parametrize("name", [n for n in detmode.__all__ if "deterministic_" in n])
def test_signatures_are_pytorchs(name):
    """The functions take PyTorch's parameters by the same names; one takes the mode's as well."""
    ours = inspect.signature(getattr(detmode, name)).parameters
    theirs = inspect.signature(getattr(torch, name)).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values() if p.kind is not p.VAR_KEYWORD] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_the_report_of_what_is_switched_on():
    """It is that of the innermost mode; of the one that was on last, after it is off, too."""
    detmode.use_deterministic_algorithms(True, simulate="cuda", overrides={"torch.histc": "allow"})
    torch.ones(3).histc(4)
    with detmode.DeterministicMode(simulate="cuda", overrides={"torch.histc": "allow"}):
        assert [row.count for row in detmode.report()] == []
        torch.ones(3).histc(4)
        torch.ones(3).histc(4)
        assert [row.count for row in detmode.report() if row.family == "histograms"] == [1, 1]
    detmode.use_deterministic_algorithms(False)
    assert [(row.action, row.count) for row in detmode.report() if row.family == "histograms"] == [
        ("allow", 1)
    ]


def test_refused_options_lose_nothing():
    """The mode that is on stays on, with its settings."""
    detmode.use_deterministic_algorithms(True)
    with pytest.raises(ValueError, match="simulate must be 'cuda' or None"):
        detmode.use_deterministic_algorithms(True, simulate="rocm")
    with pytest.raises(TypeError, match="strict would change nothing; give options with True"):
        detmode.use_deterministic_algorithms(False, strict=True)
    assert torch.are_deterministic_algorithms_enabled()
    detmode.use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_report_of_nothing_is_refused(monkeypatch):
    """A process that has entered no mode is told how to."""
    monkeypatch.setattr(switch, "_last", None)
    with pytest.raises(RuntimeError, match=r"no mode is on; call detmode\.use_deterministic_algo"):
        detmode.report()
