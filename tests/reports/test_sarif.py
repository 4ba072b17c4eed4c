"""Reports as SARIF, for code scanning."""

import json
from pathlib import Path

import pytest

from detmode import Report
from detmode.reports.shown import Shown
from tests.reports.rows import record


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
