"""Every substitute gives the bits that it gave when they were last decided on."""

import pytest

from detmode.table.rule_table import resolve
from detmode.verify.cases import matching_row
from tests.shared import digests, needs, selection

FAMILIES = sorted({name.partition(" ")[0] for name in digests.pinned()} & {*selection.families()})


@needs.compiler
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_those_of_the_last_commit(family: str) -> None:
    """A refactoring, or a faster way, changes no bit; what does is decided, and said to users."""
    now, pinned = digests.found(family), digests.pinned()
    changed = [name for name in now if name in pinned and now[name] != pinned[name]]
    assert not changed, (
        f"the bits of {', '.join(changed)} are others than those in tests/expect/digests.txt. "
        "Programs that run today will have other results: if that is decided, write the digests "
        "with `python tools/write_expected.py digests` and say it in CHANGELOG.md"
    )


def test_every_substitute_is_pinned() -> None:
    """Each operator with a substitute has a digest, but for rows that this PyTorch alone has."""
    pinned = {*digests.pinned(), *digests.LEFT_OUT}
    missing = set()
    for case in digests.small_cases():
        row = matching_row(case.sample, case.dtype)
        assert row is not None
        if f"{case.family} {case.sample.op}" not in pinned and row.rule.until is None:
            missing.add(f"{case.family} {case.sample.op}")
    assert not missing, (
        f"python tools/write_expected.py digests writes the digests of {sorted(missing)}"
    )
    assert set(digests.LEFT_OUT).isdisjoint(digests.pinned())
    assert all(resolve(name.partition(" ")[2]) is not None for name in digests.pinned())
