"""Files of the user, told from those of Python's library."""

import os

import pytest

from detmode.sites.user_files import is_users


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (os.__file__, False),
        (os.path.join(os.path.dirname(os.__file__), "site-packages", "package", "a.py"), True),
        (os.path.join(os.path.dirname(os.__file__), "dist-packages", "package", "a.py"), True),
        (os.path.join(os.sep, "home", "a.py"), True),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_users_files(file: str, expected: bool) -> None:
    """Packages that lie below the standard library, as conda puts them, are no part of it."""
    assert is_users(file) is expected
