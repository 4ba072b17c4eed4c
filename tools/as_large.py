"""A pytest plugin: with ``--as-large`` small inputs take the ways of large ones.

The samples of the families are small, for the host runner. Here the sizes from which a launcher
takes other kernels are small, too, so that samples reach those. ``tools/sanitize.py`` has the same
option.
"""

import pytest

from detmode.cuda.rows import chosen_windows, few_destinations, interpolation, shares, ways
from detmode.rules.grid_sampler import ways as grid_ways

SIZES = (
    (chosen_windows, {"MANY": 1}),
    (few_destinations, {"LEAST_SHARE": 16, "SHARES": 1, "FEWEST_BLOCKS": 1}),
    (grid_ways, {"FEWEST": 1, "MANY": 1}),
    (interpolation, {"MANY": 1, "SEVERAL": 1}),
    (shares, {"MANY": 1}),
    (ways, {"MANY": 1}),
)
"""By module, the names of sizes, and what they are here."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--as-large", action="store_true", help="take the ways of large inputs")


def pytest_configure(config: pytest.Config) -> None:
    """Set the sizes, for all tests of the process."""
    if config.getoption("--as-large"):
        set_sizes()


def set_sizes() -> None:
    """Set the sizes, for the rest of the process."""
    for module, sizes in SIZES:
        vars(module).update(sizes)
