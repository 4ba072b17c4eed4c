"""The command: everything at tiny sizes, without a GPU."""

from pathlib import Path

import families
import models
import provenance
import pytest
import torch
import whole_steps
from results import Results
from timing import Clock
from whole_steps import Step

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="times the GPU that is there instead"),
    pytest.mark.usefixtures("clock", "cublas_workspace"),
]


def run(folder: Path, *options: str) -> Results:
    assert families.main(["--output", str(folder), "--rounds", "2", "--calls", "20", *options]) == 0
    (path,) = folder.iterdir()
    return Results.read(path)


@pytest.mark.thorough
def test_one_command_measures_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chosen operators are in the tables and in the file, and labelled as no measurement.

    Pictures are drawn where that is asked for.
    """
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    chosen = ("--family", "avg_pool3d", "--family", "put", "--dtype", "float32", "--model", "gpt")
    pictures = tmp_path / "pictures"
    found = run(tmp_path / "results", *chosen, "--commit", "abc", "--plot", str(pictures))
    assert {path.name for path in pictures.iterdir()} == {
        *("over_aten.svg", "roofline.svg", "contention.svg")
    }
    assert {row.family for row in found.rows} == {"avg_pool3d", "put"}
    assert {row.dtype for row in found.rows} == {"float32"}
    assert {row.contention for row in found.rows if row.family == "put"} == {
        *("", "distinct", "zipf", "one")
    }
    assert [*found.steps] == ["gpt"]
    assert found.steps["gpt"].failure is None
    names = map(whole_steps.captured_name, whole_steps.CAPTURED)
    assert {found.steps["gpt"].times[name] for name in names} == {"needs a GPU"}
    assert found.provenance["commit"] == "abc"
    assert found.provenance["gpu"] is None
    said = capsys.readouterr()
    assert "they are no measurement of a GPU" in said.out
    assert "aten::avg_pool3d_backward" in said.out
    lines = said.err.splitlines()
    assert lines[0] == "1 of at most 8: avg_pool3d-float32-avg_pool3d_backward-overlap ..."
    assert [line.split(": ")[1] for line in lines[1:4]] == [
        *("host ...", "gpt ...", "gpt, captured ...")
    ]
    assert lines[4].startswith("5 of at most 8, about 0 min left: put-float32-put-")


def test_minutes_end_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No line begins after them, and what is measured is written.

    With --resume only what the file has not is measured; what it has stays to the byte.
    """
    chosen = ("--part", "operators", "--family", "put", "--dtype", "float32", "--commit", "abc")
    passed = iter((0.0, 0.0, 61.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance.time, "monotonic", lambda: next(passed))
        found = run(tmp_path, *chosen, "--minutes", "1")
    assert len(found.rows) == 1
    assert "stopped after 1.0 minutes; --resume goes on\n" in capsys.readouterr().err
    rest = run(tmp_path, *chosen, "--resume", "--minutes", "10")
    assert rest.rows[0] == found.rows[0]
    assert [row.contention for row in rest.rows] == ["", "distinct", "zipf", "one"]
    assert capsys.readouterr().err.startswith("1 of at most 4: put-float32-put-")
    assert len(run(tmp_path, *chosen, "--resume").rows) == 4
    assert "put-float32-" not in capsys.readouterr().err
    assert families.main(["--output", str(tmp_path), "--resume", "--commit", "abd"]) == 2
    assert "is of another commit or machine; move it away" in capsys.readouterr().err


def test_failure_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that cannot be timed ends the command with 1, and the others are written."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory\nleft")

    monkeypatch.setattr(whole_steps, "measure", fail)
    options = ["--part", "steps", "--model", "gpt", "--rounds", "2", "--output", str(tmp_path)]
    assert families.main(options) == 1
    assert "not timed: gpt: RuntimeError: no memory\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--family", "kitchen", "avg_pool3d"),
        ("--rounds", "1", "two rounds or more, not 1"),
        ("--minutes", "0", "a number of minutes above 0, not 0"),
        ("--minutes", "soon", "a number of minutes above 0, not soon"),
    ],
)
def test_wrong_usage_is_refused(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the message says what there is."""
    with pytest.raises(SystemExit, match="2"):
        families.main([option, value])
    assert said in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_is_timed(name: str, clock: Clock) -> None:
    """A step runs on every side, or PyTorch's flag refuses it."""
    step = whole_steps.measure(Step(name, None, {}), clock, 2, tiny=True)
    assert step.failure is None
    assert tuple(step.times) == whole_steps.SIDES
    for side, found in step.times.items():
        if isinstance(found, str):
            assert side.startswith("pytorch deterministic")
            assert found.startswith("raises (")


def test_other_weights_have_no_times(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose bits vary is not timed."""
    weights = iter([[torch.zeros(2)], [torch.ones(2)]])
    monkeypatch.setattr(whole_steps, "_trained", lambda *_: next(weights))
    step = whole_steps.measure(Step("gpt", None, {}), clock, 2, tiny=True)
    assert step.times == {}
    assert step.failure == "two runs of two steps under detmode gave other weights"


def test_full_sizes_are_those_of_the_names() -> None:
    """ResNet-50 and GPT-2 have the parameters that they are known for."""
    with torch.device("meta"):  # full sizes without memory
        made = models.Make(torch.device("meta"), tiny=False)
        resnet, gpt = (
            sum(each.numel() for each in make(made).model.parameters())
            for make in (models.resnet50, models.gpt)
        )
    assert resnet == 25_557_032
    assert gpt == 124_439_808
