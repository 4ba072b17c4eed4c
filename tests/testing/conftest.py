"""Runs of pytest with the plugin, and an operator that varies."""

import itertools

import pytest
import torch
import torch._inductor.output_code  # loaded by recordings

import detmode.testing.suite
from tests.testing.suites import HEAD

_calls = itertools.count()


@torch.library.custom_op("detmode_plugin_tests::vary", mutates_args=())
def vary(x: torch.Tensor) -> torch.Tensor:
    """Adds to one element what no two calls add."""
    y = x.clone()
    y.view(-1)[0] += 1 + next(_calls)
    return y


# Runs in this process forget what they import, and PyTorch's modules cannot be imported twice.
with detmode.DeterministicMode(simulate="cuda"):
    torch.zeros(1).index_add(0, torch.zeros(1, dtype=torch.int64), torch.zeros(1))


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs pytest with the plugin on the tests of a file, under -W error, in this process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(text, *options, name="test_inner.py", has_cache=False):
        if text is not None:
            pytester.makepyfile(**{name.removesuffix(".py"): HEAD + text})
        without_cache = () if has_cache else ("-p", "no:cacheprovider")
        return pytester.runpytest_inprocess(
            "-p", "detmode.testing.pytest_plugin", *without_cache, "--strict-markers",
            "-W", "error", "-W", "ignore::DeprecationWarning:torch.*", *options,
        )  # fmt: skip

    return run


@pytest.fixture
def other_process(pytester, monkeypatch):
    """Runs pytest with the plugin on the tests of a file, in another process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(text, *options):
        pytester.makepyfile(test_inner="import os, pytest, torch\n" + text)
        return pytester.runpytest_subprocess("-p", "detmode.testing.pytest_plugin", *options)

    return run
