"""Tensors of detmode's own lie where it says, and not on the user's default device."""

import ast
from collections.abc import Iterator
from pathlib import Path

from torch.utils._device import _device_constructors

import detmode

PACKAGE = Path(detmode.__file__).parent
FACTORIES = {each.__name__ for each in _device_constructors()}
"""The functions that ``torch.set_default_device`` gives a device."""


def faults_of(path: Path) -> Iterator[str]:
    """The calls of a factory of PyTorch in a file that leave its device open, by line.

    Factories that are imported by name are faults too: their calls would not be seen.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            names = {alias.name for alias in node.names} & FACTORIES
            yield from (f"{path}:{node.lineno}: {name} is imported by name" for name in names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in FACTORIES
            and ast.unparse(node.func.value).partition(".")[0] == "torch"
            and not any(word.arg in ("device", None) for word in node.keywords)
        ):
            yield f"{path}:{node.lineno}: torch.{node.func.attr} has no device="


def test_every_factory_call_says_its_device() -> None:
    """Under ``torch.set_default_device`` a tensor of detmode's would lie where nobody looks."""
    assert not [fault for path in sorted(PACKAGE.rglob("*.py")) for fault in faults_of(path)]
