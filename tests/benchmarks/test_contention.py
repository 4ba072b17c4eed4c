"""Indices of other contention have the form of the sample's, and the destinations they say."""

import pytest
import torch
from contention import INDICES, KINDS, contended

from detmode.table.samples import Maker
from detmode.verify.cases import call, cases, tensors_of

SAMPLES = {
    case.sample.op: case.sample
    for case in reversed(cases())
    if case.sample.op in INDICES
    and ("collisions" in case.sample.covers or case.sample.name == "add_elements")
}
VARIED = [pytest.param(op, id=op.partition("::")[2]) for op in INDICES]


def test_every_operator_is_one_of_the_table() -> None:
    """Operators with varied contention are substituted: a misspelt one would be varied nowhere."""
    assert SAMPLES.keys() == INDICES.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", VARIED)
def test_form_is_kept(op: str, kind: str) -> None:
    """Shape, strides and dtype of the index are the sample's, and so are the other arguments.

    ATen takes what is written, and adds something somewhere.
    """
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
    results = tensors_of(call(SAMPLES[op], after))
    assert any(result.isfinite().all() and result.any() for result in results)


def scattered(kind: str, rows: int, size: int) -> torch.Tensor:
    """Count the rows of such a scatter for each destination."""
    make = Maker(torch.float32)
    index = make.integers(0, size, rows, 1).expand(rows, 5)
    given = {"self": make.normal(size, 5), "dim": 0, "index": index, "src": make.normal(rows, 5)}
    found = contended("aten::scatter_add", given, kind)["index"]
    assert torch.equal(found, found[:, :1].expand(rows, 5))
    return found[:, 0].bincount(minlength=size)


def test_contention_is_that_of_the_kind() -> None:
    """Distinct meets none twice before each was met once; of Zipf's law the first is met most, and
    most are met seldom; one is a single destination. The message for another names the kinds.
    """
    assert scattered("distinct", 60, 20).tolist() == [3] * 20
    assert scattered("distinct", 15, 20).count_nonzero() == 15
    assert scattered("one", 60, 20).tolist() == [60, *[0] * 19]
    counts = scattered("zipf", 5000, 500)
    assert counts.argmax() == 0
    assert counts[0] > 10 * counts.float().mean()
    with pytest.raises(ValueError, match="one of distinct, zipf, one, not 'two'"):
        scattered("two", 6, 2)
