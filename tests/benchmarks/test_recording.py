"""The benchmark of recording, at tiny sizes and through the host's clock."""

import pytest
import recording
import torch
from timing import Clock, Spread


def test_it_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """What a call costs, a word on the missing GPU, and a row for each size, dtype and layout."""
    recording.main(["--rounds", "2", "--batches", "1", "--largest", "20000"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("detmode.record ") for line in lines) == 1
    if not torch.cuda.is_available():
        assert sum(line.startswith("No GPU here") for line in lines) == 1
    rows = [line for line in lines if "contiguous" in line or "transposed" in line]
    assert len(rows) == 2 * 2 * 2
    assert {" ".join(row.split()[:2]) for row in rows} == {"1 KiB", "16 KiB"}


def test_share_is_of_the_copys_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest reads its bytes once; the share is of what a copy reads and writes."""
    millisecond = Spread(1e-3, 1e-3, 1e-3, 3)
    spreads = dict.fromkeys(("digest", "copy"), millisecond)
    monkeypatch.setattr(recording, "interleaved", lambda *_: spreads)
    (first, *_) = recording.digests(Clock(), [1 << 12], 3, bandwidth=8.192e6)
    assert first[-2:] == ("50.0 %", "in cache")


def test_target_is_judged_on_a_gpu_beyond_its_cache_only() -> None:
    """On the host, and in the cache, no verdict is printed."""
    for share, said in ((0.5, "met"), (0.49, "missed")):
        assert recording.verdict(share, beyond_cache=True, on_gpu=True) == said
        assert recording.verdict(share, beyond_cache=True, on_gpu=False) == ""
        assert recording.verdict(share, beyond_cache=False, on_gpu=True) == "in cache"
