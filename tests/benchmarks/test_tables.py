"""Tables, files and the documentation's section, from figures that are made up for the test."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import generate_performance
import pytest
import tables
import targets
import whole_steps
from results import Results, of_gpus
from sides import COMPOSED, NATIVE, ROUND_TRIP, Row
from timing import Spread
from whole_steps import PLAIN, SIDES, UNFILLED, Step, captured_name

Made = Callable[[float], Spread]


@pytest.fixture
def filled(measured: Results, spread: Made, row: Callable[..., Row]) -> Results:
    times = {NATIVE: "raises", COMPOSED: "none", ROUND_TRIP: spread(20)}
    quick = row("one", "aten::x", 2, floor=1e-6, times=times)
    slow = row("one", "aten::x", 16, floor=0.0, times=times)
    failed = Row("two", "aten::y", "b", "float16", "zipf", failure="it does not hold")
    measured.rows = [quick, slow, failed]
    measured.host = {"bind": spread(3), "launch": "needs a GPU"}
    steps: dict[str, Spread | str] = {**dict.fromkeys(SIDES, spread(7)), UNFILLED: "raises (x)"}
    work: dict[str, Spread | str] = {PLAIN: spread(4), whole_steps.OURS: spread(6)}
    for side, us in zip(whole_steps.CAPTURED, (2, 3, 4)):
        steps[captured_name(side)] = spread(us)
    measured.steps = {"net": Step("net", None, steps, work), "odd": Step("odd", "varies", {})}
    return measured


def test_results_are_read_as_they_were_written(filled: Results, tmp_path: Path) -> None:
    """JSON and back, under a name that says the GPU and the day; a file is replaced whole."""
    filled.provenance["date"] = "2026-01-31"
    path = filled.write(tmp_path / "results")
    assert path.name == "some-gpu-2026-01-31.json"
    assert Results.read(path) == filled
    begun = Results(filled.provenance, filled.bandwidth, filled.rounds)
    begun.resume(path.parent)
    assert begun == filled
    filled.rows = filled.rows[:1]
    filled.write(path.parent)
    assert len(Results.read(path).rows) == 1
    assert list(path.parent.iterdir()) == [path]


def test_results_without_a_gpu_are_not_documented(
    filled: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The host runner's are told apart, in the file and by its name.

    Results of a GPU make the page stale, and the check names the command.
    """
    filled.write(tmp_path)
    host = dataclasses.replace(filled, provenance={**filled.provenance, "gpu": None})
    assert host.write(tmp_path).name.startswith("host-runner-")
    assert of_gpus(tmp_path) == [filled]
    assert "no measurement of a GPU" in tables.caption(host)
    assert tables.printed(host).startswith("No GPU: ")
    assert "No GPU" not in tables.printed(filled)
    assert generate_performance.stale() is None
    monkeypatch.setattr(generate_performance, "of_gpus", lambda: of_gpus(tmp_path))
    monkeypatch.setattr("sys.argv", ["generate_performance.py", "--check"])
    assert generate_performance.main() == 1
    assert "run: python tools/generate_performance.py" in capsys.readouterr().err


def test_means_are_geometric_and_over_what_was_timed(filled: Results) -> None:
    """A half and four times make 1.41; a side that raises and a row without a floor say nothing."""
    one, two, both = tables.by_family(filled.rows)
    assert one == ("one", "2", f"{math.sqrt(2):.2f}", "4.00", "-", "-", "0.28", "2.00", "0")
    assert two == ("two", "0", "-", "-", "-", "-", "-", "-", "1")
    assert both == ("all", *one[1:-1], "1")


def test_section_says_that_nothing_was_measured() -> None:
    """Without results of a GPU there is no figure but the targets."""
    text = tables.documented([])
    assert text.startswith("Not yet measured on a GPU.")
    above, *table = text.split("| what ")
    assert not any(character.isdigit() for character in above)
    assert len(table) == 1
    rows = [line.split("|") for line in table[0].splitlines()[2:]]
    assert {row[3].strip() for row in rows} == {"not yet measured on a GPU"}


def test_section_has_every_table_and_its_provenance(filled: Results) -> None:
    """Measurements stand with what they were measured on."""
    text = tables.documented([filled])
    assert "Not yet measured" not in text
    assert text.startswith("### some gpu\n\nsome gpu, driver some driver, CUDA some cuda")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert {"one", "two", "all", "net", "bind", "launch", targets.TARGETS[0].what} <= {
        line.split("|")[1].strip() for line in lines
    }
    assert "Not timed: two: it does not hold." in text
    assert "Not timed: odd: varies." in text
