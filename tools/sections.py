"""Parts of pages under ``docs/`` that a tool writes, between two comments that name it."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def read(page: Path, tool: str) -> str:
    """The text between the tool's comments."""
    return _cut(page, tool)[1]


def write(page: Path, tool: str, content: str) -> None:
    """Put ``content`` between the tool's comments."""
    before, _, after = _cut(page, tool)
    page.write_text(f"{before}\n{content.strip()}\n\n{after}", encoding="utf-8")


def _cut(page: Path, tool: str) -> tuple[str, str, str]:
    begin, end = f"<!-- Begin: written by {tool} -->\n", f"<!-- End: written by {tool} -->"
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page.name}: put one '{begin.strip()}' and one '{end.strip()}' into it")
    before, _, rest = text.partition(begin)
    content, _, after = rest.partition(end)
    return before + begin, content.strip(), end + after
