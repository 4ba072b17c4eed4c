"""What else acts on a program: transforms, threads, other modes, workers, compilers."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from detmode import DeterminismWarning
from detmode.mode.deterministic_mode import current_mode

aten = torch.ops.aten


def actions(mode):
    return [(record.overload, record.action, record.count) for record in mode.records]


def up(x):
    return F.interpolate(x, scale_factor=2, mode="bilinear")


# Transforms


def test_vmap(mode):
    """Under vmap the batched operators meet the table, and the result is right."""
    x = torch.arange(6.0).view(2, 3)
    with mode() as made:
        y = torch.vmap(lambda row: row.cumsum(0))(x)
    assert torch.equal(y, x.cumsum(1))
    assert actions(made) == [("aten::cumsum.default", "native", 1)]


def test_grad(mode, substituted, line):
    """``torch.func.grad`` runs the substitute; the place is the line that calls the transform."""

    def user():
        return torch.func.grad(lambda x: up(x).sum())(torch.ones(1, 1, 2, 2))  # here

    with mode() as made:
        gradient = user()
    assert gradient.sum() == 16
    assert substituted == ["aten::upsample_bilinear2d_backward"]
    assert [record.site for record in made.records] == line(user)


def test_jvp_and_hessian(mode):
    """Forward-mode and nested transforms run under the mode."""
    x = torch.ones(3)
    with mode() as made:
        _, tangent = torch.func.jvp(lambda t: t.cumsum(0), (x,), (x,))
        hessian = torch.func.hessian(lambda t: t.cumsum(0).pow(2).sum())(x)
    assert tangent.tolist() == [1, 2, 3]
    assert torch.equal(hessian, torch.tensor([[6.0, 4, 2], [4, 4, 2], [2, 2, 2]]))
    assert {action for _, action, _ in actions(made)} == {"native"}


def test_vmap_of_grad(mode, substituted):
    """Per-sample gradients, vmap over grad, meet the substitutes."""
    x = torch.ones(4, 1, 1, 2, 2)
    with mode():
        gradients = torch.vmap(torch.func.grad(lambda image: up(image).sum()))(x)
    assert torch.equal(gradients, torch.full_like(x, 4))
    assert len(substituted) >= 1


def test_autocast(mode):
    """Under autocast the operators are met in the dtype in which they run."""
    a = torch.ones(2, 2)
    with mode(overrides={"aten::mm": "warn"}) as made, torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(DeterminismWarning):
            product = a @ a
        scan = product.cumsum(0)
    assert product.dtype is torch.bfloat16
    assert scan[1].tolist() == [4, 4]
    assert [overload for overload, *_ in actions(made)] == [
        "aten::mm.default",
        "aten::cumsum.default",
    ]


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_without_gradients(mode, substituted, context):
    """In inference mode and under no_grad rows are met, and in-place substitutes write."""
    with mode() as made, context():
        x = torch.zeros(3)
        x.index_add_(0, torch.tensor([0, 0]), torch.ones(2))
        x.cumsum(0)
    assert x.tolist() == [2, 0, 0]
    assert substituted == ["aten::index_add"]
    assert [action for _, action, _ in actions(made)] == ["substitute", "native"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(mode, substituted, use_reentrant):
    """In a checkpoint the forward is met twice, the backward once; gradients are the same."""
    image = torch.ones(1, 1, 2, 2)
    gradients = []
    for made in (mode(), None):
        x = image.clone().requires_grad_()

        def function(t):
            return up(t.cumsum(2)).sin()

        if made is None:
            checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
        else:
            with made:
                checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
            rows = {(overload, action): count for overload, action, count in actions(made)}
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert rows[("aten::upsample_bilinear2d_backward.default", "substitute")] == 1
    assert rows[("aten::cumsum.default", "native")] >= 2
    assert substituted == ["aten::upsample_bilinear2d_backward"]


# Autograd


def test_custom_function(mode, line):
    """In the backward of a torch.autograd.Function the place is the user's line in it."""

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.cumsum(0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.put(torch.tensor([0]), torch.ones(1))  # here

    x = torch.ones(3, requires_grad=True)
    with mode() as made:
        y = Put.apply(x)
        with pytest.raises(RuntimeError, match="put_"):
            y.sum().backward()
    assert [record.action for record in made.records] == ["native", "error"]
    assert made.records[1].site == line(Put.backward)[0]


def test_custom_function_in_an_allow_region(mode):
    """What a custom backward calls is allowed where the forward was called in a region."""
    from detmode import allow

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.put(torch.tensor([0]), torch.ones(1))

    x = torch.ones(3, requires_grad=True)
    with mode() as made:
        with allow("aten::put"):
            y = Put.apply(x)
        y.sum().backward()
    assert actions(made) == [("aten::put.default", "allow", 1)]


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


def test_module_hooks(mode):
    """Module hooks, forward and full backward, are seen as all calls are."""
    seen = []
    module = torch.nn.Upsample(scale_factor=2, mode="bilinear")
    module.register_forward_hook(lambda *args: seen.append("forward"))
    module.register_full_backward_hook(lambda *args: seen.append("backward"))
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    with mode() as made:
        module(x).sum().backward()
    assert seen == ["forward", "backward"]
    assert [action for _, action, _ in actions(made)] == ["substitute"]


def test_saved_tensor_hooks(mode, substituted):
    """Saved-tensor hooks, which run in forward and backward, do no harm."""
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    with mode(), torch.autograd.graph.save_on_cpu():
        (up(x) * up(x)).sum().backward()
    assert x.grad is not None
    assert substituted == ["aten::upsample_bilinear2d_backward"] * 2


def test_gradcheck(mode):
    """Gradcheck passes under the mode: substitutes give right gradients through autograd."""
    x = torch.rand(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    with mode():
        assert torch.autograd.gradcheck(up, (x,))


# Threads


def test_other_threads_meet_pytorchs_own_alert(mode):
    """Another thread does not see the mode; PyTorch's alert still fires there: never silent."""
    seen = {}

    def work():
        seen["mode"] = current_mode()
        try:
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
        except RuntimeError as error:
            seen["error"] = str(error)

    with mode() as made:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen["mode"] is None
    assert seen["error"].startswith("put_ does not have a deterministic implementation")
    assert "detmode" not in seen["error"]
    assert made.records == ()


def test_threads_with_modes_of_their_own(mode):
    """A thread that enters a mode has its own; the records are apart."""
    results = {}

    def work(name, calls):
        with mode() as made:
            for _ in range(calls):
                torch.ones(3).cumsum(0)
        results[name] = sum(record.count for record in made.records)

    threads = [threading.Thread(target=work, args=(n, n)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: 1, 2: 2, 3: 3}


def test_backward_in_another_thread_than_forward(mode, line):
    """A graph made in a thread without the mode: backward under the mode meets the table.

    The forward call was not seen, so the place is the line that calls backward.
    """
    made_in_thread = []

    def work():
        made_in_thread.append(up(torch.ones(1, 1, 2, 2, requires_grad=True)).sum())

    def user():
        made_in_thread[0].backward()  # here

    def under_the_mode():
        with mode() as made:
            user()
        made_in_thread.append(made)

    # Numbers of nodes repeat from thread to thread: a thread of its own has seen no forward call.
    for target in (work, under_the_mode):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    made = made_in_thread[1]
    assert [record.action for record in made.records] == ["substitute"]
    assert [record.site for record in made.records] == line(user)


# Workers


class Scanned(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        flag = torch.are_deterministic_algorithms_enabled()
        return index, flag, current_mode() is not None, torch.ones(3).cumsum(0)[-1]


@pytest.mark.parametrize("workers", ["none", "fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
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


# Compilers and other modes


@pytest.mark.parametrize("earlier", [False, True], ids=["first", "operators seen before"])
def test_compile_runs_eagerly_and_says_so_once(mode, caplog, earlier):
    """torch.compile works under the mode: the function runs eagerly, which is said once."""
    torch.compiler.reset()
    function = torch.compile(lambda x: x.neg().cumsum(0), backend="eager")
    with mode() as made:
        if earlier:
            torch.ones(3).neg().cumsum(0)
        for _ in range(3):
            assert function(torch.ones(3)).tolist() == [-1, -2, -3]
    said = [message for message in caplog.messages if "torch.compile" in message]
    assert len(said) == 1
    assert "runs eagerly" in said[0]
    assert sum(record.count for record in made.records) == 3 + earlier


def test_a_compiled_module_trains(mode, substituted):
    """A compiled module's forward and backward meet the table."""
    torch.compiler.reset()
    module = torch.compile(torch.nn.Upsample(scale_factor=2, mode="bilinear"), backend="eager")
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    with mode():
        module(x).sum().backward()
    assert substituted == ["aten::upsample_bilinear2d_backward"]


def test_nothing_is_said_without_compile(mode, caplog):
    """An ordinary program reads nothing about torch.compile."""
    with mode():
        torch.ones(3).cumsum(0)
    assert caplog.records == []


def test_flop_counter_inside_and_outside(mode):
    """FlopCounterMode counts the same above and below the mode."""
    from torch.utils.flop_counter import FlopCounterMode

    a = torch.ones(4, 4)
    for order in ("above", "below"):
        counter, made = FlopCounterMode(display=False), mode()
        first, second = (counter, made) if order == "above" else (made, counter)
        with first, second:
            (a @ a).cumsum(0)
        assert counter.get_total_flops() == 128
        assert actions(made) == [("aten::cumsum.default", "native", 1)]


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_a_mode_entered_inside_sees_the_users_operators(mode):
    """A mode that the user enters inside ours comes first: it sees what the program calls."""
    seen = Seen()
    with mode() as made, seen:
        torch.zeros(3).index_add_(0, torch.tensor([0]), torch.ones(1))
    assert "aten::index_add_" in seen.names
    assert actions(made) == [("aten::index_add_.default", "substitute", 1)]


def test_a_mode_entered_outside_sees_the_substitutes_operators(mode):
    """A mode around ours sees the operators that the substitute calls, not the replaced one."""
    seen = Seen()
    with seen, mode():
        torch.zeros(3).index_add_(0, torch.tensor([0]), torch.ones(1))
    assert "aten::index_add" in seen.names
    assert "aten::copy_" in seen.names
    assert "aten::index_add_" not in seen.names


def test_a_mode_that_answers_by_itself_hides_the_call(mode):
    """A mode inside ours that answers a call itself leaves nothing to intercept."""

    class Answers(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten.cumsum.default:
                return args[0].clone()
            return func(*args, **(kwargs or {}))

    with mode() as made, Answers():
        torch.ones(3).cumsum(0)
    assert actions(made) == []


def test_torch_function_modes_stand_beside(mode):
    """A TorchFunctionMode, such as ``torch.device`` as a context, works as ever."""
    with mode() as made, torch.device("meta"):
        y = torch.ones(3).cumsum(0)
    assert y.is_meta
    assert actions(made) == [("aten::cumsum.default", "native", 1)]


def test_anomaly_mode_and_profiler(mode):
    """Anomaly detection and the profiler run under the mode."""
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    with (
        mode() as made,
        pytest.warns(UserWarning, match="Anomaly Detection"),
        torch.autograd.detect_anomaly(),
        # PyTorch 2.11 warns of cycles without acc_events.
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profile,
    ):
        up(x).sum().backward()
    assert [action for _, action, _ in actions(made)] == ["substitute"]
    assert any("upsample" in event.key for event in profile.key_averages())


def test_optimizer_steps(mode):
    """Optimizers, foreach and fused, run under the mode with the same weights as without."""

    def train():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    with mode():
        weights = train()
    assert torch.equal(weights, train())
