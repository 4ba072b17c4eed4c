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


def test_share_is_of_the_copys_bandwidth() -> None:
    """The digest reads its bytes once; the share is of what a copy reads and writes."""
    (first, *_) = recording.digests(Clock(), [1 << 12], 3, bandwidth=2e9)
    assert first.share == pytest.approx((1 << 12) / first.time.median / 2e9)
    assert not first.beyond_cache
    assert first.cells(on_gpu=True)[-1] == "in cache"


def test_target_is_judged_on_a_gpu_beyond_its_cache_only() -> None:
    """On the host, and in the cache, no verdict is printed."""
    spread = Spread(1e-3, 1e-3, 1e-3, 2)
    kind = (1 << 20, torch.float32, "contiguous", spread, spread)
    for share, verdict in ((0.5, "met"), (0.49, "missed")):
        assert recording.Digested(*kind, share, True).cells(on_gpu=True)[-1] == verdict
        assert recording.Digested(*kind, share, True).cells(on_gpu=False)[-1] == ""
