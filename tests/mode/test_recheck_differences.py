"""``recheck``: what differs is found, soon, and named; all else is not blamed."""

import logging
import pickle
import random
import statistics
from bisect import bisect_left
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import detmode
from detmode import DeterministicMode, RecheckError, allow
from detmode.mode.recheck import WINDOW, Recheck
from tests.shared.varying import FAULTY, STATE, count, counts, faulty, shape


class Faults(TorchDispatchMode):
    """Flips a bit in one result in ``FAULTY``, as faulty hardware would; counts the calls."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.calls, self.flipped = 0, 0
        self._random = random.Random(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        if func is torch.ops.aten.mul.Tensor and self._random.random() * FAULTY < 1:
            self.flipped += 1
            result.view(torch.int32)[0] ^= 1 << self._random.randrange(32)
        return result


pytestmark = pytest.mark.usefixtures("fresh_operators")


def test_a_difference_is_told_whole(line):
    """The error has operator, line, rank, number and both digests, and the remedy works."""

    def program():
        torch.ones(2).neg()
        count(torch.ones(3))  # here

    with pytest.raises(RecheckError) as raised, DeterministicMode(recheck=1.0):
        program()
    (call,) = raised.value.calls
    assert (call.overload, call.number, call.module) == ("detmode_varying::count.default", 4, None)
    assert [call.site] == line(program)
    (one, other), text = call.digests["output 0"], str(raised.value)
    assert one != other
    assert {len(one), len(other)} == {32}
    for part in (call.overload, call.site, one, other, "call 4,", "no rule lists it"):
        assert part in text
    assert 'detmode.allow("detmode_varying::count")' in text
    assert pickle.loads(pickle.dumps(raised.value)).calls == raised.value.calls
    with DeterministicMode(recheck=1.0) as mode, allow("detmode_varying::count"):
        count(torch.ones(3))
    with DeterministicMode(recheck=1.0, overrides={"detmode_varying::count": "allow"}):
        count(torch.ones(3))
    assert counts(mode)["made_twice"] == counts(mode)["calls"] - 1


def test_a_window_ends_the_wait():
    """A difference is raised after 32 calls made twice, where the program goes on for longer."""
    made = 0
    with pytest.raises(RecheckError), DeterministicMode(recheck=1.0):
        x = count(torch.ones(3))
        while made < 10 * WINDOW:
            made += 1
            x = x.neg()
    assert made == WINDOW - 3  # ones, count and the addition in it came before


def test_another_error_goes_on(caplog):
    """An error that ends the block is raised, and the difference logged."""
    with pytest.raises(KeyError, match="own"), DeterministicMode(recheck=1.0):
        count(torch.ones(3))
        raise KeyError("own")
    assert "detmode_varying::count.default gave other bits" in caplog.text


def test_other_shapes_differ():
    """Results of other shapes are not the same, and the error says which."""
    raises = pytest.raises(RecheckError, match=r"float32\[1\] then \w+ float32\[2\]")
    with raises, DeterministicMode(recheck=1.0):
        shape(torch.ones(3))


def test_known_to_vary():
    """Calls that a rule warns about are not compared; under warn_only the others still are."""
    index = torch.tensor([1, 1])
    options = {"simulate": "cuda", "substitute": False, "warn_only": True, "recheck": 1.0}
    with pytest.warns(detmode.DeterminismWarning), DeterministicMode(**options) as mode:
        torch.zeros(3).put_(index, torch.ones(2), accumulate=True)
        before = counts(mode)["made_twice"]
        torch.ones(3).neg()
    assert counts(mode)["made_twice"] == before + 2
    assert sum(row.count for row in mode.records if row.action == "warn") == 1


def test_a_flipped_bit_is_found():
    """With one faulty result in 1,000 and every call made twice, in the window of the fault."""
    faults, x = Faults(seed=2), torch.ones(4)
    raises = pytest.raises(RecheckError, match=r"aten::mul\.Tensor")
    with raises, faults, DeterministicMode(recheck=1.0):
        for _ in range(3 * FAULTY):
            x = x * 1.0
    assert faults.flipped == 1
    assert 0 < faults.calls < 2 * FAULTY


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, y: x.mul_(y), "mutated self"),
        (lambda x, y: torch.mul(x, y, out=x), "mutated out"),
        (lambda x, y: torch._foreach_mul_([y, x], [y, y]), r"mutated self\[1\]"),
    ],
    ids=["in_place", "out", "list"],
)
def test_what_is_written_is_compared(call, name):
    """A flipped bit in what a call of ATen writes is found, by the name of the argument."""

    class Flips(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            x.view(torch.int32)[0] ^= 1
            return result

    x, y = torch.ones(4), torch.ones(4)
    with pytest.raises(RecheckError, match=name), Flips(), DeterministicMode(recheck=1.0):
        call(x, y)


def calls_until_found(one_in: int, rate: float, seed: int) -> int:
    """Return the number of the first call that is found of an operator that rarely varies."""
    STATE.update(one_in=one_in, random=random.Random(seed))
    torch.manual_seed(seed)
    x = torch.ones(2)
    received: list[float] = []
    with pytest.raises(RecheckError) as raised, DeterministicMode(recheck=rate) as mode:
        while True:
            # What the operator calls is received as well.
            received.append(counts(mode)["calls"])
            faulty(x)
    return bisect_left(received, raised.value.calls[0].number)


@pytest.mark.parametrize(
    ("one_in", "trials"), [(20, 25), pytest.param(10_000, 8, marks=pytest.mark.thorough)]
)
def test_an_unknown_operator_is_found(one_in, trials):
    """By half of the calls, it takes so many: either of the two may be the one that differs."""
    found = [calls_until_found(one_in, 0.5, seed) for seed in range(trials)]
    assert statistics.mean(found) == pytest.approx(one_in, rel=3 / trials**0.5)


def test_a_rank_is_named(monkeypatch):
    """The error says on which rank; ranks sample other calls, a rank always the same ones."""

    def sample(rank, seed):
        monkeypatch.setenv("RANK", rank)
        torch.manual_seed(seed)
        recheck, numbers = Recheck(0.01, logging.getLogger("detmode")), []
        for _ in range(3):
            recheck.left = 0
            numbers.append(recheck.sample())
        return numbers

    monkeypatch.setenv("WORLD_SIZE", "4")
    samples = [tuple(sample(*each)) for each in (("0", 0), ("1", 0), ("0", 1), ("0", 0))]
    assert samples[0] == samples[3]
    assert len(set(samples)) == 3
    monkeypatch.setenv("RANK", "3")
    raises = pytest.raises(RecheckError, match="call 2 of rank 3")
    with raises as raised, DeterministicMode(recheck=1.0):
        count(torch.ones(3))
    assert raised.value.calls[0].rank == 3
