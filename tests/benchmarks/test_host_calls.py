"""The benchmarks of the host's time of whole substituted calls, and of whole steps."""

from types import ModuleType

import host_calls
import host_steps
import pytest
import torch

from detmode import DeterministicMode
from detmode.cuda import device, host, native
from tests.shared import needs

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for the driver")


def test_every_call_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """All calls are substituted, timed and judged, without compiling or launching anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "compile", lambda *_: pytest.fail("something is compiled"))
        host_calls.main(["--turns", "1", "--rounds", "1", "--calls", "1"])
    lines = capsys.readouterr().out.splitlines()[2:-1]
    assert [line.partition("  ")[0] for line in lines] == [
        f"aten::{name}" for name in host_calls.CALLS
    ]
    assert all(line.split()[-2] in ("met", "missed") for line in lines)
    assert all(float(line.split()[-1]) > 0 for line in lines)
    assert not device._kernels


@needs.compiler
@pytest.mark.skipif(native.problem() is not None, reason="the player in C++ cannot run here")
@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        (host_calls, ["--turns", "1", "--rounds", "1", "--calls", "2", "--only", "cumsum"]),
        (host_steps, ["--rounds", "1", "--steps", "2", "--only", "recommender"]),
    ],
    ids=["calls", "steps"],
)
def test_the_player_makes_calls_where_it_is_asked_to(
    benchmark: ModuleType, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is built, too: without ``--native`` the times are those of plans in Python."""
    monkeypatch.setenv(native.VARIABLE, "1")
    native.build()
    player = native.player()
    counts = [player.dm_replayed()]
    for more in [], ["--native"]:
        benchmark.main([*options, *more])
        counts.append(player.dm_replayed())
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize(("microseconds", "verdict"), [(20.0, "met"), (20.1, "missed")])
def test_a_target_is_met_or_missed(microseconds: float, verdict: str) -> None:
    """Up to the target it is met."""
    assert host_calls._judged(microseconds, 20.0)[2] == verdict


@pytest.mark.usefixtures("clock")
def test_calls_are_launched_again_afterwards() -> None:
    """Kernels run, as before, once the benchmark is over."""
    with host_calls.without_launches():
        pass
    with DeterministicMode(simulate="cuda"):
        assert torch.equal(torch.ones(5).cumsum(0), torch.arange(1.0, 6.0))
