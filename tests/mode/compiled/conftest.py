"""Each test compiles its functions itself, with the same numbers."""

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_caches():
    """Code from a cache was not made by the code that is tested."""
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
