"""Programs that look at all objects, as memory profilers and leak detectors do."""

import gc

import pytest

from detmode import allow
from detmode.process import setting as process_setting
from detmode.process.torch_settings import call_native
from tests.shared.programs import Other, actions, cumsum, put


@pytest.fixture
def all_objects():
    """A list of all objects, which is one more reference to each of them."""
    put()  # what the first call makes is there before
    gc.unfreeze()  # objects that collection has made are in no list of a frozen heap
    yield gc.get_objects()
    gc.freeze()


@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_calls_are_intercepted(mode, all_objects, intercept):
    """With such a list at hand, calls meet the same rows as without it."""
    with mode(intercept=intercept) as made:
        with pytest.raises(RuntimeError, match="put_"):
            put()
        kept = gc.get_objects()
        with pytest.raises(RuntimeError, match="put_"):
            put()
        del kept
    assert actions(made) == [("aten::put_.default", "error", 2)]
    put()


@pytest.mark.parametrize("intercept", ["all", "listed"])
def test_an_allowed_call_waits_for_nobody(mode, monkeypatch, intercept):
    """Idle threads are none that need the flag on, whoever else refers to them."""
    monkeypatch.setattr(process_setting, "PATIENCE", 0.05)
    with Other(lambda other: (call_native(cumsum, (), {}), other.stay())):
        kept = gc.get_objects()
        with mode(intercept=intercept) as made, allow("aten::put"):
            put()
        del kept
    assert actions(made) == [("aten::put_.default", "allow", 1)]
