"""A substitute rejects what ATen rejects, with the same type of exception."""

import pytest

from detmode.verify.cases import Case, samples_of
from detmode.verify.claims import check_refused
from tests.shared import needs
from tests.shared.selection import Group, check_each, families, grouped

REFUSED = grouped(
    Case(family, sample, dtype, None)
    for family in families()
    for sample in samples_of(family).errors
    for dtype in sample.dtypes
)


@needs.compiler
@pytest.mark.parametrize("group", REFUSED, ids=str)
def test_rejected_as_by_aten(group: Group) -> None:
    """The family's ``errors`` raise the type of exception that ATen raises on the CPU."""
    check_each(group, lambda case: check_refused(case.family, case.sample, case.dtype))
