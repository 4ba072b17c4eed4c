"""The benchmark of recordings, at tiny sizes and through the host's clock."""

import re

import pytest
import recording
import torch
from timing import Clock


@pytest.mark.skipif(torch.cuda.is_available(), reason="times the GPU that is there instead")
def test_digests_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """A word on the missing GPU, and a row for each size, dtype and layout."""
    recording.main(["--rounds", "2", "--largest", "20000"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("No GPU here")
    rows = [line for line in lines if "contiguous" in line or "transposed" in line]
    assert len(rows) == 2 * 2 * 2
    assert {" ".join(row.split()[:2]) for row in rows} == {"1 KiB", "16 KiB"}


@pytest.mark.thorough
def test_long_recordings_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Both runs have the calls asked for and diverge; the time and memory are those of diff."""
    recording.main(["--calls", "300"])
    found, figures, *_ = capsys.readouterr().out.splitlines()
    same, differ = re.findall(r"(\d+) (?:calls are the same|differ)", found)
    assert int(same) > 150
    assert int(differ) > 0
    calls = re.findall(r"3\d{2}(?= and|  ?calls)", figures)
    assert len(calls) == 2
    seconds, megabytes = re.findall(r"([\d.]+) (?:s with|MB)", figures)
    assert 0.1 < float(seconds) < 300
    # At least this process's, of which the measured one began as a copy.
    assert float(megabytes) > 100


def test_target_is_judged_on_a_gpu_beyond_its_cache_only() -> None:
    """On the host, and of what the cache holds, no verdict is printed."""
    clock = Clock()
    clock.cache_bytes = 1000
    for device, n_bytes, share, said in (
        ("cuda", 1001, 0.5, "met"),
        ("cuda", 1001, 0.49, "missed"),
        ("cuda", 1000, 0.5, ""),
        ("cpu", 1001, 0.5, ""),
    ):
        clock.device = torch.device(device)
        assert recording.verdict(share, n_bytes, clock) == said
