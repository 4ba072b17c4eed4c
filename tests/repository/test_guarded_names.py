"""Names by which detmode tells programs and files from each other."""

import os

import pytest

from detmode.cli.launchers import under_detmode
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


@pytest.mark.parametrize(
    ("script", "words"), [("accelerate-launch", []), ("accelerate", ["launch"])]
)
def test_scripts_of_accelerate(script: str, words: list[str]) -> None:
    """The one has its arguments after a word, the other at once; none is lost."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    arguments = [*words, "--num_processes", "2", "train.py", "--epochs", "3"]
    command = under_detmode(f"/bin/{script}", arguments, ["run"], is_module=False)
    launching = ["-m", "accelerate.commands.launch", "--num_processes", "2", "-m"]
    assert command == [*launching, "detmode", "run", "train.py", "--epochs", "3"]
