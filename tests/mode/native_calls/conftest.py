"""The player in C++, and calls that are made in both ways."""

import pytest

from detmode import cuda
from detmode.cuda import native
from detmode.mode import native_calls
from tests.mode.native_calls.ways import INTERCEPTS, Ways


@pytest.fixture(scope="session")
def player():
    if reason := native.problem() or cuda.unavailable("cpu"):
        pytest.skip(f"the player: {reason}")
    native.build()
    return native.player()


@pytest.fixture(params=INTERCEPTS)
def ways(player, monkeypatch, request):
    """Makes calls in Python's way and with the player, of modes that intercept all or listed."""
    return Ways(player, monkeypatch, request.param)


@pytest.fixture
def in_python(monkeypatch):
    """Returns how many calls a function makes that reach Python."""
    calls = []
    count_calls = native_calls.count_calls
    monkeypatch.setattr(native_calls, "count_calls", lambda: (calls.append(None), count_calls())[1])

    def number(function, *arguments):
        calls.clear()
        function(*arguments)
        return len(calls)

    return number
