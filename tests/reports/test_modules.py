"""The modules of a row as one short text."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detmode.reports.modules import pattern_of

PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], None),
        (["Net.head"], "Net.head"),
        ([f"Net.layers.{i}" for i in range(60)], "Net.layers.*"),
        ([f"Net.blocks.{i}.attn" for i in range(2)], "Net.blocks.*.attn"),
        (["Net.a.0.conv", "Net.b.1.conv"], "Net.*.*.conv"),
        (["Net", "Net.head"], "Net, Net.head"),
        (["Net.net.0", "Net.net.1", "Net.net.2.0"], "Net.net.*, Net.net.2.0"),
        (["Net.a", "Loss"], "Net.a, Loss"),
        (["A", "B", "C", "D", "E", "E.x"], "A, B, C and 3 more"),
    ],
)
def test_pattern(paths, expected):
    """Paths of one root and one length are one pattern, others are listed, to the third."""
    assert pattern_of(paths) == expected


@given(st.lists(PATHS, min_size=1))
def test_every_path_is_meant(paths):
    """Each path is one that a pattern matches name by name, unless patterns are left out."""
    text = pattern_of(paths)
    if " more" in text:
        return
    patterns = [pattern.split(".") for pattern in text.split(", ")]
    for names in (path.split(".") for path in paths):
        assert any(
            len(names) == len(pattern) and all(map(fnmatchcase, names, pattern))
            for pattern in patterns
        )
