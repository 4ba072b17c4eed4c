"""A claim of every test here: afterwards all settings are as they were."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_left_behind(nothing_left_behind: None) -> None:
    pass
