"""A family's samples check themselves, and make the variants that a case asks for."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch

from detmode.table.inputs import special
from detmode.table.samples import Maker, Sample, Samples, sample

case = partial(sample, op="aten::cumsum")


def plane(m: Maker) -> dict[str, Any]:
    return {"self": m.normal(2, 3, 4, 5), "dim": 1}


PLANE = case("plane", plane, "odd_sizes")
GOOD = {"cases": (PLANE,)}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"cases": ()}, ValueError, "cases is empty"),
        ({"cases": [PLANE]}, TypeError, "cases is .*; give a tuple of Sample"),
        ({"bench": ("plane",)}, TypeError, "bench is .*; give a tuple of Sample"),
        ({"cases": (PLANE, PLANE)}, ValueError, "cases has .*'plane', 'cuda'.* twice"),
        ({"errors": (PLANE, PLANE)}, ValueError, "errors has .* twice"),
        ({"not_applicable": {"empty": ""}}, TypeError, "not_applicable is .*; give a dict of reas"),
        ({"not_applicable": {"emtpy": "none"}}, ValueError, "not_applicable names 'emtpy', which"),
        ({"not_applicable": {"odd_sizes": "none"}}, ValueError, "'odd_sizes', which is there"),
        ({"references": {"aten::cumsum": "cumsum"}}, TypeError, "references is .*of functions"),
        ({"references": {"aten::cumsun": max}}, ValueError, "references names 'aten::cumsun'"),
        ({"assignments": {"aten::put": max}}, ValueError, "assignments names 'aten::put'"),
        ({"unlike_cpu": {"plain": "no"}}, ValueError, "unlike_cpu names 'plain', which cases do"),
        (
            {"errors": (dataclasses.replace(PLANE, op="aten::put"),)},
            ValueError,
            "errors names 'aten::put', which cases",
        ),
    ],
)
def test_faults_are_named(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    """Entries that do not go together raise, and the message names the field and the entry."""
    Samples(**GOOD)
    with pytest.raises(error, match=message):
        Samples(**(GOOD | fields))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"covers": ("strides",)}, ValueError, r"Sample\('plane'\): covers \['strides'\]; known"),
        ({"device": "gpu"}, ValueError, r"device \['gpu'\]; known are"),
        ({"variants": ("transposed",)}, ValueError, r"variants \['transposed'\]; known are"),
        ({"dtypes": ()}, TypeError, "give a tuple of torch.dtype"),
        ({"make": {"dim": 1}}, TypeError, "give a function of a Maker"),
    ],
)
def test_faults_of_one(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    """A sample names itself and what it does not know."""
    with pytest.raises(error, match=message):
        dataclasses.replace(PLANE, **fields)


def made(case: Sample) -> dict[str, Any]:
    return case.arguments(torch.float32)


def test_variants_follow_their_case() -> None:
    """Each is the same call in another form, under a name of its own, and covers what it shows."""
    variants = ("non_contiguous", "channels_last", "shifted", "negative_dim", "cpu")
    found = Samples(cases=(dataclasses.replace(PLANE, variants=variants),)).cases
    assert [each.name for each in found] == ["plane", *(f"plane_{name}" for name in variants)]
    assert [each.covers[1:] for each in found] == [
        *((), ("non_contiguous",), ("channels_last",), (), ("negative_dim",), ()),
    ]
    assert [each.device for each in found] == ["cuda"] * 5 + ["cpu"]
    plain, back, last, shifted, negative, _ = map(made, found)
    for other in (back, last, shifted, negative):
        assert torch.equal(other["self"], plain["self"])
    assert back["self"].stride() == (1, 2, 6, 24)
    assert last["self"].is_contiguous(memory_format=torch.channels_last)
    assert shifted["self"].storage_offset() == 1
    assert negative["dim"] == -3


def test_a_variant_changes_something() -> None:
    """Of a row nothing can be stored back to front: to claim so would cover nothing."""
    row = case("row", lambda m: {"self": m.normal(9), "dim": 0})
    (_, back) = dataclasses.replace(row, variants=("non_contiguous",)).expanded()
    with pytest.raises(ValueError, match="back_to_front leaves every tensor as it is"):
        made(back)


def test_but_changes_arguments() -> None:
    """An argument is replaced, or made of the one that was there."""
    found = PLANE.but("wide", "collisions", dim=2, self=torch.Tensor.double)
    assert (found.name, found.covers, found.op) == ("wide", ("collisions",), PLANE.op)
    assert made(found)["dim"] == 2
    assert torch.equal(made(found)["self"], made(PLANE)["self"].double())


def test_special_values() -> None:
    """As many as there is room for, each step elements apart, and nothing else changes."""
    before = made(PLANE)["self"].flatten()
    found = special(made(PLANE), "self", 40)["self"].flatten()
    assert found[0] == 1.0
    assert found[40].isnan()
    assert str(found[80].item()) == "-0.0"
    rest = torch.ones(120, dtype=torch.bool)
    rest[::40] = False
    assert torch.equal(found[rest], before[rest])
