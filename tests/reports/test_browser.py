"""The HTML page in a browser: filters, module buttons, and both colour schemes."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from detmode import Report, ReportRow

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the PATH")

ROWS = (
    ("aten::put_.default", "error", "Net.head"),
    ("aten::cumsum.default", "substitute", "Net.body.0"),
    ("aten::convolution.default", "native", "Net.body.1"),
    ("aten::histc.default", "substitute", None),
)


def page() -> str:
    records = [
        ReportRow(overload, "family", action, None, None, 1, f"train.py:{line}", module)
        for line, (overload, action, module) in enumerate(ROWS, 1)
    ]
    modules = [module for *_, module in ROWS]
    return Report(records, enumerate(modules)).to_html()


def browse(tmp_path: Path, script: str = "", *options: str) -> str:
    """The page after a script has used it, as the browser has it then."""
    file = tmp_path / "page.html"
    file.write_text(page().replace("</body>", f"<script>{script}</script></body>"))
    return subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", *options, "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def shown(dom: str) -> list[str]:
    """The overloads of the rows that are not hidden."""
    rows = re.findall(r'<tr data-group="[^"]*"([^>]*)>(.*?)</tr>', dom, re.DOTALL)
    texts = [
        re.sub(r"<[^>]*>", " ", cells) for attributes, cells in rows if "hidden" not in attributes
    ]
    return [html.unescape(re.sub(r"\s", "", text)) for text in texts]


def names(dom: str) -> list[str]:
    return [name for text in shown(dom) for name, *_ in ROWS if name in text]


ALL = [name for name, *_ in ROWS]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("", ALL, id="all"),
        pytest.param(
            "document.querySelector('[value=substitute]').click()", ALL[:1] + ALL[2:3], id="group"
        ),
        pytest.param(
            "const text = document.querySelector('[name=text]'); text.value = 'CUMSUM';"
            "text.dispatchEvent(new Event('input', {bubbles: true}))",
            ALL[1:2],
            id="text",
        ),
        pytest.param(
            "document.querySelector('.lane[data-module=\"Net.body.1\"]').click()",
            ALL[2:3],
            id="module",
        ),
        pytest.param(
            "document.querySelector('.lane[data-module=\"(no module)\"]').click()",
            ALL[3:],
            id="no module",
        ),
        pytest.param(
            "const b = document.querySelector('.lane'); b.click(); b.click()",
            ALL,
            id="module again",
        ),
    ],
)
def test_filters(script: str, expected: list[str], tmp_path: Path) -> None:
    """Boxes, text and modules narrow the rows, and the page says how many are left."""
    dom = browse(tmp_path, script)
    assert sorted(names(dom)) == sorted(expected)
    assert f"{len(expected)} of {len(ROWS)} rows" in dom


def test_everything_is_reached_by_keyboard(tmp_path: Path) -> None:
    """Elements that react to a click take the focus, and have a name for a screen reader."""
    script = """
      const parts = [...document.querySelectorAll("button, input, summary, [tabindex]")];
      const bad = parts.filter((part) => {
        part.focus();
        const label = part.closest("label")?.textContent;
        const name = part.getAttribute("aria-label") || part.textContent || label;
        return document.activeElement !== part || !name.trim();
      });
      document.body.dataset.result = `${parts.length} parts, ${bad.length} bad`;
    """
    (result,) = re.findall(r'data-result="([^"]*)"', browse(tmp_path, script))
    # Four lanes, three boxes, the text, the rows' region and the legend.
    assert result == "10 parts, 0 bad"


@pytest.mark.parametrize(("scheme", "paper"), [(0, "rgb(22, 24, 29)"), (1, "rgb(255, 255, 255)")])
def test_page_follows_the_colour_scheme(scheme: int, paper: str, tmp_path: Path) -> None:
    """Light or dark as the reader's system is."""
    script = "document.body.dataset.result = getComputedStyle(document.body).backgroundColor"
    dom = browse(tmp_path, script, f"--blink-settings=preferredColorScheme={scheme}")
    assert re.findall(r'data-result="([^"]*)"', dom) == [paper]


def test_long_names_do_not_widen_the_page(tmp_path: Path) -> None:
    """The page itself never scrolls sideways, on a narrow screen either."""
    script = "document.body.dataset.result = document.documentElement.scrollWidth <= innerWidth"
    dom = browse(tmp_path, script, "--window-size=500,800")
    assert re.findall(r'data-result="([^"]*)"', dom) == ["true"]
