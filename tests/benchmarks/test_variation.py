"""Results are told apart, and what was counted is kept and said."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import variation
from variation import NOT_MEASURED, Line, Results, measure

from detmode import DeterministicMode
from detmode.process.torch_settings import deterministic_flag
from detmode.table.maker import Maker
from detmode.table.samples import Sample
from detmode.verify.cases import Case, call


def results(gpu: str = "Some GPU", *lines: Line) -> Results:
    return Results({"gpu": gpu, "date": "2026-11-21", "torch": "2.11.0"}, list(lines))


def case(op: str, make: Callable[[Maker], dict[str, Any]]) -> Case:
    return Case("family", Sample(name="n", op=op, make=make), torch.float32, None)


def test_results_are_counted() -> None:
    """A result that alternates counts twice, one that never varies once, in any of its tensors.

    Results are told apart by their bits, a zero's sign included.
    """
    numbers = itertools.count()
    values = torch.zeros(100)

    def varies(other_value: float) -> tuple[torch.Tensor, torch.Tensor]:
        other = values.clone()
        other[7] = other_value if next(numbers) % 2 else 0.0
        return values, other

    assert variation.count_results(lambda: varies(1.0), 10, "cpu") == 2
    assert variation.count_results(lambda: varies(-0.0), 10, "cpu") == 2
    assert variation.count_results(lambda: values, 10, "cpu") == 1


def test_aten_is_repeated_with_the_flag_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen alone runs, as often as asked for, also where an operator writes to its arguments."""
    seen = []

    def watched(sample: Sample, arguments: dict[str, Any]) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return call(sample, arguments)

    monkeypatch.setattr(variation, "call", watched)
    for op in ("aten::add.Tensor", "aten::add_.Tensor"):
        pair = case(op, lambda m: {"self": m.tensor([1.0]), "other": m.tensor([3.0])})
        with deterministic_flag(True):
            line = measure(pair, 20, 60.0, "cpu")
        assert line == Line("family", op, "n", "float32", 20, 1, 1)
    # Twice to know how long it takes, then idle and busy.
    assert seen == [False] * 2 * (2 + 20 + 20)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """A run with the same provenance goes on with the file; another one is refused."""
    line = Line("family", "aten::neg", "n", "float32", 100, 3, 5)
    results("NVIDIA H100 80GB HBM3", line).write(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == "nvidia-h100-80gb-hbm3-2026-11-21.json"
    again = results("NVIDIA H100 80GB HBM3")
    again.resume(tmp_path)
    assert again.lines == [line]
    other = results("NVIDIA H100 80GB HBM3")
    other.provenance["commit"] = "other"
    with pytest.raises(ValueError, match="is of another commit or machine"):
        other.resume(tmp_path)


def test_sentences(tmp_path: Path) -> None:
    """A family is said to vary in so many inputs on each GPU, of which the last results count."""
    lines = (
        Line("family", "a", "one", "float32", 100, 1, 57),
        Line("family", "a", "two", "float32", 100, 2, 1),
        Line("family", "b", "three", "float32", 100, 1, 1),
        Line("family", "b", "four", "float32", note="no kernel"),
        Line("other", "c", "five", "float32", 40, 1, 1),
    )
    results("Some GPU", lines[1]).write(tmp_path)
    found = results("Some GPU", *lines)
    found.provenance["date"] = "2026-11-22"
    found.write(tmp_path)
    committed = variation.committed(tmp_path)
    assert variation.documented("family", committed) == (
        "ATen on Some GPU: varied in 2 of 3 inputs, up to 57 results in 100 repeats "
        "(PyTorch 2.11.0)."
    )
    assert variation.documented("other", committed) == (
        "ATen on Some GPU: varied in 0 of 1 inputs in 40 repeats (PyTorch 2.11.0)."
    )
    assert variation.documented("third", committed) == NOT_MEASURED


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the GPU that is there instead")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says what is missing."""
    assert variation.main([]) == 2
    assert "cannot be repeated: PyTorch" in capsys.readouterr().err


@pytest.mark.cuda
def test_an_atomic_sum_varies_on_a_gpu(tmp_path: Path) -> None:
    """The command counts more than one result of a sum that is known to vary, and one of ours."""
    index = torch.zeros(1 << 20, dtype=torch.long, device="cuda")
    source = torch.randn(1 << 20, device="cuda")
    start = torch.zeros(1, device="cuda")

    def run() -> torch.Tensor:
        return start.index_add(0, index, source)

    load = variation.Load()
    assert variation.count_results(run, 100, "cuda", load) > 1
    with DeterministicMode():
        assert variation.count_results(run, 100, "cuda", load) == 1
    assert variation.main(["--family", "put", "--repeats", "3", "--output", str(tmp_path)]) == 0
    (found,) = variation.committed(tmp_path)
    assert {line.family for line in found.lines} == {"put"}
