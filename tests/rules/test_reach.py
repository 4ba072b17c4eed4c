"""Every row is met by a sample of its family, for every dtype that the row asks for."""

import pytest

from detmode.table.rule import Substitute
from detmode.table.samples import COVERS
from detmode.verify.cases import samples_of
from tests.shared import table_facts as facts
from tests.shared.selection import families

EVERY_FAMILY = pytest.mark.parametrize("family", families())
SUBSTITUTING = [
    name
    for name, family in families().items()
    if any(isinstance(rule.action, Substitute) for rule in family.RULES)
]


@EVERY_FAMILY
def test_rows_are_met(family: str) -> None:
    """Some sample meets each row, in a version and setting in which it holds."""
    for row in facts.rows_of(family):
        samples = facts.samples_in(row)
        assert samples, (
            f"{facts.family_file(row, 'samples.py')}: no sample meets {facts.label(row.rule)}; "
            "add one that does, or remove the row if none can"
        )
        missing = [dtype for dtype in row.rule.when.dtypes if dtype not in {d for _, d in samples}]
        assert not missing, (
            f"{facts.family_file(row, 'samples.py')}: no sample meets {facts.label(row.rule)} "
            f"in {missing[0]}; add the dtype to a sample's dtypes, or take it out of the row"
        )


@pytest.mark.parametrize("family", SUBSTITUTING)
def test_substitutes_meet_hard_inputs(family: str) -> None:
    """The samples that meet a substitute show collisions, emptiness, strides and odd sizes."""
    shown = {
        item
        for row in facts.rows_of(family)
        if isinstance(row.rule.action, Substitute)
        for sample, _ in facts.samples_in(row)
        for item in sample.covers
    }
    excused = samples_of(family).not_applicable
    missing = [item for item in COVERS if item not in shown and item not in excused]
    assert not missing, (
        f"detmode/rules/{family}/samples.py: no sample with a substitute covers {missing[0]!r}; "
        "add one with covers=(...), or say in not_applicable why it does not apply"
    )


@EVERY_FAMILY
def test_samples_bind(family: str) -> None:
    """A sample gives arguments that the schema has, and all that have no default."""
    for sample in samples_of(family).cases:
        func = facts.resolve(sample.op)
        if func is None:
            continue
        given = set(sample.arguments(sample.dtypes[0]))
        schema = func._schema.arguments
        unknown = given - {argument.name for argument in schema}
        needed = {argument.name for argument in schema if not argument.has_default_value()}
        needed -= {argument.name for argument in schema if argument.is_out}
        assert not unknown | (needed - given), (
            f"detmode/rules/{family}/samples.py: {sample.op} {sample.name}: "
            f"unknown {sorted(unknown)}, missing {sorted(needed - given)}"
        )
