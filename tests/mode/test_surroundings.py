"""Others that act on a program: transforms, threads, other modes, workers, compilers."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from detmode import DeterminismWarning, DeterministicMode, allow
from detmode.mode.deterministic_mode import current_mode
from tests.shared.programs import (
    Seen,
    actions,
    cumsum,
    enlarged,
    image,
    in_another_thread,
    index_add,
    put,
)

aten = torch.ops.aten
SCAN = ("aten::cumsum.default", "native")
ENLARGED = ("aten::upsample_bilinear2d_backward.default", "substitute")
ADDED = ("aten::index_add.default", "substitute")
ADDED_IN_PLACE = ("aten::index_add_.default", "substitute")
ONES, INDEX = torch.ones(3), torch.tensor([0, 0])


def written(x):
    return x.index_add_(0, INDEX, torch.ones(2)).cumsum(0)


def without_gradients(context):
    def program():
        with context():
            return written(torch.zeros(3))

    return program


def gradient(function):
    """Of the sum of a function of an image."""

    def program():
        x = image()
        function(x).sum().backward()
        return x.grad

    return program


def saved_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        return enlarged(x) * enlarged(x)


def hooked(x):
    seen = []
    module = torch.nn.Upsample(scale_factor=2, mode="bilinear")
    module.register_forward_hook(lambda *args: seen.append("forward"))
    module.register_full_backward_hook(lambda *args: seen.append("backward"))
    module(x).sum().backward()
    assert seen == ["forward", "backward"]
    return x


def compiled(x):
    torch.compiler.reset()
    return torch.compile(torch.nn.Upsample(scale_factor=2, mode="bilinear"), backend="eager")(x)


def checked(x):
    assert torch.autograd.gradcheck(enlarged, (x.detach().double().requires_grad_(),))
    return enlarged(x)


def trained():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def recomputed(use_reentrant):
    """Once more in backward: an enlarged scan in a checkpoint."""
    return gradient(
        lambda x: checkpoint(lambda t: enlarged(t.cumsum(2)).sin(), x, use_reentrant=use_reentrant)
    )


def watched():
    """By anomaly detection and a profiler."""
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        torch.autograd.detect_anomaly(),
        # PyTorch 2.11 warns of cycles without acc_events.
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profile,
    ):
        result = gradient(enlarged)()
    assert any("upsample" in event.key for event in profile.key_averages())
    return result


def on_meta():
    with torch.device("meta"):
        y = cumsum()
    assert y.is_meta
    return torch.empty(y.shape[0], 0)


PROGRAMS = {
    "vmap": (lambda: torch.vmap(lambda row: row.cumsum(0))(torch.arange(6.0).view(2, 3)), {SCAN}),
    "jvp": (lambda: torch.func.jvp(lambda t: t.cumsum(0), (ONES,), (ONES,))[1], {SCAN}),
    "hessian": (lambda: torch.func.hessian(lambda t: t.cumsum(0).pow(2).sum())(ONES), {SCAN}),
    "vmap of grad": (
        lambda: torch.vmap(torch.func.grad(lambda x: enlarged(x).sum()))(torch.ones(4, 1, 1, 2, 2)),
        {ENLARGED},
    ),
    "functionalize": (lambda: torch.func.functionalize(written)(torch.zeros(3)), {ADDED, SCAN}),
    "inference_mode": (without_gradients(torch.inference_mode), {ADDED_IN_PLACE, SCAN}),
    "no_grad": (without_gradients(torch.no_grad), {ADDED_IN_PLACE, SCAN}),
    "saved-tensor hooks": (gradient(saved_on_cpu), {ENLARGED}),
    "module hooks": (gradient(hooked), {ENLARGED}),
    "compiled module": (gradient(compiled), {ENLARGED}),
    "gradcheck": (gradient(checked), {ENLARGED}),
    "checkpoint": (recomputed(False), {ENLARGED, SCAN}),
    "re-entrant checkpoint": (recomputed(True), {ENLARGED, SCAN}),
    "anomaly detection and profiler": (watched, {ENLARGED}),
    "optimizer": (trained, set()),
    "TorchFunctionMode": (on_meta, {SCAN}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(mode, substituted, name):
    """Calls meet the table, and the result is that without the mode."""
    program, rows = PROGRAMS[name]
    with mode() as made:
        given = program()
    assert torch.equal(given, program())
    assert {row[:2] for row in actions(made)} == rows
    assert {f"{each}.default" for each in substituted} == {
        overload.replace("_.", ".") for overload, action in rows if action == "substitute"
    }


def test_grad(mode, line):
    """Under ``torch.func.grad`` the place is the line that calls the transform."""

    def user():
        return torch.func.grad(lambda x: enlarged(x).sum())(torch.ones(1, 1, 2, 2))  # here

    with mode() as made:
        assert user().sum() == 16
    assert [record.site for record in made.records] == line(user)


def test_autocast(mode):
    """Under autocast the operators are met in the dtype in which they run."""
    a = torch.ones(2, 2)
    with mode(overrides={"aten::mm": "warn"}) as made, torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(DeterminismWarning):
            product = a @ a
        scan = product.cumsum(0)
    assert product.dtype is torch.bfloat16
    assert scan[1].tolist() == [4, 4]
    assert [each[0] for each in actions(made)] == ["aten::mm.default", SCAN[0]]


@pytest.mark.parametrize("allowed", [False, True])
def test_custom_function(mode, line, allowed):
    """In the backward of a torch.autograd.Function the place is the user's line in it.

    What it calls is allowed where the forward was called in a region.
    """

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.cumsum(0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.put(torch.tensor([0]), torch.ones(1))  # here

    x = torch.ones(3, requires_grad=True)
    with mode() as made:
        with allow("aten::put") if allowed else nullcontext():
            y = Put.apply(x)
        with nullcontext() if allowed else pytest.raises(RuntimeError, match="put_"):
            y.sum().backward()
    assert [record.action for record in made.records] == ["native", "allow" if allowed else "error"]
    assert made.records[1].site == line(Put.backward)[0]


def test_hooks(mode, line):
    """A hook's calls meet the table, at the hook's own line."""

    def hook(gradient):
        return gradient.cumsum(0)  # here

    x = torch.ones(3, requires_grad=True)
    with mode() as made:
        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
    assert x.grad.tolist() == [2, 4, 6]
    assert [record.site for record in made.records] == line(hook)


def test_other_threads_meet_pytorchs_own_alert(mode):
    """Another thread does not see the mode; PyTorch's alert still fires there: never silent."""

    def work():
        assert current_mode() is None
        with pytest.raises(RuntimeError, match="^put_ does not have a deterministic") as caught:
            put()
        return str(caught.value)

    with mode() as made:
        assert "detmode" not in in_another_thread(work)
    assert made.records == ()


def test_backward_in_another_thread_than_forward(mode, line):
    """A graph made in a thread without the mode: backward under the mode meets the table.

    The forward call was not seen, so the place is the line that calls backward.
    """
    loss = in_another_thread(lambda: enlarged(image()).sum())

    def user():
        loss.backward()  # here

    def under_the_mode():
        with mode() as made:
            user()
        return made

    # Numbers of nodes repeat from thread to thread: a thread of its own has seen no forward call.
    made = in_another_thread(under_the_mode)
    assert actions(made) == [(*ENLARGED, 1)]
    assert [record.site for record in made.records] == line(user)


class Scanned(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        flag = torch.are_deterministic_algorithms_enabled()
        return index, flag, current_mode() is not None, torch.ones(3).cumsum(0)[-1]


@pytest.mark.parametrize(
    "workers", ["none", "fork", pytest.param("spawn", marks=pytest.mark.thorough)]
)
def test_data_loader_workers(mode, workers):
    """Forked workers inherit flag and mode; spawned ones are new processes and have neither.

    In the process itself the calls are recorded; a worker's records stay in the worker.
    """
    arguments = {} if workers == "none" else {"num_workers": 1, "multiprocessing_context": workers}
    with mode() as made:
        batches = list(DataLoader(Scanned(), batch_size=2, **arguments))
    ((_, flags, modes, sums),) = batches
    assert sums.tolist() == [3, 3]
    assert flags.tolist() == [workers != "spawn"] * 2
    assert modes.tolist() == [workers != "spawn"] * 2
    assert len(made.records) == (1 if workers == "none" else 0)


def test_flop_counter_inside_and_outside(mode):
    """FlopCounterMode counts the same above and below the mode, and goes on when that has left."""
    a = torch.ones(4, 4)
    for order in ("above", "below"):
        counter, made = FlopCounterMode(display=False), mode()
        first, second = (counter, made) if order == "above" else (made, counter)
        with first:
            with second:
                (a @ a).cumsum(0)
            a @ a
        assert counter.get_total_flops() == (256 if order == "above" else 128)
        assert actions(made) == [(*SCAN, 1)]


def test_a_mode_inside_sees_the_users_operators_and_one_outside_the_substitutes(mode):
    """One that is entered inside ours sees what the program calls, one around what we call."""
    outside, inside = Seen(), Seen()
    target = torch.zeros(3)
    with outside, mode() as made, inside:
        target.index_add_(0, torch.tensor([0]), torch.ones(1))
    assert actions(made) == [(*ADDED_IN_PLACE, 1)]
    assert "aten::index_add_" in inside.names
    assert {"aten::index_add", "aten::copy_"} <= set(outside.names)
    assert "aten::index_add_" not in outside.names


def test_a_mode_that_answers_by_itself_hides_the_call(mode):
    """A mode inside ours that answers a call itself leaves nothing to intercept."""

    class Answers(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten.cumsum.default:
                return args[0].clone()
            return func(*args, **(kwargs or {}))

    with mode() as made, Answers():
        cumsum()
        index_add()
    assert actions(made) == [(*ADDED, 1)]


def test_a_program_that_does_not_vary_is_not_disturbed():
    """A small network on the CPU trains to the same weights in the default mode, without a word."""

    def train():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.Upsample(scale_factor=2), torch.nn.Conv2d(2, 1, 3)
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.ones(1, 1, 6, 6)).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    with DeterministicMode() as mode:
        weights = train()
    assert torch.equal(weights, train())
    assert {record.action for record in mode.records} <= {"native"}
