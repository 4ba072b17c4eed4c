"""The HTML page in a browser: filters, sorting, module buttons, colours, width, print."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import take_pictures

from detmode import Report, ReportRow
from detmode.reports.page import Listing, Page
from detmode.reports.shown import Shown

pytestmark = [
    pytest.mark.skipif(take_pictures.BROWSER is None, reason="needs Chromium on the PATH"),
    pytest.mark.thorough,
]

ROWS = (
    ("aten::put_.default", "error", "Net.head", 7),
    ("aten::cumsum.default", "substitute", "Net.body.0", 1200),
    ("aten::convolution.default", "native", "Net.body.1", 30),
    ("aten::histc.default", "allow", None, 999_999),
)
NAMES = [name for name, *_ in ROWS]


def report() -> Report:
    records = [
        ReportRow(
            *(overload, "family", action, None, None, count, f"{'deep/' * 30}train.py:{line}"),
            module,
            because="its threads race " * 20,
        )
        for line, (overload, action, module, count) in enumerate(ROWS, 1)
    ]
    return Report(records, [(row, module, count) for row, (*_, module, count) in enumerate(ROWS)])


class Weighed(Shown):
    """A report with sizes, as an audit has them, in a listing."""

    def page(self) -> Page:
        sizes = ("1.5 MB", "900 kB", "not counted", "20 bytes", "1.2 GB")
        listing = Listing("Bytes", ("moves",), tuple((size,) for size in sizes))
        return Page("Sizes", "None.", "note", (), (), (), listings=(listing,))


def asked(tmp_path: Path, shown: Shown, script: str, *options: str, scheme: str = "light") -> Any:
    """The result of a script that uses the page."""
    result = f"document.body.dataset.result = JSON.stringify((() => {{{script}}})())"
    file = tmp_path / "page.html"
    file.write_text(shown.to_html().replace("</body>", f"<script>{result}</script></body>"))
    dom = take_pictures.browse(file, "--dump-dom", *options, scheme=scheme)
    (found,) = re.findall(r'data-result="([^"]*)"', dom)
    return json.loads(unescape(found))


SHOWN = """
  const shown = () => [...document.querySelectorAll(".rows tbody")].filter((row) => !row.hidden)
    .map((row) => row.rows[0].cells[1].textContent);
"""


def test_filters(tmp_path: Path) -> None:
    """Boxes, text and modules narrow the rows, and the page says how many are left."""
    script = """
      const found = [shown()], press = (query) => document.querySelector(query).click();
      const told = () => document.querySelector("output").textContent;
      press("[value=substitute]"); found.push(shown(), told()); press("[value=substitute]");
      const text = document.querySelector("[name=text]");
      const type = (word) => {
        text.value = word; text.dispatchEvent(new Event("input", {bubbles: true}));
      };
      type("CUMSUM"); found.push(shown()); type("");
      const lane = "[data-module='Net.body.1'].lane";
      press(lane); found.push(shown()); press(lane); found.push(shown());
      press("[data-module='(no module)'].lane"); found.push(shown());
      return found;
    """
    put, cumsum, convolution, histc = NAMES
    urgent_first = [put, histc, cumsum, convolution]
    assert asked(tmp_path, report(), SHOWN + script) == [
        urgent_first,
        [put, histc, convolution],
        "3 of 4 rows",
        [cumsum],
        [convolution],
        urgent_first,
        [histc],
    ]


def test_sorting(tmp_path: Path) -> None:
    """A heading sorts by what it names: numbers from the most, texts from A; then back.

    A row keeps its reason, and a filter what is hidden.
    """
    script = """
      const heads = [...document.querySelectorAll(".rows thead th")];
      const named = (name) => heads.find((head) => head.textContent === name);
      const click = (name) => { named(name).querySelector("button").click(); return shown(); };
      const orders = ["count", "count", "count", "overload"].map(
        (name) => [click(name), named(name).ariaSort]);
      const rows = [...document.querySelectorAll(".rows tbody")];
      return [...orders, rows.every((row) => row.rows.length === 2)];
    """
    put, cumsum, convolution, histc = NAMES
    assert asked(tmp_path, report(), SHOWN + script) == [
        [[histc, cumsum, convolution, put], "descending"],
        [[put, convolution, cumsum, histc], "ascending"],
        [[put, histc, cumsum, convolution], None],
        [sorted(NAMES), "ascending"],
        True,
    ]


def test_sorting_of_sizes(tmp_path: Path) -> None:
    """Sizes are sorted by their units, those that are not known last."""
    script = """
      const button = document.querySelector("th button"), orders = [];
      for (const time of [1, 2]) {
        button.click();
        orders.push([...document.querySelectorAll("tbody td")].map((cell) => cell.textContent));
      }
      return orders;
    """
    rising = ["20 bytes", "900 kB", "1.5 MB", "1.2 GB"]
    assert asked(tmp_path, Weighed(), script) == [
        [*reversed(rising), "not counted"],
        [*rising, "not counted"],
    ]


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
      return [parts.length, bad.length];
    """
    # Four lanes, four boxes, the text, eight headings, the rows' region and the legend.
    assert asked(tmp_path, report(), script) == [19, 0]


@pytest.mark.parametrize(
    ("scheme", "paper"), [("dark", "rgb(22, 24, 29)"), ("light", "rgb(255, 255, 255)")]
)
def test_page_follows_the_colour_scheme(scheme: str, paper: str, tmp_path: Path) -> None:
    """Light or dark as the reader's system is; each action has a colour of its own in both."""
    script = """
      const colour = (part) => getComputedStyle(part).color;
      const marks = [...document.querySelectorAll(".rows .mark")].map(colour);
      return [getComputedStyle(document.body).backgroundColor, new Set(marks).size];
    """
    assert asked(tmp_path, report(), script, scheme=scheme) == [paper, len(ROWS)]


@pytest.mark.parametrize("width", [500, 800])
def test_long_names_do_not_widen_the_page(width: int, tmp_path: Path) -> None:
    """The page itself never scrolls sideways."""
    script = "return [document.documentElement.scrollWidth <= innerWidth, innerWidth]"
    found = asked(tmp_path, report(), script, f"--window-size={width},800")
    assert found == [True, width]


def test_a_narrow_page_cuts_nothing(tmp_path: Path) -> None:
    """In 500 pixels each cell of a row is a line with its column's name; no part has to scroll."""
    script = """
      const parts = [...document.querySelectorAll(".wide, .lane, td, dd")];
      const wide = parts.filter((part) => part.scrollWidth > part.clientWidth + 1);
      const cell = document.querySelector('td[data-column="overload"]');
      return [parts.length > 40, wide.length, getComputedStyle(cell, "::before").content];
    """
    found = asked(tmp_path, report(), script, "--window-size=500,800")
    assert found == [True, 0, '"overload"']


def test_page_in_print(tmp_path: Path) -> None:
    """It is printed on landscape paper, which is wide enough for the rows."""
    file, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    file.write_text(report().to_html())
    take_pictures.browse(file, f"--print-to-pdf={printed}")
    ((width, height),) = set(
        re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed.read_bytes())
    )
    assert float(width) > float(height) > 500


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext on the PATH")
def test_a_heading_is_repeated_in_print(tmp_path: Path) -> None:
    """Each sheet with rows has their headings, as text: that of a button would be left out."""
    printed = tmp_path / "page.pdf"
    page = tmp_path / "page.html"
    page.write_text(Report([row for row in report() for _ in range(20)]).to_html())
    take_pictures.browse(page, f"--print-to-pdf={printed}")
    sheets = subprocess.run(
        ["pdftotext", printed, "-"], capture_output=True, text=True, check=True
    ).stdout.split("\f")
    with_rows = [sheet for sheet in sheets if "train.py:" in sheet]
    assert len(with_rows) > 1
    assert all("guarantee" in sheet for sheet in with_rows)
