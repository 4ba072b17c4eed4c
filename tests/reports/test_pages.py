"""Reports as text, timeline, SARIF and HTML page, all from one model."""

import json
import re
from argparse import Namespace
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import detmode
from detmode import DeterministicMode, Report, ReportRow
from detmode.cli.output import show, write_files
from detmode.mode.row_counter import RECENT, ModuleCalls, _Course
from detmode.reports.page import shortened
from detmode.reports.shown import Shown
from detmode.reports.timeline import NO_MODULE, TimelineBuilder, timeline_of
from detmode.runs.probe_report import PassedOver, ProbeReport, ProbeRow
from tests.shared.training import Fault, Training

ACTIONS = ("substitute", "error", "native", "allow", "warn")


def record(action: str, **changes: object) -> ReportRow:
    fields = {"overload": f"aten::{action}.default", "family": "scatter", "action": action}
    fields |= {"guarantee": None, "alert": "put_", "count": 2}
    fields |= {"site": f"{Path.cwd()}/train.py:7", "module": "Net.body"}
    return ReportRow(**{**fields, **changes})


def probed(**changes: object) -> ProbeRow:
    row = ProbeRow(
        *("mine::sum.default", 4, 2, ("schedule",), ("output 0",), 3, 0.5),
        *(f"{Path.cwd()}/train.py:9", None, None, None),
    )
    return replace(row, **changes)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> detmode.Comparison:
    folder = tmp_path_factory.mktemp("runs")
    fault = Fault("aten::addmm.default", 3, lambda args, result: result.view(-1)[3].add_(1e-6))
    return detmode.diff(
        Training().record(folder / "one"), Training(fault=fault).record(folder / "other")
    )


@pytest.fixture
def reports(comparison: detmode.Comparison) -> dict[str, Shown]:
    return {
        "mode": Report(map(record, ACTIONS), [(row, "Net.body", 1) for row in (0, 0, 1, 2, 3, 4)]),
        "probe": ProbeReport([probed()], 9, [PassedOver("aten::view.default", "views", 5)], 3),
        "diff": comparison,
        "empty": Report([]),
        "nothing varied": ProbeReport([], 9, [], 3),
    }


def test_calls_of_one_place_are_counted_together() -> None:
    """A column has the calls of each group at its place, the most serious first."""
    builder = TimelineBuilder(2, ["bad", "good"])
    for place, group in ((0, "good"), (1, "good"), (1, "bad"), (1, "good")):
        builder.add(place, "Net", group)
    (lane,) = builder.timeline("calls").lanes
    assert list(lane.columns) == [
        (0, (("good", 1),)),
        (1, (("bad", 1), ("good", 2))),
    ]
    assert lane.counts == (("bad", 1), ("good", 3))


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


def test_course_of_a_long_run_is_small() -> None:
    """However many calls a run makes, none is lost, and their order stays to a 1000th of it."""
    course = _Course()
    quarters = [
        [ModuleCalls(record("native"), f"Net.{module}") for module in range(3)] for _ in range(4)
    ]
    for call in range(100_000):
        course.latest.append(quarters[call * 4 // 100_000][call % 3])
        if len(course.latest) >= RECENT:
            course.shorten()
    parts = course.parts()
    assert len(parts) < 3 * 2048 + 8192
    assert sum(count for _, count in parts) == 100_000
    place, begins = 0, {}
    for calls, count in parts:
        begins.setdefault(next(n for n, each in enumerate(quarters) if calls in each), place)
        place += count
    assert begins == pytest.approx({0: 0, 1: 25_000, 2: 50_000, 3: 75_000}, abs=100)


def test_lanes_of_deep_modules() -> None:
    """However deep modules are, their lanes are put together as deep as few enough allow."""
    deep = ".x" * 10_000
    calls = [(f"Net.{i % 9}.{i % 90}{deep}", "a", 1) for i in range(90)]
    timeline = timeline_of(calls, len(calls), "ab", "calls")
    assert [lane.name for lane in timeline.lanes] == [f"Net.{i}" for i in range(9)]
    assert timeline.calls == 90


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


def test_timeline_of_a_long_run_is_small() -> None:
    """Neither many calls nor many modules make it larger than can be drawn; none is lost."""
    calls = [(f"Net.block{i % 7}.layer{i % 100}", "ab"[i % 2], 1) for i in range(50_000)]
    timeline = timeline_of(calls, len(calls), "ab", "calls")
    assert timeline.calls == 50_000
    assert {lane.name for lane in timeline.lanes} == {f"Net.block{i}" for i in range(7)}
    assert sum(len(lane.columns) for lane in timeline.lanes) <= 7 * 240


def test_mode_reports_its_calls_in_order() -> None:
    """The timeline of a mode's report follows the calls, not the rows."""
    net = torch.nn.Sequential(
        *(torch.nn.Upsample(scale_factor=2, mode="bilinear") for _ in range(2))
    )
    with DeterministicMode(simulate="cuda") as mode:
        for _ in range(2):
            net(torch.ones(1, 1, 2, 2, requires_grad=True)).sum().backward()
            torch.zeros(3).index_add_(0, torch.tensor([0, 0]), torch.ones(2))
    timeline = mode.report().page().timeline
    assert timeline.calls == sum(row.count for row in mode.records) == 6
    lanes = {lane.name: [place for place, _ in lane.columns] for lane in timeline.lanes}
    assert lanes == {"Sequential.1": [0, 3], "Sequential.0": [1, 4], NO_MODULE: [2, 5]}


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


def test_sarif_has_a_result_a_row(reports: dict[str, Shown]) -> None:
    """Each row is a result at its line, its level that of the action, its rule the overload."""
    sarif = json.loads(reports["mode"].to_sarif())
    assert sarif["version"] == "2.1.0"
    (run,) = sarif["runs"]
    levels = {result["ruleId"]: result["level"] for result in run["results"]}
    assert levels == {
        "aten::error.default": "error",
        "aten::warn.default": "warning",
        "aten::allow.default": "warning",
        "aten::substitute.default": "note",
        "aten::native.default": "note",
    }
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        assert location["physicalLocation"] == {
            "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 7},
        }
        assert location["logicalLocations"] == [
            {"fullyQualifiedName": "Net.body", "kind": "module"}
        ]
        assert result["message"]["text"].startswith(result["ruleId"])


TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"minLength": 1}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}


def closed(required: str, **properties: object) -> dict[str, object]:
    """An object of SARIF's with these properties, of which some are required, and no others."""
    fields = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**fields, "required": required.split()}


def array_of(item: object) -> dict[str, object]:
    return {"type": "array", "uniqueItems": True, "items": item}


LOCATION = closed(
    "",
    physicalLocation=closed(
        "artifactLocation",
        artifactLocation=closed("uri", uri={"format": "uri-reference"}, uriBaseId={}),
        region=closed("startLine", startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations=array_of(closed("", fullyQualifiedName={"type": "string"}, kind={})),
)
RULE = closed(
    "id shortDescription fullDescription help defaultConfiguration",
    id={"type": "string"},
    **{name: TEXT for name in ("shortDescription", "fullDescription", "help")},
    helpUri={"format": "uri"},
    defaultConfiguration=closed("level", level=LEVEL),
)
RESULT = closed(
    "ruleId message locations",
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    message=TEXT,
    locations=array_of(LOCATION),
    relatedLocations=array_of(LOCATION),
    properties={"type": "object"},
)
DRIVER = closed("name rules", name={}, version={"type": "string"}, rules=array_of(RULE))
RUN = closed("tool results", tool=closed("driver", driver=DRIVER), results={"items": RESULT})
SARIF = closed("version runs", **{"$schema": {}}, version={"const": "2.1.0"}, runs=array_of(RUN))
"""The requirements of SARIF 2.1.0's schema and of GitHub on the properties that detmode writes."""


@pytest.mark.parametrize("name", ["mode", "probe", "diff", "empty", "nothing varied"])
def test_sarif_is_what_the_standard_and_github_require(
    reports: dict[str, Shown], name: str
) -> None:
    """Each rule has its descriptions and help, and no property is unknown to the schema."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.validate(json.loads(reports[name].to_sarif()), SARIF)


def test_sarif_says_why_and_what_to_do() -> None:
    """A result's message has the reason and the remedy; its rule's help leads to the operator."""
    whole = record("warn", because="its threads race", remedy="sort the indices")
    (run,) = json.loads(Report([whole]).to_sarif())["runs"]
    (result,), (rule,) = run["results"], run["tool"]["driver"]["rules"]
    said = "Its threads race. Sort the indices."
    assert result["message"]["text"].endswith(f"a warning is given. {said}")
    assert rule["fullDescription"]["text"] == "Its threads race."
    help_text = "Its threads race.\n\nSort the indices.\n\nRun detmode explain aten::warn.default."
    assert rule["help"]["text"] == help_text
    assert rule["helpUri"].startswith("https://docs.pytorch.org/")


@pytest.mark.parametrize("alert", [None, "put_"])
def test_pytorchs_message_is_named_where_there_is_one(alert: str | None) -> None:
    """A call that detmode refuses in its own words is no call with PyTorch's message."""
    report = Report([record("error", alert=alert)])
    ((result,),) = (run["results"] for run in json.loads(report.to_sarif())["runs"])
    assert "the call is refused" in result["message"]["text"]
    assert ("with PyTorch's message" in result["message"]["text"]) is (alert is not None)


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


@pytest.mark.parametrize(
    ("site", "uri"),
    [
        ("/elsewhere/a b.py:3", "file:///elsewhere/a%20b.py"),
        (f"{Path.cwd()}/sub dir/x.py:1", "sub%20dir/x.py"),
        ("<AddBackward0>", None),
        ("<stdin>:1", None),
    ],
)
def test_sarif_locations(site: str, uri: str | None) -> None:
    """Only files have a physical location, with an URI that is one."""
    report = Report([record("warn", site=site, module=None)])
    ((result,),) = (run["results"] for run in json.loads(report.to_sarif())["runs"])
    found = [each["physicalLocation"]["artifactLocation"]["uri"] for each in result["locations"]]
    assert found == ([] if uri is None else [uri])


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
