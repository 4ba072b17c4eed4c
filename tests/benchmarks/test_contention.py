"""Indices of other contention have the form of the sample's, and the destinations they say."""

from typing import Any

import contention
import pytest
import torch
from contention import INDICES, KINDS, contended

from detmode.sample import Maker
from detmode.verify.cases import cases

SAMPLES = {case.sample.op: case.sample for case in cases() if case.sample.op in INDICES}
VARIED = [pytest.param(op, id=op.partition("::")[2]) for op in INDICES]


def index_of(op: str, arguments: dict[str, Any]) -> torch.Tensor:
    """The index; of several that index together, the places that they mean."""
    index = arguments[INDICES[op].name]
    if not isinstance(index, list):
        return index
    shape = arguments["self"].shape
    place = torch.zeros_like(index[0])
    for size, part in zip(shape, index):
        place = place * size + part
    return place


def test_every_operator_is_one_of_the_table() -> None:
    """What is varied is substituted: a misspelt operator would be varied nowhere."""
    assert SAMPLES.keys() == INDICES.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", VARIED)
def test_form_is_kept(op: str, kind: str) -> None:
    """Shape, strides and dtype of the index are the sample's, and so are the other arguments."""
    before = SAMPLES[op].arguments(torch.float32)
    after = contended(op, before, kind)
    assert after.keys() == before.keys()
    name = INDICES[op].name
    assert all(after[other] is before[other] for other in before if other != name)
    pairs = [(before[name], after[name])]
    if isinstance(before[name], list):
        pairs = list(zip(before[name], after[name], strict=True))
    for old, new in pairs:
        assert (new.dtype, new.shape, new.stride()) == (old.dtype, old.shape, old.stride())


def scatter(rows: int, size: int) -> dict[str, Any]:
    make = Maker(torch.float32)
    index = make.integers(0, size, rows, 1).expand(rows, 5)
    return {"self": make.normal(size, 5), "dim": 0, "index": index, "src": make.normal(rows, 5)}


def test_distinct_goes_everywhere_equally_often() -> None:
    """No destination is met twice before each was met once."""
    index = contended("aten::scatter_add", scatter(60, 20), "distinct")["index"]
    assert torch.equal(index[:, 0].bincount(minlength=20), torch.full((20,), 3))
    assert torch.equal(index, index[:, :1].expand(60, 5))
    index = contended("aten::scatter_add", scatter(15, 20), "distinct")["index"]
    assert len(index[:, 0].unique()) == 15


def test_one_is_a_single_destination() -> None:
    """All of them meet."""
    assert not contended("aten::scatter_add", scatter(60, 20), "one")["index"].any()


def test_zipf_has_few_favourites() -> None:
    """The first is met most, and most are met seldom."""
    counts = contended("aten::scatter_add", scatter(5000, 500), "zipf")["index"][:, 0].bincount()
    assert counts.argmax() == 0
    assert counts[0] > 10 * counts.float().mean()


def test_several_indices_mean_distinct_places_together() -> None:
    """Two indices of a matrix address its elements, not its rows."""
    make = Maker(torch.float32)
    arguments = {"self": make.normal(6, 7), "indices": [make.integers(0, 6, 42)] * 2}
    arguments |= {"values": make.normal(42), "accumulate": True}
    found = contended("aten::index_put", arguments, "distinct")
    assert sorted(index_of("aten::index_put", found).tolist()) == list(range(42))


def test_unknown_kind_is_refused() -> None:
    """The message names the kinds."""
    with pytest.raises(ValueError, match="one of distinct, zipf, one, not 'two'"):
        contention.contended("aten::scatter_add", scatter(6, 2), "two")
