"""The player in C++: bits, rows and errors are those of Python's way, whatever the program does."""

import contextlib
import gc
import os
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from models import MODELS, Make
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from detmode import DeterminismWarning, DeterministicMode, Refuse, RuleTable, allow, default_rules
from detmode.cuda import host, native
from detmode.cuda.native import host_steps
from detmode.mode import native_calls, native_log, native_ops, overload_info
from detmode.process.setting import is_flag_on
from detmode.process.torch_settings import deterministic_flag
from detmode.reports.report import Report
from detmode.reports.union import of_ranks
from detmode.runs.probing import Probe
from detmode.sites import forward_memory
from detmode.sites.forward_memory import ForwardMemory
from detmode.table.condition import Condition
from detmode.table.conditions import on
from detmode.table.rule import RUN_TO_RUN, Native, Rule, Substitute
from detmode.verify.cases import call
from detmode.verify.claims import same_bits
from tests.models.steps import TRAININGS
from tests.models.test_models import train
from tests.process.test_setting import exit_code_of_child
from tests.shared import needs, selection
from tests.shared.compiled_functions import FUNCTIONS
from tests.shared.processes import run_forked
from tests.shared.programs import Seen, in_another_thread, rule
from tests.shared.sparse_matrices import sparse_matrices

pytestmark = [
    needs.compiler,
    pytest.mark.skipif(native.problem() is not None, reason=f"the player: {native.problem()}"),
]


@pytest.fixture(scope="module")
def player():
    native.build()
    return native.player()


@pytest.fixture(params=["all", "listed"])
def replays(player, monkeypatch, request):
    """Switches the player on, and counts what it has replayed."""
    monkeypatch.setattr(chosen, "intercept", request.param)
    monkeypatch.setenv(native.VARIABLE, "1")
    start = player.dm_replayed()
    return lambda: player.dm_replayed() - start


only_listed = pytest.mark.parametrize("replays", ["listed"], indirect=True)
"""For what other threads do: a dispatch mode does not receive their calls."""

chosen = SimpleNamespace(intercept="all")
"""The choices of a test."""


@contextlib.contextmanager
def way(monkeypatch, number: int, **arguments):
    """A block in Python's way (0), or with the player (1)."""
    monkeypatch.setenv(native.VARIABLE, str(number))
    with DeterministicMode(
        **{"intercept": chosen.intercept, "simulate": "cuda", **arguments}
    ) as mode:
        yield mode


def both(monkeypatch, program, **arguments):
    """The results of a program, and the rows, in Python's way and with the player."""
    results = []
    for number in (0, 1):
        torch.manual_seed(0)
        with way(monkeypatch, number, **arguments) as mode:
            value = program()
        results.append((value, rows(mode)))
    return results


def rows(mode):
    """The rows whole, with counts by module; native ones where Python's way has them, too."""
    return [
        (row.line, row.count, row.modules, row.outer_site)
        for row in mode.records
        if row.action != "native" or mode.policy.warn_only
    ]


def tensors(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def data(n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(n, (5,), generator=generator)
    return torch.randn(n, 3, generator=generator), index, torch.randn(5, 3, generator=generator)


INDEX_ADD = torch.ops.aten.index_add.default


def added(x, index, source):
    return x.index_add(0, index, source)


def again(function, times=4):
    """The last of several results; one line makes all the calls."""
    return [function() for _ in range(times)][-1]


# The same as in Python


CASES = selection.todays_forms(
    # The others have no kernel on the CPU.
    case
    for case in selection.cases()
    if "cudnn_" not in case.sample.op
)


@pytest.mark.parametrize("group", selection.grouped(CASES), ids=str)
def test_samples(group, replays, monkeypatch):
    """Bits and rows of every sample, on data that the plan has not seen, and other schedules."""

    def check(case):
        def run(seed):
            results = tensors(call(case.sample, case.sample.arguments(case.dtype, "cpu", seed)))
            return [result for result in results if result is not None]

        (expected, in_python), (bits, by_player) = both(
            monkeypatch, lambda: [x for seed in (0, 1, 7) for x in run(seed)], schedule_seed=3
        )
        assert same_bits(bits, expected)
        assert by_player == in_python

    selection.check_each(group, check)


@pytest.mark.parametrize("name", selection.todays_forms(FUNCTIONS))
@pytest.mark.filterwarnings("ignore")  # each call of the table warns somewhere
def test_functions_of_users(name, replays, monkeypatch):
    """Forward and backward: bits, and rows with the lines of the forwards, call for call."""
    function, make = FUNCTIONS[name]

    def program():
        arguments = make()
        bits = []
        for _ in range(4):
            leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in arguments]
            result = function(*leaves)
            bits.append(result.detach())
            if result.requires_grad:
                result.backward(torch.ones_like(result))
                bits += [leaf.grad for leaf in leaves if leaf.grad is not None]
        return bits

    (expected, in_python), (bits, by_player) = both(monkeypatch, program, warn_only=True)
    assert same_bits(bits, expected)
    assert by_player == in_python


class Block(torch.nn.Module):
    """Pads, enlarges and adds at indices."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 1, 4, 4))
        self.register_buffer("index", torch.tensor([0, 1, 1]))

    def forward(self, x):
        x = F.pad(x * self.weight, [1, 1, 1, 1], mode="replicate")
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        return x.index_add(2, self.index, x[:, :, :3])[:, :, :4, :4]


def trained(steps=6):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), torch.nn.Sequential(Block(), Block()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 1, 4, 4)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_a_training(replays, monkeypatch):
    """Weights, lines, modules and counts; of backward operators those of the forward."""
    (expected, in_python), (bits, by_player) = both(monkeypatch, trained)
    assert replays() > 20
    assert same_bits(bits, expected)
    assert by_player == in_python
    assert {"Sequential.0", "Sequential.1.1"} <= {name for row in by_player for name in row[2]}


@pytest.mark.usefixtures("cublas_workspace")
@pytest.mark.parametrize("name", selection.todays_forms(TRAININGS))
def test_models(name, replays, monkeypatch):
    """Losses, weights and rows of whole models, over several steps."""
    results = both(monkeypatch, lambda: train(name, steps=4))
    ((losses, weights), in_python), ((own_losses, own_weights), by_player) = results
    assert replays()
    assert own_losses == losses
    assert same_bits(list(own_weights.values()), list(weights.values()))
    assert by_player == in_python


# The same as with a dispatch mode


def rows_of_both(mode):
    """The rows of calls that a dispatch mode and kernels see, under the functional names.

    In backward, PyTorch calls other variants while a dispatch mode is on.
    """
    counts = Counter()
    for row in mode.records:
        if row.family != "uninitialized_memory":
            name = row.overload.replace("_.", ".").replace(".Tensor", ".default")
            name = name.replace("aten::_index_put_impl", "aten::index_put")
            for module, count in (row.modules or {None: row.count}).items():
                counts[name, row.action, row.site, row.outer_site, module] += count
    return counts


def in_both_ways(monkeypatch, program, **arguments):
    """The reports of a dispatch mode and of the player."""
    modes = []
    for number, intercept in ((0, "all"), (1, chosen.intercept)):
        torch.manual_seed(0)
        with way(monkeypatch, number, intercept=intercept, **arguments) as mode:
            program()
        modes.append(mode)
    return modes


@pytest.mark.usefixtures("cublas_workspace")
@pytest.mark.parametrize("name", selection.todays_forms(MODELS))
def test_models_as_with_a_dispatch_mode(name, replays, monkeypatch):
    """Row for row, count for count, native rows among them."""

    def program():
        training = MODELS[name](Make(torch.device("cpu"), tiny=True))
        for _ in range(4):
            training.loss().backward()

    by_mode, by_player = in_both_ways(monkeypatch, program)
    assert rows_of_both(by_player) == rows_of_both(by_mode)
    assert "left to PyTorch's flag" not in by_player.report().verdict


@pytest.mark.parametrize("name", selection.todays_forms(FUNCTIONS))
@pytest.mark.filterwarnings("ignore")  # each call of the table warns somewhere
def test_functions_as_with_a_dispatch_mode(name, replays, monkeypatch):
    """Row for row, count for count, native rows among them."""
    function, make = FUNCTIONS[name]

    def program():
        arguments = make()
        for _ in range(4):
            leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in arguments]
            result = function(*leaves)
            if result.requires_grad:
                result.backward(torch.ones_like(result))

    by_mode, by_player = in_both_ways(monkeypatch, program)
    assert rows_of_both(by_player) == rows_of_both(by_mode)


@pytest.fixture
def in_python(monkeypatch):
    """Returns how many calls a function makes that reach Python."""
    calls = []
    count_calls = native_calls.count_calls
    monkeypatch.setattr(native_calls, "count_calls", lambda: (calls.append(None), count_calls())[1])

    def number(function):
        calls.clear()
        function()
        return len(calls)

    return number


@pytest.mark.usefixtures("cublas_workspace")
@pytest.mark.parametrize("name", selection.todays_forms(MODELS))
@pytest.mark.filterwarnings("ignore")  # some calls of models vary
def test_models_that_only_warn_as_with_a_dispatch_mode(name, replays, monkeypatch):
    """With ``warn_only`` native calls are made in Python's way by one, and not by the other."""

    def program():
        training = MODELS[name](Make(torch.device("cpu"), tiny=True))
        for _ in range(4):
            training.loss().backward()

    by_mode, by_player = in_both_ways(monkeypatch, program, warn_only=True)
    assert rows_of_both(by_player) == rows_of_both(by_mode)


@pytest.mark.parametrize("warn_only", [False, True])
def test_native_calls_do_without_python(warn_only, replays, in_python, monkeypatch):
    """Forward and backward of a convolution, whether or not PyTorch's flag only warns."""
    x = torch.ones(2, 1, 6, requires_grad=True)

    def step():
        convolved(x).sum().backward()

    with way(monkeypatch, 1, warn_only=warn_only) as mode:
        assert again(lambda: in_python(step), 5) == 0
    counts = {row.overload: (row.action, row.count) for row in mode.records}
    for name in ("aten::convolution.default", "aten::convolution_backward.default"):
        assert counts[name] == ("native", 5)


@pytest.mark.parametrize("reads", [False, True])
# PyTorch tells that the test's own kernel overrides ATen's.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@only_listed
def test_a_kernel_that_looks_at_warn_only(reads, replays, monkeypatch):
    """It gets the strict flag at every call, also from several threads; others get it as it is."""
    ops = frozenset({"aten::convolution"} if reads else ())
    monkeypatch.setattr(overload_info, "_readers_of_warn_only", lambda: ops)
    kernels, settings = torch.library.Library("aten", "IMPL"), []

    def kernel(x, *_):
        settings.append(torch._C._get_deterministic_algorithms_warn_only())
        return x.clone()

    def work():
        for _ in range(8):
            convolved()

    kernels.impl("convolution", kernel, "CPU")
    try:
        with way(monkeypatch, 1, warn_only=True) as mode:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        kernels._destroy()
    assert settings == [not reads] * 24
    assert sum(row.count for row in mode.records) == 24


def taken(x):
    return x.topk(2).values.sum()


@pytest.mark.parametrize("warn_only", [False, True])
def test_calls_that_do_not_vary(warn_only, replays, in_python, monkeypatch):
    """Those of a listed operator: not counted, made without Python, noted for their backward."""

    def step():
        torch.arange(6).cumsum(0)
        x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
        taken(x).backward()
        taken(x * 2).backward()
        return x.grad

    def program():
        results = [step() for _ in range(4)]
        numbers.append(again(lambda: in_python(step)))
        return results

    numbers = []
    (expected, by_python), (bits, by_player) = both(monkeypatch, program, warn_only=warn_only)
    assert same_bits(bits, expected)
    assert by_player == by_python
    assert len(by_player) == 1  # of the one line in which both forwards are called
    assert numbers[1] == 0


def by_values(seed):
    """Puts and adds at masks, forward and backward, and bins of weights, as many as values say."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 4, generator=generator, requires_grad=True)
    mask = torch.rand(5, 4, generator=generator) < 0.2 * seed
    values = torch.randn(int(mask.sum()), generator=generator)
    x[mask].square().sum().backward()
    with torch.no_grad():
        put = x.index_put([mask], values)
        put.index_put_([mask[:, 0]], x[:1], accumulate=True)
        put[mask] = values + 1
    bins = torch.randint(0, 2 + seed, (9,), generator=generator)
    return [x.grad, put, bins.bincount(torch.rand(9, generator=generator), minlength=4)]


@pytest.mark.parametrize("warn_only", [False, True])
def test_sizes_by_values(warn_only, replays, in_python, monkeypatch):
    """Masks and bins of other counts at each call, and then of known counts."""

    def program():
        results = []
        for seed in [1, 2, 3, 4] * 6:
            numbers.append(in_python(lambda seed=seed: results.extend(by_values(seed))))
        return results

    numbers = []
    (expected, by_python), (bits, by_player) = both(monkeypatch, program, warn_only=warn_only)
    assert same_bits(bits, expected)
    assert by_player == by_python
    assert replays() > 12
    assert sum(numbers[-3:]) == 0  # where values are more than one


def test_a_negative_bin(replays, monkeypatch):
    """It is ATen's error, also after calls that were made without Python."""

    def counted(*bins):
        return torch.tensor(bins).bincount(torch.ones(3))

    def program():
        for _ in range(5):
            counted(1, 0, 2)
        with pytest.raises(RuntimeError) as raised:
            counted(-1, 0, 2)
        return str(raised.value), counted(1, 0, 2)

    ((text, expected), in_python), ((own_text, bits), by_player) = both(monkeypatch, program)
    assert (own_text, bits.tolist()) == (text, expected.tolist())
    assert by_player == in_python


# PyTorch tells once of its support of such layouts.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_matrices_are_told_apart(replays, in_python, monkeypatch):
    """By layout, entries, order, dtypes, strides and alignment of what they consist of."""
    matrices, dense = sparse_matrices(), torch.arange(12.0).view(4, 3)

    def products(factor):
        """All from one line, with sums of products, and their backward."""
        results = []
        for matrix in matrices.values():
            weight = dense.to(matrix.dtype).mul(factor).requires_grad_()
            result = torch.sparse.addmm(weight[:, :1] + 1, matrix, weight, beta=0.5, alpha=2)
            result.sum().backward()
            results += [result.detach(), weight.grad, matrix @ weight.detach()]
        return results

    def program():
        results = []
        for factor in (1, 2, 4, 3, 5, 7):
            numbers.append(in_python(lambda factor=factor: results.extend(products(factor))))
        return results

    numbers = []
    (expected, by_python), (bits, by_player) = both(monkeypatch, program)
    assert same_bits([x.detach() for x in bits], [x.detach() for x in expected])
    assert by_player == by_python
    assert replays() >= 2 * len(matrices)
    assert numbers[-1] == 0


def test_each_of_many_keys_is_learned(replays, in_python, monkeypatch):
    """Two whose hashes have a part in common do not keep each other from it."""

    def step():
        for n in range(1, 400):
            torch.ones(n).cumsum(0)

    with way(monkeypatch, 1):
        assert again(lambda: in_python(step), 9) == 0


def test_operators_that_a_plan_calls(replays, in_python, monkeypatch):
    """An indexed sum over several dimensions numbers its elements by an operator of ATen's."""
    index = torch.tensor([[[0, 2], [1, 1]], [[1, 0], [2, 2]]])

    def program():
        results = []

        def add(source):
            results.append(torch.ones(2, 3, 2).scatter_add(1, index, source))

        for i in range(6):
            source = torch.arange(8.0).view(2, 2, 2) + i
            numbers.append(in_python(partial(add, source)))
        return results

    numbers = []
    (expected, by_python), (bits, by_player) = both(monkeypatch, program)
    assert same_bits(bits, expected)
    assert by_player == by_python
    assert numbers[-1] == 0


def noting(model, x):
    """Calls whose backward is listed: a lookup, padding, pooling; without gradients, too."""
    y = F.pad(model(x)[None], [1, 1], mode="reflect")
    with torch.no_grad():
        F.pad(y, [1, 1], mode="reflect")
    return F.adaptive_avg_pool1d(y, 3).square().sum()


@pytest.mark.parametrize("warn_only", [False, True])
def test_forwards_are_noted_without_python(warn_only, replays, monkeypatch):
    """The backward has the lines and modules of forwards whose kernels stand at autograd's key."""
    model, x = torch.nn.Embedding(4, 6), torch.tensor([0, 1, 1])
    located, find_site = [], ForwardMemory.find_site

    def program():
        for _ in range(6):
            before = len(located)
            noting(model, x).backward()
            numbers.append(len(located) - before)

    numbers = []
    code = compile(
        "def find_site(*args, **kwargs):\n    count()\n    return original(*args, **kwargs)",
        forward_memory.__file__,
        "exec",
    )
    names = {"count": lambda: located.append(None), "original": find_site}
    exec(code, names)
    monkeypatch.setattr(ForwardMemory, "find_site", names["find_site"])
    (_, in_python), (_, by_player) = both(monkeypatch, program, warn_only=warn_only)
    assert by_player == in_python
    assert {"Embedding"} <= {name for row in by_player for name in row[2]}
    assert numbers[5] >= 3
    assert numbers[-1] == 0


only_all = pytest.mark.parametrize("replays", ["all"], indirect=True)


@only_all
def test_unlisted_calls_do_without_python(replays, monkeypatch):
    """Nothing of detmode's runs in Python once an operator has been met."""
    x, weight = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    entered = []

    def note(frame, event, _):
        if event == "call" and "detmode" in frame.f_code.co_filename.split(os.sep)[-3:-1]:
            entered.append(frame.f_code.co_qualname)

    def step():
        torch._foreach_add_([x.neg(), x.view(2, 8) * 2], 1.0)
        # What saves its result has PyTorch ask the mode for copies of it, past the dispatcher.
        with torch.profiler.record_function("as optimizers do"):
            (x @ weight).relu().softmax(0).sum().backward()

    with way(monkeypatch, 1):
        again(step, 6)
        sys.setprofile(note)
        step()
        sys.setprofile(None)
    assert entered == []


@only_all
def test_unlisted_calls_are_not_boxed(replays, monkeypatch):
    """Written tensors come back themselves, and a class of tensors sees its calls in lists, too."""

    def program():
        x, two = torch.arange(4.0), TwoTensor(torch.ones(4), torch.zeros(4))
        assert x.add_(1) is x.sigmoid_() is x.mul_(torch.ones(4)) is x.mul_(2.0) is x
        lists = torch._foreach_sqrt([x, x.to(torch.float64)])
        torch._foreach_add_(lists, [x, x], alpha=2)
        joined = torch.stack([two, torch.ones(4)])
        chosen = torch.where(two > 0, two, torch.ones(4))
        assert type(joined) is type(chosen) is TwoTensor
        return *lists, joined.a, joined.b, chosen.a, chosen.b, *x.view(2, 2).unsafe_split(1)

    expected = program()
    with way(monkeypatch, 1):
        results = [program() for _ in range(4)]
    assert all(same_bits(tensors(result), tensors(expected)) for result in results)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = "add_.Tensor", "relu", "view", "cat", "where.self", "_foreach_add_.List"
    assert all(has_kernel(f"aten::{name}", "PythonTLSSnapshot") for name in names)


def complex_inverse():
    """Conjugates a tensor in an operator, and calls another with it."""
    return torch.linalg.pinv(torch.tensor([[1 + 2j, 3 - 1j], [0 + 1j, 2 + 0j]]))


def zero_tangent():
    """Multiplies what has no memory, as a tangent of forward-mode AD may, by a number."""
    return torch.ops.aten.mul.Scalar(torch._efficientzerotensor((3,)), 2) + 1


@only_all
@pytest.mark.parametrize("function", [complex_inverse, zero_tangent])
def test_unlisted_calls_are_made_as_by_a_mode(function, replays, monkeypatch):
    """Views are resolved, and what has no memory is not read."""
    expected = function()
    with way(monkeypatch, 1):
        results = [function() for _ in range(4)]
    assert same_bits(results, [expected] * 4)


@only_all
def test_an_outer_mode_receives_unlisted_calls(replays, monkeypatch):
    """It sees what it sees around a mode in Python, and an inner one is asked first."""
    seen, x = [], torch.ones(3, requires_grad=True)
    for number in (0, 1):
        x.grad = None
        with Seen() as outer, way(monkeypatch, number):
            again(lambda: x.neg().abs().relu().sum().backward())
            with Seen() as inner:
                again(lambda: x.exp().sum().backward())
        seen.append((outer.names, inner.names))
    assert seen[0] == seen[1]
    assert all(seen[1])


def test_calls_inside_those_of_another_mode(replays, monkeypatch):
    """The player makes what another mode calls in Python."""
    with way(monkeypatch, 1) as mode, Seen():
        results = [added(*data()) for _ in range(6)]
    assert same_bits(results, [added(*data())] * 6)
    assert replays() >= 3
    assert [row.count for row in mode.records] == [6]


class Saved(torch.autograd.Function):
    """Saves its result, of which its backward has a copy."""

    @staticmethod
    def forward(ctx, x):
        result = x * 2
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


@only_all
def test_saved_results_are_copied_as_without_a_mode(replays, monkeypatch):
    """Their copies have no history of their own, and what is written since is an error."""

    def program():
        x = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(Saved.apply(first).sum(), x)
        written = x.exp()
        written.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            written.sum().backward()
        two = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
        two.exp().sum().backward()
        return first, second, two.grad.a

    expected = program()
    with way(monkeypatch, 1):
        results = [program() for _ in range(4)]
    assert all(same_bits(tensors(result), tensors(expected)) for result in results)


@only_all
def test_who_overrides_detach_has_copies_made_by_it(replays, monkeypatch):
    """PyTorch asks Python for them as ever, and they count."""
    rules = default_rules() + [rule("aten::detach", action=Native())]

    def program():
        again(lambda: torch.ones(3, requires_grad=True).exp().sum().backward())

    (_, in_python), (_, by_player) = both(monkeypatch, program, rules=rules, warn_only=True)
    assert by_player == in_python
    assert [line[0] for line, *_ in by_player] == ["aten::detach.default"]


def test_conditions_of_others_are_asked_each_time(replays, monkeypatch):
    """They may look at the elements of a tensor, which a key does not have."""
    far = Condition("is_far", lambda call: bool(call.arguments["index"].max() > 1))
    rules = default_rules() + [rule("aten::index_add", when=far, action=Refuse())]

    def program():
        with pytest.warns(DeterminismWarning):
            for last in (0, 0, 0, 0, 0, 2, 0):
                added(torch.zeros(3, 3), torch.tensor([1, last]), torch.ones(2, 3))

    (_, in_python), (_, by_player) = both(monkeypatch, program, rules=rules)
    assert by_player == in_python
    assert sorted(line[1] for line, *_ in by_player) == ["substitute", "warn"]


def test_substitutes_of_users_are_called_each_time(replays, monkeypatch):
    """They may have effects, and depend on more than their arguments, also around a launcher."""
    actions = [row.rule.action for row in default_rules().get(INDEX_ADD)]
    launcher = next(x for x in actions if isinstance(x, Substitute)).function
    factors = []

    def substitute(self, dim, index, source, *, alpha=1):
        factors.append(len(factors))
        return launcher(self, dim, index, source, alpha=len(factors))

    def program():
        factors.clear()
        return [added(*data()) for _ in range(6)]

    rules = default_rules() + [
        rule("aten::index_add", when=on("cuda"), action=Substitute(substitute))
    ]
    (expected, in_python), (bits, by_player) = both(monkeypatch, program, rules=rules)
    assert same_bits(bits, expected)
    assert by_player == in_python
    assert len(factors) == 6


@pytest.mark.parametrize(
    "turn_off", [torch._C._DisableTorchDispatch, torch._C.DisableTorchFunction]
)
def test_calls_that_modes_do_not_receive(turn_off, replays, monkeypatch):
    """No plan is recorded of a call of which the recorder sees a part."""

    def program():
        results = []
        for seed in range(6):
            with turn_off():
                results += [added(*data(seed=seed)), gathered_at(data(seed=seed)[0])]
        return results

    expected = program()
    (bits, in_python), (own_bits, by_player) = both(monkeypatch, program)
    assert same_bits(own_bits, bits)
    assert all(map(torch.allclose, own_bits, expected))
    assert by_player == in_python


def gathered_at(x):
    """Adds at indices in a backward, what its values say."""
    leaf = x.clone().requires_grad_()
    leaf.gather(0, x.argsort(0)[:4]).square().sum().backward()
    return leaf.grad


@pytest.mark.parametrize("is_outside", [False, True])
def test_repeats_of_a_probe_are_not_counted(is_outside, replays, monkeypatch):
    """Neither by the player, which knows the calls before the probe begins."""
    mode = DeterministicMode(simulate="cuda", intercept=chosen.intercept)
    probing = Probe(repeats=6)
    with mode:
        added(*data())
    with contextlib.ExitStack() as stack:
        for entered in (probing, mode) if is_outside else (mode, probing):
            stack.enter_context(entered)
        for _ in range(4):
            added(*data())
    assert sum(row.count for row in mode.records if row.action == "substitute") == 5
    assert probing.report().rows == ()


@only_listed
def test_the_verdict_on_several_processes(replays, monkeypatch):
    """It says that native calls were counted where all have counted them; JSON keeps it."""
    reports = []
    for number in (0, 1, 1):
        with way(monkeypatch, number) as mode:
            added(*data())
        reports.append(mode.report())
    in_python, first, second = reports
    uncounted = "unlisted calls, and those left to PyTorch's flag, were not counted"
    assert uncounted in of_ranks(first, [in_python], 2, {}).verdict
    assert uncounted in of_ranks(in_python, [first], 2, {}).verdict
    whole = of_ranks(first, [second], 2, {})
    assert "(unlisted calls were not counted; " in whole.verdict
    assert Report.from_json(whole.to_json()).verdict == whole.verdict


@pytest.mark.filterwarnings("ignore")  # while it is off
def test_a_flag_that_the_program_turns_off(replays, monkeypatch):
    """Native calls are decided on by the flag of the moment, as with a dispatch mode."""

    def program():
        for is_on in (True, False, True):
            torch.use_deterministic_algorithms(is_on)
            for _ in range(4):
                F.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))

    by_mode, by_player = in_both_ways(monkeypatch, program)
    assert rows_of_both(by_player) == rows_of_both(by_mode)
    assert sum(row.count for row in by_player.records) == 12
    assert "unsettled" not in by_player.report().head


# PyTorch tells that the test's own kernel overrides ATen's.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_another_thread_leaves_the_flag_on_during_a_native_call(replays, monkeypatch):
    """One that needs it off waits for the end of the call, although Python knows nothing of it."""
    kernels, states = torch.library.Library("aten", "IMPL"), []

    def kernel(x, *_):
        """In the place of ATen's, so that the other thread comes in its midst."""
        off = threading.Thread(target=deterministic_flag(False).around, args=(lambda: None,))
        off.start()
        off.join(0.05)
        is_outside_python = sys._getframe(1).f_code.co_filename == __file__
        states.append((is_outside_python, off.is_alive(), is_flag_on()))
        threads.append(off)
        return x.clone()

    threads = []
    kernels.impl("convolution", kernel, "CPU")
    try:
        with way(monkeypatch, 1) as mode:
            for _ in range(8):
                torch.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
                threads[-1].join()
    finally:
        kernels._destroy()
    # A thread of another test may hold the flag for a moment; then a call goes through Python.
    assert [state[1:] for state in states] == [(True, True)] * 8
    assert [state[0] for state in states[:2]] == [False] * 2
    assert sum(state[0] for state in states[2:]) >= 4
    assert [(row.action, row.count) for row in mode.records] == [("native", 8)]


class Leaf(torch.nn.Module):
    """Adds at indices."""

    def forward(self, *arguments):
        return added(*arguments)


class Branch(Leaf):
    """Adds at indices, and has a leaf do it as well."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Leaf(), Leaf()

    def forward(self, leaf, *arguments):
        return super().forward(*arguments) + leaf(*arguments)


class Root(torch.nn.Module):
    """Has a branch."""

    def __init__(self):
        super().__init__()
        self.branch = Branch()

    def forward(self, *arguments):
        return self.branch(*arguments)


def test_a_module_that_gets_another_path(replays, monkeypatch):
    """One that was first called alone is shown where the model has it, once that is known."""

    def program():
        root = Root()
        branch = root.branch
        for called, leaf in ((branch, branch.left), (root, branch.left), (root, branch.right)):
            for _ in range(4):
                called(leaf, *data())

    (_, in_python), (_, by_player) = both(monkeypatch, program)
    assert replays() > 8
    assert by_player == in_python
    assert {"Branch", "Root.branch"} <= {name for row in by_player for name in row[2]}


def test_the_order_of_the_calls(replays, monkeypatch):
    """The report's course has the calls in order, those of the player among Python's."""

    def program():
        x, index, source = data()
        for _ in range(6):
            added(x, index, source)
            torch.ones(6).scatter_reduce(0, index, source[:, 0], "prod")
            index.bincount(source[:, 0])  # has no plan

    courses = []
    for number in (0, 1):
        with way(monkeypatch, number) as mode:
            program()
        courses.append(mode.report().course)
    assert replays() > 3
    assert courses[0] == courses[1]


# What Python decides on


def test_allow_regions_overrides_and_recheck(replays, monkeypatch):
    """Calls that more than their arguments decide on are Python's."""
    arguments = data()
    with way(monkeypatch, 1, overrides={"aten::put": "allow"}), way(monkeypatch, 1, recheck=1.0):
        again(lambda: added(*arguments))
    assert replays() == 0
    with way(monkeypatch, 1) as mode:
        again(lambda: added(*arguments))
        before = replays()
        with allow("aten::index_add"):
            again(lambda: added(*arguments))
            assert replays() == before > 0
        again(lambda: added(*arguments))
    assert replays() > before
    assert [(row.action, row.count) for row in mode.records] == [("substitute", 8), ("allow", 4)]


@pytest.mark.parametrize("action", ["allow", "native", "warn"])
@pytest.mark.filterwarnings("ignore")  # what varies
def test_overrides_of_operators(action, replays, monkeypatch):
    """The action is the override's; calls of operators that none names are made again."""

    def program():
        for _ in range(6):
            before = replays()
            gathered(torch.ones(3, 3, requires_grad=True)).backward()
            of_named.append(replays() - before)
            added(*data())
        others.append(replays() - sum(of_named[-6:]))

    of_named, others = [], []
    overrides = {"aten::scatter_add": action}
    (_, in_python), (_, by_player) = both(monkeypatch, program, overrides=overrides)
    assert by_player == in_python
    assert of_named == [0] * 12
    assert others[-1] >= 3


def gathered(x):
    """Adds at indices in its backward."""
    return x.gather(0, torch.tensor([[0, 0, 2], [1, 1, 1]])).sin().sum()


class Gathered(torch.autograd.Function):
    """Adds at indices in a backward that is a function of Python's."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return added(grad, torch.tensor([0, 0, 1, 1, 2]), torch.ones(5, 3))


class Quiet(torch.nn.Module):
    """Adds at indices without gradients, which a checkpoint does again in its backward."""

    def forward(self, x):
        with torch.no_grad():
            offset = added(x, torch.tensor([0, 0, 1, 1, 2]), torch.ones(5, 3))
        return gathered(x + offset)


QUIET = Quiet()
BACKWARDS = {
    "of an operator": gathered,
    "of a function of Python's": lambda x: Gathered.apply(x).sum(),
    "of a checkpoint": lambda x: checkpoint(gathered, x, use_reentrant=False),
    "of a re-entrant checkpoint": lambda x: checkpoint(gathered, x, use_reentrant=True),
    "of a re-entrant checkpoint of a module": lambda x: checkpoint(QUIET, x, use_reentrant=True),
    "twice": lambda x: torch.autograd.grad(gathered(x), x, create_graph=True)[0].square().sum(),
}


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards_after_a_region(name, warn_only, replays, monkeypatch):
    """They are allowed if their forward was, and others are made by the player, as before it."""
    after = regions_and_backwards(BACKWARDS[name], replays, monkeypatch, warn_only=warn_only)
    if "Python" not in name and "checkpoint" not in name:
        assert after[-2] > after[-4] > 0  # the last call was allowed


@only_listed
@pytest.mark.parametrize("warn_only", [False, True])
def test_backwards_after_a_region_in_another_thread(warn_only, replays, monkeypatch):
    """As in the thread that has entered the block."""
    after = regions_and_backwards(
        gathered, replays, monkeypatch, in_another_thread, warn_only=warn_only
    )
    assert after[-2] > after[-4] > 0


def regions_and_backwards(forward, replays, monkeypatch, run=lambda f: f(), **arguments):
    """The number of replays after each of twelve backwards; every third forward is allowed."""

    def program():
        x = torch.ones(3, 3, requires_grad=True)
        for i in range(12):
            with allow("aten::scatter_add", "aten::index_add") if i % 3 == 2 else nullcontext():
                result = forward(x)
            result.backward()
            after.append(replays())
        return x.grad

    after = []
    (expected, in_python), (bits, by_player) = both(monkeypatch, lambda: run(program), **arguments)
    assert same_bits([bits], [expected])
    assert by_player == in_python
    actions = Counter()
    for line, count, *_ in by_player:
        actions[line[1]] += count
    assert actions["allow"] >= 4
    assert actions["substitute"] >= 8
    return after


def test_a_region_reaches_the_backward_of_a_backward(replays, monkeypatch):
    """The nodes of a backward take over what was allowed at the forward."""
    gather = Rule(
        op="aten::gather", when=on("cuda"), action=Native(), guarantee=RUN_TO_RUN, because="a test"
    )
    pool = torch.ops.aten.max_pool3d_with_indices

    def program():
        x = torch.ones(1, 1, 4, 4, 4, requires_grad=True)
        for i in range(12):
            with allow("aten::gather") if i % 3 == 2 else nullcontext():
                values, _ = pool(x, [2, 2, 2])
            (grad,) = torch.autograd.grad(values.square().sum(), x, create_graph=True)
            grad.square().sum().backward()

    table = default_rules() + [gather]
    (_, in_python), (_, by_player) = both(monkeypatch, program, rules=table, warn_only=True)
    assert by_player == in_python
    gathered = {line[1]: count for line, count, *_ in by_player if "gather" in line[0]}
    assert gathered == {"native": 8, "allow": 4}


@only_listed
def test_a_region_of_another_thread(replays, monkeypatch):
    """While it is open, Python makes all calls; it ends wherever its end comes from."""
    arguments, opened, done = data(), threading.Event(), threading.Event()

    def work():
        with allow("aten::index_add"):
            opened.set()
            assert done.wait(60)
            again(lambda: added(*arguments))

    with way(monkeypatch, 1) as mode:
        again(lambda: added(*arguments))
        thread = threading.Thread(target=work)
        thread.start()
        assert opened.wait(60)
        before = replays()
        again(lambda: added(*arguments))
        assert replays() == before > 0
        done.set()
        thread.join()
        again(lambda: added(*arguments))
        assert replays() > before
    assert sum(row.count for row in mode.records if row.action == "substitute") == 12
    assert sum(row.count for row in mode.records if row.action == "allow") == 4


def nested(mode, inner, replays):
    """Calls in a block, in an inner one, and behind that: the replays of each."""
    numbers = []
    with mode:
        for block in (nullcontext(), inner, nullcontext()):
            before = replays()
            with block:
                again(lambda: added(*data()))
                in_another_thread(lambda: again(lambda: added(*data())))
            numbers.append(replays() - before)
    return numbers


@pytest.mark.parametrize("is_same", [False, True])
def test_nested_blocks(is_same, replays, monkeypatch):
    """The innermost block decides, in the player too if it lists, and the outer one goes on."""
    reports = []
    for number in (0, 1):
        monkeypatch.setenv(native.VARIABLE, str(number))
        outer, inner = (
            DeterministicMode(simulate="cuda", intercept=chosen.intercept) for _ in range(2)
        )
        replayed = nested(outer, outer if is_same else inner, replays)
        counts = [sum(row.count for row in mode.records) for mode in (outer, inner)]
        heads = [mode.report().head.get("not_seen") for mode in (outer, inner)]
        reports.append((rows(outer), rows(inner), counts, heads))
    assert reports[0] == reports[1]
    threads = 2 if chosen.intercept == "listed" else 1  # a mode does not act in another one
    expected = [12, 0] if is_same else [8, 4]
    assert reports[1][2] == [threads * count for count in expected]
    assert replayed[0] > 0
    assert replayed[2] > 0
    assert (replayed[1] > 0) is (chosen.intercept == "listed")


@only_listed
def test_a_mode_for_each_step_looks_nothing_up_at_its_beginning(replays, monkeypatch):
    """The facts about operators are the table's: the player learns them with its first mode."""
    with way(monkeypatch, 1):
        pass
    looked_up = []
    get = RuleTable.get
    monkeypatch.setattr(RuleTable, "get", lambda *a: (looked_up.append(a[1]), get(*a))[1])
    with way(monkeypatch, 1):
        assert looked_up == []
        added(*data())
    assert looked_up != []


def works(modes, replays, calls=6):
    """Threads that have blocks of their own at a time, before and behind it, and one without."""
    barrier, numbers, errors = threading.Barrier(3), [], []

    def work(block):
        try:
            again(lambda: added(*data()), calls)
            barrier.wait(60)
            with block:
                barrier.wait(60)
                before = replays()
                again(lambda: added(*data()), calls)
                barrier.wait(60)
                numbers.append(replays() - before)
                barrier.wait(60)
            barrier.wait(60)
            again(lambda: added(*data()), calls)
        except BaseException as error:
            errors.append(error)
            raise

    blocks = (*modes, nullcontext())
    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return numbers


@pytest.mark.parametrize("is_same", [False, True])
@only_listed
def test_blocks_of_several_threads(is_same, replays, monkeypatch):
    """The player acts for those of one mode, and tells the calls that are not the blocks' own."""
    reports = []
    for number in (0, 1):
        monkeypatch.setenv(native.VARIABLE, str(number))
        modes = [DeterministicMode(simulate="cuda", intercept="listed") for _ in range(2)]
        if is_same:
            modes[1] = modes[0]
        with modes[0]:
            replayed = works(modes, replays)
        counts = [sum(row.count for row in mode.records) for mode in modes]
        heads = [mode.report().head.get("not_seen") for mode in modes]
        reports.append((*map(rows, modes), counts, heads))
    if is_same:
        assert reports[0] == reports[1]
        assert reports[1][2] == [54, 54]
        assert all(count > 0 for count in replayed)
    else:
        assert sum(reports[1][2]) == 54
        assert replayed == [0, 0, 0]


@pytest.mark.parametrize("is_outside", [False, True])
def test_other_modes(replays, monkeypatch, is_outside):
    """A dispatch mode around the block, or inside it, sees the calls that it would see."""
    arguments = data()
    seen = []
    for number in (0, 1):
        seeing = Seen()
        with contextlib.ExitStack() as stack:
            if is_outside:
                stack.enter_context(seeing)
            mode = stack.enter_context(way(monkeypatch, number))
            if not is_outside:
                stack.enter_context(seeing)
            again(lambda: added(*arguments))
        seen.append((seeing.names, rows(mode)))
    assert seen[0] == seen[1]
    assert seen[0][0]


def fake():
    with torch._subclasses.FakeTensorMode() as mode:
        return tuple(added(*map(mode.from_tensor, data())).shape)


def traced():
    return make_fx(added, tracing_mode="fake")(*data()).code


def in_inference_mode():
    with torch.inference_mode():
        result = added(*data())
        assert result.is_inference()
    return result.clone()


def summed(x):
    return added(x, *data()[1:]).square().sum()


SURROUNDINGS = {
    "vmap": lambda: torch.func.vmap(added, (0, None, None))(torch.ones(2, 6, 3), *data()[1:]),
    "grad": lambda: torch.func.grad(summed)(data()[0]),
    "jvp": lambda: torch.func.jvp(summed, (data()[0],), (data()[0],)),
    "fake tensors": fake,
    "make_fx": traced,
    "inference mode": in_inference_mode,
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
def test_surroundings(name, replays, monkeypatch):
    """Transforms, tracers, subclasses, views and variants give what Python's way gives."""

    def program():
        results = [SURROUNDINGS[name]() for _ in range(4)]
        assert len(set(map(type, results))) == 1
        return results

    (expected, in_python), (results, by_player) = both(monkeypatch, program)
    assert by_player == in_python
    for value, known in zip(results, expected):
        are_plain = not isinstance(value, torch.Tensor) and not torch.is_tensor(value[0])
        assert value == known if are_plain else same_bits(tensors(value), tensors(known))


def convolved(x=None):
    return F.conv1d(torch.ones(2, 1, 6) if x is None else x, torch.ones(1, 1, 2))


def convolved_in_inference_mode():
    with torch.inference_mode():
        return convolved()


def convolved_with_an_error():
    with pytest.raises(RuntimeError, match="to have 1 channels"):
        convolved(torch.ones(2, 3, 6))


NATIVE_SURROUNDINGS = {
    "vmap": lambda: torch.func.vmap(convolved)(torch.ones(3, 2, 1, 6)),
    "grad": lambda: torch.func.grad(lambda x: convolved(x).sum())(torch.ones(2, 1, 6)),
    "jvp": lambda: torch.func.jvp(convolved, (torch.ones(2, 1, 6),), (torch.ones(2, 1, 6),)),
    "inference mode": convolved_in_inference_mode,
    "a subclass": lambda: convolved(TwoTensor(torch.ones(2, 1, 6), torch.ones(2, 1, 6))),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(convolved)(),
    "shared memory": lambda: (lambda x: F.conv1d(x, x[:1, :, :2]))(torch.ones(2, 1, 6)),
    "an error": convolved_with_an_error,
    "backward": lambda: convolved(torch.ones(2, 1, 6, requires_grad=True)).sum().backward(),
}


@pytest.mark.parametrize("name", NATIVE_SURROUNDINGS)
def test_native_calls_as_with_a_dispatch_mode(name, replays, monkeypatch):
    """Transforms, subclasses and errors: row for row, count for count."""

    def program():
        for _ in range(4):
            NATIVE_SURROUNDINGS[name]()

    by_mode, by_player = in_both_ways(monkeypatch, program)
    assert rows_of_both(by_player) == rows_of_both(by_mode)


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
def test_errors(name, replays, monkeypatch):
    """Errors are ATen's, by type and words; the right program then runs on."""

    def program():
        added(*data())
        texts = []
        for _ in range(3):
            with pytest.raises((RuntimeError, IndexError, TypeError)) as raised:
                ERRORS[name]()
            texts.append((raised.type, str(raised.value)))
        return texts, again(lambda: added(*data()))

    results = both(monkeypatch, program)
    ((expected, bits), in_python), ((texts, own_bits), by_player) = results
    assert texts == expected
    assert torch.equal(own_bits, bits)
    assert by_player == in_python
    assert replays()


# Threads, forks, interrupts


@only_listed
def test_threads(replays, monkeypatch):
    """Four threads at once: each result is its own, and every call is counted, with the threads."""
    seen = []
    for number in (0, 1):
        wrong = []

        def work(wrong=wrong):
            for i in range(60):
                x, index, source = data(4 + i % 5, i % 7)
                expected = x.clone()
                for row, addend in zip(index.tolist(), source):
                    expected[row] += addend
                if not torch.allclose(added(x, index, source), expected, atol=1e-5):
                    wrong.append(i)

        with way(monkeypatch, number) as mode:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong
        seen.append((rows(mode), mode.report().head["not_seen"]))
    assert replays() > 50
    assert seen[0] == seen[1]


def test_another_thread_has_its_own_notes(replays, monkeypatch):
    """The backward of a thread's forward calls has their lines; numbers of nodes repeat there."""
    (_, in_python), (_, by_player) = both(monkeypatch, lambda: in_another_thread(trained))
    assert by_player == in_python


@needs.posix
def test_a_forked_child(replays, monkeypatch):
    """It goes on with the player, counts for itself, and ends."""
    arguments = data()
    with way(monkeypatch, 1) as mode:
        expected = again(lambda: added(*arguments))

        def check():
            before = replays()
            same = torch.equal(again(lambda: added(*arguments)), expected)
            return same and replays() > before and sum(row.count for row in mode.records) == 8

        assert exit_code_of_child(check) == 0
        again(lambda: added(*arguments))
    assert sum(row.count for row in mode.records) == 8


class Interrupt(BaseException):
    """An error that a signal handler raises."""


def test_an_interrupt_in_a_replay(replays, monkeypatch):
    """It comes through, is counted as a call, and the next call is right."""
    arguments = data()
    launch_blocks = host.launch_blocks

    def interrupted(*args):
        monkeypatch.setattr(host, "launch_blocks", launch_blocks)
        raise Interrupt

    with way(monkeypatch, 1) as mode:

        def calls():
            return added(*arguments)

        expected = again(calls)
        before = replays()
        monkeypatch.setattr(host, "launch_blocks", interrupted)
        with pytest.raises(Interrupt):
            calls()
        assert torch.equal(calls(), expected)
        assert replays() == before + 1
    assert [row.count for row in mode.records] == [6]


ENDS = {
    "inside a block": "with mode:\n    use()\n    raise SystemExit(0)",
    "in a block that nobody leaves": "mode.__enter__()\nuse()",
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_program(name, player, monkeypatch, tmp_path):
    """However it ends, the exit code is its own, and nothing is printed."""
    monkeypatch.setenv(native.VARIABLE, "1")
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
    ended = run_forked("-c", [[text]], tmp_path, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, "")


# Memory


class First(torch.nn.Module):
    """Calls a function."""

    def forward(self, function, *arguments):
        return function(*arguments)


class Second(First):
    """Has another name."""


def test_code_and_modules_come_and_go(replays, monkeypatch):
    """Addresses are reused by new code and new modules: lines and paths are those of the calls."""
    x, index, source = data()

    def use(i):
        """Call a new function in a new module, three times; return their addresses."""
        text = "\n" * i + "def use(x, index, source): return x.index_add(0, index, source)"
        names = {}
        exec(compile(text, "/program/file.py", "exec"), names)
        kind = (First, Second)[i % 2]
        module = kind()
        function = names.pop("use")  # else it is in a cycle
        for _ in range(3):
            module(function, x, index, source)
        return id(function.__code__), id(module)

    def program():
        return [use(i) for i in range(40)]

    (_, in_python), (addresses, by_player) = both(monkeypatch, program)
    assert all(len(set(of_one_kind)) < 40 for of_one_kind in zip(*addresses))
    assert replays() >= 40
    assert by_player == in_python
    assert len(by_player) == 40
    gc.collect()
    assert not native_ops._known & {address for pair in addresses for address in pair}


def test_ever_new_shapes(replays, monkeypatch):
    """The player's plans are bounded: it forgets them, learns again, and stays right."""
    shapes = 100_000 if selection.PROFILE_NAME == "full" else 40
    monkeypatch.setattr(native_calls, "_PLANS", shapes // 5)
    with way(monkeypatch, 1) as mode:
        for n in range(1, shapes + 1):
            x, index, source = data(n)
            bits = [added(x, index, source) for _ in range(4)]
            assert same_bits(bits, bits[:1] * 4)
            known = mode_knows(mode)
            assert known <= shapes // 5
    assert replays() > shapes
    assert [row.count for row in mode.records] == [4 * shapes]


def test_a_mode_that_is_entered_after_many_others(replays, monkeypatch):
    """It goes on with what it has learned, and the others leave nothing behind."""
    arguments = data()

    def use(mode):
        with mode:
            again(lambda: added(*arguments))

    def made():
        return DeterministicMode(simulate="cuda", intercept=chosen.intercept)

    first = made()
    use(first)
    gc.collect()
    monkeypatch.setattr(native_log, "_MOST_NOTES", 8)  # of what may be forgotten
    before = len(native_log._entries), replays()
    for _ in range(20):
        use(made())
    gc.collect()
    assert len(native_log._entries) == before[0]
    of_others = replays()
    assert of_others >= before[1] + 20
    use(first)
    assert [row.count for row in first.records] == [8]
    assert replays() == of_others + 3  # Python sees the first one, in a block of another table


def mode_knows(mode):
    """The number of plans that the player has for a mode."""
    return native_calls._PLANS - mode.taught._table.left["plans"]


def growth(function, times):
    """The kilobytes by which the process grows over calls of a function."""

    def size():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    for _ in range(2000):
        function()
    before = size()
    for _ in range(times):
        function()
    return size() - before


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_calls_do_not_grow_memory(replays, player, monkeypatch):
    """Neither the process nor an argument's references grow: 10^6 calls in the full profile."""
    times = 1_000_000 if selection.PROFILE_NAME == "full" else 20_000
    monkeypatch.setattr(host, "launch_blocks", lambda *_: None)
    arguments = data()
    uses = [torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in arguments]
    x, weight = torch.ones(1, 1, 4), torch.ones(1, 1, 2)
    with way(monkeypatch, 1) as mode:
        again(lambda: added(*arguments))
        player.dm_host_step(None)
        try:
            assert growth(lambda: (added(*arguments), F.conv1d(x, weight)), times) < 4096
        finally:
            player.dm_host_step(host_steps.make)
    assert replays() >= times
    assert [row.count for row in mode.records] == [times + 2004, times + 2000]
    assert [torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in arguments] == uses
