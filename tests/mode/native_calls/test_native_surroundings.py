"""Transforms, tracers, subclasses, errors, forks and interrupts around the player's calls."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

from detmode.cuda import host
from tests.mode.native_calls.ways import actions, added, again, assert_same, convolved, data
from tests.process.test_setting import exit_code_of_child
from tests.shared.processes import run_forked


def fake():
    with torch._subclasses.FakeTensorMode() as mode:
        return tuple(added(*map(mode.from_tensor, data())).shape)


def in_inference_mode(function, *arguments):
    with torch.inference_mode():
        result = function(*arguments)
        assert result.is_inference()
    return result.clone()


def seeded(function):
    torch.manual_seed(0)
    return function()


def summed(x):
    return added(x, *data()[1:]).square().sum()


SURROUNDINGS = {
    "vmap": lambda: torch.func.vmap(added, (0, None, None))(torch.ones(2, 6, 3), *data()[1:]),
    "grad": lambda: torch.func.grad(summed)(data()[0]),
    "jvp": lambda: torch.func.jvp(summed, (data()[0],), (data()[0],)),
    "fake tensors": fake,
    "make_fx": lambda: make_fx(added, tracing_mode="fake")(*data()).code,
    "inference mode": lambda: in_inference_mode(added, *data()),
    "a subclass": lambda: added(TwoTensor(data()[0], data()[0]), *data()[1:]).b,
    "a parameter": lambda: added(torch.nn.Parameter(data()[0]), *data()[1:]).detach(),
    "an expanded tensor": lambda: added(torch.zeros(3).expand(6, 3), *data()[1:]),
    "no rows": lambda: added(torch.zeros(4, 3), torch.zeros(0).long(), torch.zeros(0, 3)),
    "no rows, converted": lambda: added(data()[0], torch.zeros(0).int(), torch.zeros(0, 3)),
    "a number": lambda: torch.index_add(data()[0], 0, *data()[1:], alpha=2.5),
    "conjugate views": lambda: torch.randn(3, dtype=torch.complex64).conj().cumsum(0),
    "in place": lambda: data()[0].index_add_(0, *data()[1:]),
    "in place, a view": lambda: data()[0][1:].index_add_(0, data(5)[1], data()[2]),
    "out": lambda: torch.index_add(*data()[:1], 0, *data()[1:], out=torch.empty(6, 3)),
    "shared memory": lambda: (lambda x: added(x, torch.tensor([0, 1, 1]), x[:3]))(data()[0]),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(added)(*data()),
    "double backward": lambda: torch.autograd.functional.hessian(summed, data()[0]),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings(name, ways):
    """Transforms, tracers, subclasses, views and variants give what they give without a plan."""

    def program():
        results = [seeded(SURROUNDINGS[name]) for _ in range(4)]
        assert_same(results[1:], results[:1] * 3)
        return results

    ways.same(program)


def convolved_with_an_error():
    with pytest.raises(RuntimeError, match="to have 1 channels"):
        convolved(torch.ones(2, 3, 6))


NATIVE_SURROUNDINGS = {
    "vmap": lambda: torch.func.vmap(convolved)(torch.ones(3, 2, 1, 6)),
    "grad": lambda: torch.func.grad(lambda x: convolved(x).sum())(torch.ones(2, 1, 6)),
    "jvp": lambda: torch.func.jvp(convolved, (torch.ones(2, 1, 6),), (torch.ones(2, 1, 6),)),
    "inference mode": lambda: in_inference_mode(convolved),
    "a subclass": lambda: convolved(TwoTensor(torch.ones(2, 1, 6), torch.ones(2, 1, 6))),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(convolved)(),
    "shared memory": lambda: (lambda x: F.conv1d(x, x[:1, :, :2]))(torch.ones(2, 1, 6)),
    "an error": convolved_with_an_error,
    "backward": lambda: convolved(torch.ones(2, 1, 6, requires_grad=True)).sum().backward(),
}


@pytest.mark.parametrize("name", NATIVE_SURROUNDINGS)
def test_native_calls_as_with_a_dispatch_mode(name, ways):
    """Transforms, subclasses and errors: row for row, count for count."""
    ways.as_with_a_dispatch_mode(lambda: again(NATIVE_SURROUNDINGS[name]))


@pytest.mark.parametrize(
    "turn_off", [torch._C._DisableTorchDispatch, torch._C.DisableTorchFunction]
)
def test_calls_that_modes_do_not_receive(turn_off, ways):
    """No plan is recorded of a call of which the recorder sees a part."""

    def program():
        results = []
        for seed in range(6):
            x, index, source = data(seed=seed)
            with turn_off():
                leaf = x.clone().requires_grad_()
                leaf.gather(0, x.argsort(0)[:4]).square().sum().backward()
                results += [added(x, index, source), leaf.grad]
        return results

    outcomes = [program()]
    ways.same(lambda: outcomes.append(program()) or outcomes[-1])
    assert all(map(torch.allclose, outcomes[-1], outcomes[0]))


ERRORS = {
    "a wrong shape": lambda: added(data()[0], data()[1], data()[2][:, :2]),
    "a wrong dtype": lambda: added(data()[0], data()[1], data()[2].double()),
    "an index out of range": lambda: added(data()[0], torch.full((5,), 6), data()[2]),
    "overlap": lambda: (lambda x: x.index_add_(0, torch.tensor([0, 1]), x[:2]))(data()[0]),
    "overlap in itself": lambda: torch.zeros(3).expand(6, 3).index_add_(0, *data()[1:]),
    "a number for a tensor": lambda: torch.index_add(1, 0, *data()[1:]),
    "a leaf in place": lambda: data()[0].requires_grad_().index_add_(0, *data()[1:]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, ways):
    """Errors are ATen's, by type and words; the right program then runs on."""

    def program():
        added(*data())
        texts = []
        for _ in range(3):
            with pytest.raises((RuntimeError, IndexError, TypeError)) as raised:
                ERRORS[name]()
            texts.append((raised.type, str(raised.value)))
        return texts, again(lambda: added(*data()))

    ways.same(program)
    assert ways.replayed


@pytest.mark.parametrize("number", [0, 1], ids=["plans", "player"])
def test_a_forked_child(number, ways):
    """It goes on with the plans, or the player, counts for itself, and ends."""
    arguments = data()
    with ways.block(number) as mode:
        expected = again(lambda: added(*arguments))

        def check():
            before = ways.replayed
            same = torch.equal(again(lambda: added(*arguments)), expected)
            return (
                same and (ways.replayed > before) == number and actions(mode) == [("substitute", 8)]
            )

        assert exit_code_of_child(check) == 0
        again(lambda: added(*arguments))
    assert actions(mode) == [("substitute", 8)]


class Interrupt(BaseException):
    """An error that a signal handler raises."""


def test_an_interrupt_in_a_replay(ways, monkeypatch):
    """It comes through, is counted as a call, and the next call is right."""
    launch_blocks = host.launch_blocks

    def interrupted(*args):
        monkeypatch.setattr(host, "launch_blocks", launch_blocks)
        raise Interrupt

    def call():
        return added(*data())

    with ways.by_player() as mode:
        expected = again(call)
        before = ways.replayed
        monkeypatch.setattr(host, "launch_blocks", interrupted)
        with pytest.raises(Interrupt):
            call()
        assert torch.equal(call(), expected)
        assert ways.replayed == before + 1
    assert actions(mode) == [("substitute", 6)]


ENDS = {
    "inside a block": "with mode:\n    use()\n    raise SystemExit(0)",
    "in a block that nobody leaves": "mode.__enter__()\nuse()",
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.usefixtures("player")
def test_the_end_of_a_program(name, tmp_path):
    """However it ends, the exit code is its own, and nothing is printed."""
    text = f"""
import torch
from detmode import DeterministicMode
mode = DeterministicMode(intercept="listed", simulate="cuda")
def use():
    x = torch.ones(3)
    for _ in range(20):
        x.index_add(0, torch.tensor([0, 1]), torch.ones(2))
{ENDS[name]}
"""
    ended = run_forked("-c", [[text]], tmp_path, timeout=100, DETMODE_NATIVE="1")
    assert (ended.returncode, ended.stderr) == (0, "")
