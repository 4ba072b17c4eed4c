"""The benchmark of calls made twice, at a tiny size."""

import re

import pytest
import recheck


def test_share_of_a_step() -> None:
    """Every call is counted, and of them a share is made twice."""
    cost = recheck.Cost(seconds=2.0, calls=100, counting=4e-5, twice=8e-2)
    assert cost.share == pytest.approx(100 * (4e-5 + 8e-5) / 2)


@pytest.mark.thorough
def test_tiny_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A step has a row, with its calls, what making one twice costs, and the share."""
    recheck.main(["--quick", "--rounds", "2"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny"))
    calls, _, twice, share = map(float, re.findall(r"[\d.]+", row)[:4])
    assert calls > 100
    assert 10 < twice < 100_000
    assert share > 0
