"""The committed pages of docs/rules are those that the table gives."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rule_pages_are_fresh() -> None:
    """Run `python tools/generate_docs.py` after changing a room, and commit what it writes."""
    stale = load_tool("generate_docs").stale()
    assert not stale, "\n".join(stale)
