"""The benchmark of compiled code, at tiny sizes, and its tables."""

from collections.abc import Callable
from pathlib import Path

import compiled
import generate_performance
import pytest
from compiled import COMPILED, ONE, OURS, PLAIN, SIDES, WHOLE, Figures
from timing import Spread

from detmode.mode.compiled import hooks

pytestmark = [
    pytest.mark.usefixtures("clock"),
    # The compiler warns, of Python and of itself, by version.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hooks.CAN_COMPILE, reason="PyTorch 2.8 compiles nothing"),
]


def run(folder: Path, *options: str) -> Figures:
    assert compiled.main(["--quick", "--output", str(folder), "--rounds", "2", *options]) == 0
    (path,) = folder.iterdir()
    return Figures.read(path)


@pytest.fixture
def figures(spread: Callable[[float], Spread]) -> Figures:
    names = ("cpu", "torch", "commit", "date")
    made = Figures({name: f"some {name}" for name in names}, 20)
    first, *_, second = WHOLE
    made.whole[first] = dict(zip(SIDES, map(spread, (90, 100, 105, 300))))
    made.whole[second] = dict(zip(SIDES, map(spread, (90, 100, 106, 300))))
    made.one["aten::cumsum, native"] = {PLAIN: spread(2), OURS: spread(13)}
    made.one["aten::cumsum, allow"] = {PLAIN: spread(2), OURS: spread(15)}
    made.first[second] = {COMPILED: spread(2e6), OURS: spread(3e6)}
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("action", compiled.ACTIONS)
def test_what_is_timed_takes_the_action(action: str) -> None:
    """Every call of the chain is compiled, meets the mode and is counted with the action named."""
    ours = compiled.listed("aten::index_add", action, 3)[OURS]
    with ours.around() as mode:
        ours.run()
    assert [(row.overload, row.action, row.count) for row in mode.records] == [
        ("aten::index_add.default", action, 3)
    ]
    assert [each for each in mode.overloads.values() if each is not None and each.twin]


@pytest.mark.thorough
def test_one_call_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line asked for is measured, judged and written; --resume measures what is not there."""
    name = "aten::mm, not listed for dense tensors"
    found = run(tmp_path, "--only", "aten::mm", "--commit", "abc")
    assert found.one.keys() == {name}
    assert found.whole == found.first == {}
    assert all(0 < time.median < 1e-3 for time in found.one[name].values())
    assert "5.00, m" in capsys.readouterr().out
    assert run(tmp_path, "--only", "aten::mm", "--commit", "abc", "--resume") == found
    assert capsys.readouterr().err == ""


@pytest.mark.thorough
def test_whole_functions_are_timed(tmp_path: Path) -> None:
    """On all sides; and the first call, in processes of their own."""
    found = run(tmp_path, "--only", "pointwise")
    assert list(found.whole["60 pointwise operators"]) == list(SIDES)
    first = found.first["60 pointwise operators"]
    assert all(1 < time.median < 600 for time in first.values())


def test_figures_are_documented(
    figures: Figures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the CPU, and judged by their targets; a page without them is stale."""
    text = compiled.documented([figures])
    assert text.startswith("some cpu, one thread, PyTorch some torch, detmode some commit")
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[-4:-1]]
        for line in text.partition("The first call")[0].splitlines()
        if line.startswith("|")
    }
    assert cells["60 pointwise operators"][1:] == ["1.05", "1.05, met"]
    assert cells["a training step of a transformer"][1:] == ["1.06", "1.05, missed"]
    assert cells["aten::cumsum, native"][1:] == ["11.00", "12.00, met"]
    assert cells["aten::cumsum, allow"][1:] == ["13.00", "12.00, missed"]
    assert "2.00 | 3.00 | 1.50" in " ".join(text.split())
    assert set(ONE) >= set(figures.one)
    assert generate_performance.stale() is None
    figures.write(tmp_path)
    assert compiled.committed(tmp_path) == [figures]
    monkeypatch.setattr(generate_performance, "committed", lambda: [figures])
    assert "compiled-code.md is stale" in str(generate_performance.stale())
