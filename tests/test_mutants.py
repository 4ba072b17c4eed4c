"""The mutants of ``tools/mutants.py``, which ``tools/mutate.py`` makes."""

from collections import Counter

import mutate
import pytest
from mutants import MUTANTS, Mutant


def test_each_can_be_made():
    """The line that each mutant breaks is there, once, and there are 60 of them or more."""
    for mutant in MUTANTS:
        text = (mutate.ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.apply(text) != text
        for word in mutant.tests:
            file = word.partition("::")[0]
            assert word.startswith("-") or (mutate.ROOT / file).exists() or "/" not in word
    assert len(MUTANTS) >= 60
    assert max(Counter(MUTANTS).values()) == 1


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ("2 * 2 == 4", mutate.KILLED),
        ("2 * 1 == 2", mutate.SURVIVED),
        ("2 * 2 == 5", mutate.INVALID),
    ],
)
def test_outcomes(tmp_path, monkeypatch, capsys, claim, outcome):
    """Tests that fail kill a mutant, tests that pass do not, red ones prove nothing."""
    (tmp_path / "product.py").write_text("def times(a, b):\n    return a * b\n")
    left, _, right = claim.replace(" * ", ", ").partition(" == ")
    (tmp_path / "test_it.py").write_text(
        f"from product import times\ndef test_it():\n    assert times({left}) == {right}\n"
    )
    mutant = Mutant("product.py", "a * b", "a * b + (b > 1)", ("test_it.py",))
    monkeypatch.setattr(mutate, "MUTANTS", (mutant,))
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "COPIED", ())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    assert mutate.main(["-j", "1", "--limit", "60"]) == (outcome != mutate.KILLED)
    assert capsys.readouterr().out.startswith(outcome)
