"""The examples in the docstrings of public names."""

import doctest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

import detmode
from tests.shared import needs

pytestmark = [pytest.mark.usefixtures("nothing_left_behind"), needs.compiler]


def documented() -> Iterator[tuple[str, Any]]:
    """The public classes and functions of detmode, by name."""
    for module in (detmode, detmode.distributed, detmode.testing):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and value.__module__.startswith("detmode."):
                yield name, value
    yield "conditions", detmode.conditions.Condition
    yield "doctor", detmode.doctor.findings


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process, as a program has it that torchrun starts."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    "value", [pytest.param(value, id=name) for name, value in dict(documented()).items()]
)
def test_examples(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each public docstring has an example, which prints what stands below it."""
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    names = {"detmode": detmode, "torch": torch}
    parser, name = doctest.DocTestParser(), value.__name__
    example = parser.get_doctest(value.__doc__ or "", names, name, value.__module__, None)
    assert example.examples, "it has no example"
    printed: list[str] = []
    with warnings.catch_warnings(), torch.random.fork_rng():
        doctest.DocTestRunner(optionflags=flags).run(example, out=printed.append)
    assert not printed, "".join(printed)
