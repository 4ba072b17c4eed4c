"""A pytest plugin: ``--shared KIB`` gives blocks as much shared memory as another GPU has.

Turing has 64 KiB for a block, Ada 99, Hopper 227. No bit depends on it.
"""

import pytest

from detmode.cuda import device, host


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--shared", type=int, metavar="KIB", help="shared memory of a block")


def pytest_configure(config: pytest.Config) -> None:
    """Answer what launches ask, on a GPU and on the host runner."""
    kib = config.getoption("--shared")
    if kib is not None:
        host.MOST_SHARED = kib * 1024
        device.most_shared = lambda index: kib * 1024  # type: ignore[assignment]
