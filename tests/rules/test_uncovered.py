"""The ledger of what is known to vary and is not substituted; it only shrinks."""

from detmode.table.rule import Refuse
from tests.shared import table_facts as facts

LEDGER = facts.TESTS / "expect" / "uncovered.txt"


def uncovered() -> set[str]:
    """One line for each row that refuses: ``op | when | alert``."""
    lines = set()
    for row in facts.rows():
        if isinstance(row.rule.action, Refuse):
            fields = row.rule.as_text()
            versions = [f"{name} {fields[name]}" for name in ("since", "until") if fields[name]]
            alert = fields["alert"] or "silent"
            lines.add(" | ".join([row.rule.op, str(row.rule.when), ", ".join([alert, *versions])]))
    return lines


def test_ledger_is_the_table() -> None:
    """tests/expect/uncovered.txt lists exactly the rows that refuse, sorted."""
    text = [line for line in LEDGER.read_text().splitlines() if not line.startswith("#")]
    expected = sorted(uncovered())
    new, gone = sorted(set(expected) - set(text)), sorted(set(text) - set(expected))
    assert not gone, (
        f"tests/expect/uncovered.txt: no row refuses {gone[0]!r} any more: remove the line"
    )
    assert not new, (
        f"tests/expect/uncovered.txt: {new[0]!r} is not in the ledger, which only shrinks: write a "
        "substitute, or add the line if the operator was unknown until now"
    )
    assert text == expected, "tests/expect/uncovered.txt: sort its lines"
