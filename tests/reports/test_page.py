"""Reports as text, timeline, SARIF and HTML page, all from one model."""

import json
import re
from argparse import Namespace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import detmode
from detmode import Report
from detmode.cli.output import show, write_files
from detmode.reports.page import shortened
from detmode.reports.shown import Shown
from detmode.runs.probe_report import ProbeReport
from tests.reports.rows import probed, record


def test_a_few_calls_among_many_are_seen() -> None:
    """One refused call of a million has a bar of its own; neighbours that look alike share one."""
    rows = [record("native", count=999_999), record("error", count=1)]
    course = [(0, "Net", 500_000), (1, "Net", 1), (0, "Net", 499_999)]
    course[:1] = [(0, "Net", 500)] * 1000
    course[-1:] = [(0, "Net", 499_999 // 3)] * 3
    checked = Checked(Report(rows, course).to_html())
    bars = {a["data-group"]: a["d"] for tag, a in checked.seen if tag == "path"}
    assert re.fullmatch(r"M120 19h1v3h-1z", bars["error"])
    assert bars["native"].startswith("M0 ")


def test_names_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A module's name may be any text: files and the terminal get escapes, and no error."""
    report = Report([record("error", module="Net.\ud800", site="/x/\udcff\ud800.py:7")])
    names = {"report": "run.json", "html": "page.html", "sarif": "run.sarif"}
    files = {option: tmp_path / name for option, name in names.items()}
    write_files(Namespace(**files), report)
    show(str(report))
    assert b"Net.\\ud800" in files["html"].read_bytes()
    (result,) = json.loads(files["sarif"].read_text())["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "file:///x/%FF%5Cud800.py"
    assert "\\ud800" in capsys.readouterr().out


def test_what_needs_attention_comes_first(reports: dict[str, Shown]) -> None:
    """In the text and on the page errors come before warnings, and files are relative."""
    page = reports["mode"].page()
    assert [row.group for row in page.rows] == [
        "error", "warn", "allow", "substitute", "native",
    ]  # fmt: skip
    assert page.severity == "error"
    lines = str(reports["mode"]).splitlines()
    assert [line.split()[1] for line in lines[lines.index("train.py:7") + 1 :]] == [
        row.group for row in page.rows
    ]


def test_reason_and_remedy_are_in_every_form() -> None:
    """JSON, SARIF, the page and the long text say why a row's calls vary, and what to do."""
    report = Report([record("warn", because="its threads race", remedy="sort the indices")])
    for text in (
        report.to_json(),
        report.to_sarif(),
        Checked(report.to_html()).text,
        report.text(long=True),
    ):
        assert "its threads race" in text
        assert "sort the indices" in text


def test_a_row_of_several_modules_is_found_by_each() -> None:
    """The text shows a pattern; SARIF and the page's filter know the modules, and calls in none."""
    report = Report([record("warn", module=None, modules={"Net.a.0": 1, "Net.a.1": 1}, count=3)])
    assert str(report).endswith(" Net.a.*")
    ((result,),) = (run["results"] for run in json.loads(report.to_sarif())["runs"])
    (location,) = result["locations"]
    names = [each["fullyQualifiedName"] for each in location["logicalLocations"]]
    assert names == ["Net.a.0", "Net.a.1"]
    (modules,) = (
        a["data-modules"] for _, a in Checked(report.to_html()).seen if "data-modules" in a
    )
    assert json.loads(str(modules)) == ["Net.a.0", "Net.a.1", None]


class Checked(HTMLParser):
    """Notes what a page holds, and that its elements are closed in order."""

    EMPTY = ("meta", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in (*self.EMPTY, "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def test_page_holds_all_it_needs(reports: dict[str, Shown]) -> None:
    """No page asks the network for anything, and each says what it is and what came of it.

    It has no time in it: two reports of the same run are the same file.
    """
    for name, report in reports.items():
        page = report.to_html()
        assert page == report.to_html()
        checked = Checked(page)
        asking = {"src", "href", "srcset", "action", "data", "poster", "background"}
        assert not any(asking & set(attributes) for _, attributes in checked.seen), name
        assert re.search(r"https?:|url\(|@import|fetch\(", page) is None, name
        assert report.page().verdict in checked.text, name
        assert ("html", {"lang": "en"}) in checked.seen


def test_notebooks_show_every_report(reports: dict[str, Shown]) -> None:
    """A cell shows the verdict, what differs and the first rows, and runs nothing."""
    many = Report(record("warn", overload=f"aten::op{row}.default") for row in range(30))
    for name, report in {**reports, "many": many}.items():
        checked = Checked(report._repr_html_())
        assert report.page().verdict in checked.text, name
        assert not any(tag in ("script", "html", "body") for tag, _ in checked.seen)
        for row in report.page().rows[:25]:
            assert row.rule in checked.text, name
        for _, first, second in (fact for call in report.page().opened for fact in call.facts):
            assert first == second or second in checked.text
    assert "op24" in many._repr_html_()
    assert "op25" not in many._repr_html_()
    assert "5 more rows" in many._repr_html_()
    # Whatever a notebook's own colours are, marks bring theirs.
    assert "color-scheme: only light" in many._repr_html_()


def test_page_says_where_it_comes_from(
    reports: dict[str, Shown], comparison: detmode.Comparison
) -> None:
    """A page has the command and the versions of the run, not those of who writes the page."""
    other = {"command": ["python", "my script.py"], "torch": "2.9", "detmode": "0.0.9"}
    text = Checked(Report([], head=other).to_html()).text
    assert "python 'my script.py'" in text
    assert re.search(r"PyTorch\s*2\.9\s", text)
    assert torch.__version__ in Checked(reports["probe"].to_html()).text
    (first, second) = comparison.page().origin
    assert [first[0], second[0]] == ["first run", "second run"]
    assert "one:" in first[1]
    assert f"PyTorch {torch.__version__}" in second[1]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["/v/bin/python", "-B", "/v/bin/detmode", "run", "my script.py"], "run 'my script.py'"),
        (["/v/bin/python3", "-m", "detmode", "run", "a.py"], "run a.py"),
        (["C:/v/python.exe", "C:/v/detmode.exe", "run", "a.py"], "run a.py"),
    ],
)
def test_the_command_is_shown_as_typed(command: list[str], shown: str) -> None:
    """No folder of Python's is in it, however detmode was called; JSON has all of it."""
    report = Report([], head={"command": command})
    assert report.page().origin[0] == ("command", f"detmode {shown}")
    assert json.loads(report.to_json())["command"] == command
    assert Report([], head={"command": []}).page().origin[0] == ("command", "")


def test_words_of_a_page_are_not_torn() -> None:
    """A line may break inside a path or a very long name, but not before the ending of a file.

    What stands between backticks is code.
    """
    page = Report(
        [record("warn", site="a/some_train.py:7", overload=f"mine::{'x' * 50}")]
    ).to_html()
    assert "a/<wbr>some_<wbr>train.py:7" in page
    assert f"mine::<wbr>{'x' * 40}<wbr>{'x' * 10}" in page
    sure = Report([record("native", guarantee="run_to_run")])
    assert "to prove it, <code>detmode record --deterministic</code>" in sure.to_html()


def test_the_point_of_divergence_is_marked(comparison: detmode.Comparison) -> None:
    """The line at which runs diverge is marked, alone, and so is its place in the timeline."""
    page = comparison.page()
    (marked,) = [row for row in page.rows if row.is_point]
    assert (marked.rule, marked.site) == ("aten::addmm.default", comparison.divergence.call.site)
    place = comparison.divergence.first.number + 0.5
    assert page.timeline.point == pytest.approx(place / page.timeline.total)
    text = comparison.to_html()
    assert text.count("diverges here") == 1
    assert f"--point:{100 * page.timeline.point:.2f}%" in text
    assert Report([]).to_html().count("--point:") == 0


def test_names_are_text() -> None:
    """Whatever a module or a file is called, it is shown and never run."""
    name = "<script>alert('x')</script>"
    row = record("warn", module=name, overload=f'a"{name}', site=f"{name}:1")
    for page in (
        Report([row], [(0, name, 1)]).to_html(),
        ProbeReport([probed(module=name, overload=name)], 1, [], 3).to_html(),
    ):
        checked = Checked(page)
        assert sum(tag == "script" for tag, _ in checked.seen) == 1
        assert name in checked.text
    assert "<script" not in Report([row])._repr_html_()


def test_rows_can_be_filtered_by_what_they_carry(reports: dict[str, Shown]) -> None:
    """Every row belongs to a group that has a box, and every box has rows."""
    for name in ("mode", "probe", "diff"):
        checked = Checked(reports[name].to_html())
        boxes = {a["value"] for _, a in checked.seen if a.get("type") == "checkbox"}
        groups = {
            a["data-group"] for tag, a in checked.seen if tag == "tbody" and "data-group" in a
        }
        assert boxes == groups != set()


def test_the_divergent_call_is_opened_with_both_sides(comparison: detmode.Comparison) -> None:
    """The page shows what differs of the call at which the runs diverge, and what does not."""
    (opened,) = comparison.page().opened
    assert opened.title == "The runs diverge at this call"
    assert ("operator", *["aten::addmm.default"] * 2) in opened.facts
    assert [name for name, first, second in opened.facts if first != second] == ["output 0"]
    names = {name for name, *_ in opened.facts}
    assert {"line", "called", "module", "input 0", "input 2"} <= names
    text = Checked(comparison.to_html()).text
    for _, first, second in opened.facts:
        assert shortened(first) in text
        assert shortened(second) in text


def test_lines_of_a_comparison_count_every_call(comparison: detmode.Comparison) -> None:
    """The rows and the timeline of a comparison account for all calls that differ."""
    assert sum(line.counts[0] for line in comparison.lines) == comparison.different > 0
    timeline = comparison.timeline
    counted = {group: 0 for group in ("same", "different")}
    for lane in timeline.lanes:
        for group, count in lane.counts:
            counted[group] += count
    assert counted == {"same": comparison.same, "different": comparison.different}


def test_colours_can_be_read() -> None:
    """Every colour of text has a contrast of at least 4.5 to both backgrounds, light and dark."""
    templates = Path(detmode.__file__).parent.joinpath("reports", "templates")
    css = templates.joinpath("page.css").read_text() + templates.joinpath("tones.css").read_text()
    pairs = re.findall(r"([^\n]*?)--(\w+): light-dark\(#(\w{6}), #(\w{6})\)", css)
    colours = {name if name != "tone" else of: pair for of, name, *pair in pairs}
    texts = set(colours) - {"paper", "raised", "line"}
    assert {"ink", "quiet"} < texts
    assert len(texts) == 8
    # No two groups of calls look the same.
    assert len({tuple(colours[name]) for name in texts if "{" in name}) == 6
    for theme in (0, 1):
        for background in ("paper", "raised"):
            for name in texts:
                ratio = contrast(colours[name][theme], colours[background][theme])
                assert ratio >= 4.5, (name, background, theme, ratio)


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(c * weight for c, weight in zip(linear, (0.2126, 0.7152, 0.0722)))

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
