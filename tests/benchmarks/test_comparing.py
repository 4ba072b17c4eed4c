"""The benchmark of comparing long recordings, with short ones."""

import re

import comparing
import pytest


def test_it_prints_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Both runs have the calls asked for and part; the time and memory are those of diff."""
    comparing.main(["--calls", "1000"])
    found, figures, *_ = capsys.readouterr().out.splitlines()
    same, differ = re.findall(r"(\d+) (?:calls are the same|differ)", found)
    assert int(same) > 500
    assert int(differ) > 0
    calls = re.findall(r"1,\d{3}(?= and|  ?calls)", figures)
    assert len(calls) == 2
    seconds, megabytes = re.findall(r"([\d.]+) (?:s with|MB)", figures)
    assert 0.1 < float(seconds) < 300
    assert 100 < float(megabytes) < 2000
