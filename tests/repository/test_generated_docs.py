"""Pages say what the code does: those of docs/rules are the table's, and tools are all named."""

from pathlib import Path

import generate_docs
from variation import NOT_MEASURED, Line, Results

from tests.shared import ROOT


def test_rule_pages_are_fresh() -> None:
    """Run `python tools/generate_docs.py` after changing a family, and commit what it writes."""
    stale = generate_docs.stale()
    assert not stale, "\n".join(stale)


def test_pages_say_whether_aten_varies(tmp_path: Path) -> None:
    """A family with a substitute has a sentence for each GPU, or says that there is none."""
    provenance = {"gpu": "Some GPU", "date": "2026-11-21", "torch": "2.11.0"}
    lines = [
        Line("put", "aten::put", name, "float32", 100, 1, n) for name, n in (("a", 1), ("b", 9))
    ]
    Results(provenance, lines).write(tmp_path)
    pages = generate_docs.pages(tmp_path)
    sentence = "varied in 1 of 2 inputs, up to 9 results in 100 repeats (PyTorch 2.11.0)."
    assert f"\n\nATen on Some GPU: {sentence}\n\n" in pages["put.md"]
    assert NOT_MEASURED not in pages["put.md"]
    assert NOT_MEASURED in pages["scan.md"]
    assert NOT_MEASURED not in pages["attention.md"]


def test_every_tool_is_named() -> None:
    """CONTRIBUTING.md has a line for each tool."""
    tools = [f"tools/{path.name}" for path in sorted((ROOT / "tools").glob("*.py"))]
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    named = {line.split("`")[1] for line in lines if line.startswith("| `")}
    missing = [name for name in tools if name not in named]
    assert len(tools) > 10
    assert not missing, f"CONTRIBUTING.md: add a line '| `{missing[0]}` | what it does |'"


def test_pages_of_families_begin_for_users() -> None:
    """The calls, PyTorch's words and the figures come first; the list of all rows is the index."""
    pages = generate_docs.pages()
    assert pages["index.md"].splitlines()[2] == "# The rule table"
    assert "index_add" in pages["index-family.md"]
    page = pages["embedding.md"]
    heads = [line for line in page.splitlines() if line.startswith("## ")]
    assert heads[:3] == ["## Your calls", "## Measured", "## What varies"]
    assert heads[-2:] == ["## Rows", "## Samples"]
    assert "`F.embedding` and `nn.Embedding`, forward or backward." in page
    assert "| ATen, us | detmode, us | detmode over ATen |" in page
    assert r"2\*\*18 rows" in page
    assert "names `avg_pool3d_backward_cuda`" in pages["avg_pool3d.md"]
