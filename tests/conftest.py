"""Hypothesis profiles, the ``cuda`` marker, and how many schedules a test tries."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

from detmode import cuda

settings.register_profile(
    "ci",
    max_examples=30,
    deadline=None,
    derandomize=True,  # the same cases in every run: a red run can be repeated
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "full", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# --hypothesis-profile, which pytest reads later, wins.
settings.load_profile(os.environ.get("DETMODE_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("timeout"):
        # A machine with a GPU may lack pytest-timeout; unknown settings are errors.
        parser.addini("timeout", "read by pytest-timeout")
        parser.addini("timeout_method", "read by pytest-timeout")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if torch.cuda.is_available() else "PyTorch sees no GPU here"
    reason = reason or cuda.unavailable("cuda")
    if reason is not None:
        skip = pytest.mark.skip(reason=f"needs a GPU: {reason}")
        for item in items:
            if item.get_closest_marker("cuda") is not None:
                item.add_marker(skip)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or not torch.cuda.is_initialized():
        return
    try:
        # What a CUDA kernel did wrong is the fault of the test that launched it.
        torch.cuda.synchronize()
    except RuntimeError as error:
        # Nothing runs any more in a process whose context is broken; xdist begins another one.
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(3)
        pytest.exit(f"{item.nodeid} broke the CUDA context ({error}); run the rest with -n 1", 3)


@pytest.fixture(scope="session")
def is_full() -> bool:
    """Whether the tests take the time they need for all that they look at."""
    return settings.get_current_profile_name() == "full"


@pytest.fixture(scope="session")
def schedules(is_full: bool) -> int:
    """How many schedules of the host runner a claim about bits is checked with."""
    return 100 if is_full else 20
