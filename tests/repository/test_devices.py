"""Tensors of detmode's own lie where it says, and not on the user's default device."""

import ast
from pathlib import Path

from torch.utils._device import _device_constructors

import detmode

PACKAGE = Path(detmode.__file__).parent
FACTORIES = {each.__name__ for each in _device_constructors()}
"""The functions that ``torch.set_default_device`` gives a device."""


def calls_without_device(path: Path) -> list[str]:
    """The calls of a factory of PyTorch in a file that leave its device open, by line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: torch.{node.func.attr} has no device="
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value).partition(".")[0] == "torch"
        and node.func.attr in FACTORIES
        and not any(word.arg in ("device", None) for word in node.keywords)
    ]


def test_every_factory_call_says_its_device() -> None:
    """Under ``torch.set_default_device`` a tensor of detmode's would lie where nobody looks."""
    assert not [
        line for path in sorted(PACKAGE.rglob("*.py")) for line in calls_without_device(path)
    ]


def test_no_factory_is_imported_by_name() -> None:
    """The test above looks for ``torch.zeros``, which is what it has to be called by."""
    imports = [
        f"{path.relative_to(PACKAGE)}: {alias.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "torch"
        for alias in node.names
        if alias.name in FACTORIES
    ]
    assert not imports
