"""Calls that the player makes without Python, and what it tells apart to do so."""

import pytest
import torch
import torch.nn.functional as F

from detmode.mode import overload_info
from detmode.sites import forward_memory
from detmode.sites.forward_memory import ForwardMemory
from tests.mode.native_calls.ways import again, convolved, only_listed
from tests.shared.programs import in_threads
from tests.shared.sparse_matrices import sparse_matrices

either_flag = pytest.mark.parametrize("warn_only", [False, True])


@either_flag
def test_native_calls(warn_only, ways, in_python):
    """Forward and backward of a convolution, whether or not PyTorch's flag only warns."""
    x = torch.ones(2, 1, 6, requires_grad=True)

    def step():
        convolved(x).sum().backward()

    with ways.by_player(warn_only=warn_only) as mode:
        assert again(lambda: in_python(step), 5) == 0
    counts = {row.overload: (row.action, row.count) for row in mode.records}
    for name in ("aten::convolution.default", "aten::convolution_backward.default"):
        assert counts[name] == ("native", 5)


@pytest.mark.parametrize("reads", [False, True])
# PyTorch tells that the test's own kernel overrides ATen's.
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@only_listed
def test_a_kernel_that_looks_at_warn_only(reads, ways, monkeypatch):
    """It gets the strict flag at every call, also from several threads; others get it as it is."""
    ops = frozenset({"aten::convolution"} if reads else ())
    monkeypatch.setattr(overload_info, "_readers_of_warn_only", lambda: ops)
    kernels, settings = torch.library.Library("aten", "IMPL"), []

    def kernel(x, *_):
        settings.append(torch._C._get_deterministic_algorithms_warn_only())
        return x.clone()

    kernels.impl("convolution", kernel, "CPU")
    try:
        with ways.by_player(warn_only=True) as mode:
            in_threads(*[lambda: again(convolved, 8)] * 3)
            assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        kernels._destroy()
    assert settings == [not reads] * 24
    assert sum(row.count for row in mode.records) == 24


def taken(x):
    return x.topk(2).values.sum()


@either_flag
def test_calls_that_do_not_vary(warn_only, ways, in_python):
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
    rows = ways.same(program, warn_only=warn_only)
    assert len(rows) == 1  # of the one line in which both forwards are called
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


@either_flag
def test_sizes_by_values(warn_only, ways, in_python):
    """Masks and bins of other counts at each call, and then of known counts."""

    def program():
        results = []
        for seed in [1, 2, 3, 4] * 6:
            numbers.append(in_python(lambda seed=seed: results.extend(by_values(seed))))
        return results

    numbers = []
    ways.same(program, warn_only=warn_only)
    assert ways.replayed > 12
    assert sum(numbers[-3:]) == 0  # where values are more than one


def test_a_negative_bin(ways):
    """It is ATen's error, also after calls that were made without Python."""

    def counted(*bins):
        return torch.tensor(bins).bincount(torch.ones(3))

    def program():
        again(lambda: counted(1, 0, 2), 5)
        with pytest.raises(RuntimeError) as raised:
            counted(-1, 0, 2)
        return str(raised.value), counted(1, 0, 2)

    ways.same(program)


def test_sparse_matrices_are_told_apart(ways, in_python):
    """By layout, entries, order, dtypes, strides and alignment of what they consist of."""
    matrices, dense = sparse_matrices(), torch.arange(12.0).view(4, 3)

    def products(factor):
        """All from one line, with sums of products, and their backward."""
        results = []
        for matrix in matrices.values():
            weight = dense.to(matrix.dtype).mul(factor).requires_grad_()
            result = torch.sparse.addmm(weight[:, :1] + 1, matrix, weight, beta=0.5, alpha=2)
            result.sum().backward()
            results += [result.detach(), weight.grad, (matrix @ weight.detach()).detach()]
        return results

    def program():
        results = []
        for factor in (1, 2, 4, 3, 5, 7):
            numbers.append(in_python(lambda factor=factor: results.extend(products(factor))))
        return results

    numbers = []
    ways.same(program)
    assert ways.replayed >= 2 * len(matrices)
    assert numbers[-1] == 0


@pytest.mark.thorough
@only_listed
def test_each_of_many_keys_is_learned(ways, in_python):
    """Two whose hashes have a part in common do not keep each other from it."""

    def step():
        for n in range(1, 400):
            torch.ones(n).cumsum(0)

    with ways.by_player():
        assert again(lambda: in_python(step), 6) == 0


def test_operators_that_a_plan_calls(ways, in_python):
    """An indexed sum over several dimensions numbers its elements by an operator of ATen's."""
    index = torch.tensor([[[0, 2], [1, 1]], [[1, 0], [2, 2]]])

    def program():
        results = []

        def add(source):
            results.append(torch.ones(2, 3, 2).scatter_add(1, index, source))

        for i in range(6):
            numbers.append(in_python(add, torch.arange(8.0).view(2, 2, 2) + i))
        return results

    numbers = []
    ways.same(program)
    assert numbers[-1] == 0


def noting(model, x):
    """Calls whose backward is listed: a lookup, padding, pooling; without gradients, too."""
    y = F.pad(model(x)[None], [1, 1], mode="reflect")
    with torch.no_grad():
        F.pad(y, [1, 1], mode="reflect")
    return F.adaptive_avg_pool1d(y, 3).square().sum()


@either_flag
def test_forwards_are_noted(warn_only, ways, monkeypatch):
    """The backward has the lines and modules of forwards whose kernels stand at autograd's key."""
    model, x = torch.nn.Embedding(4, 6), torch.tensor([0, 1, 1])
    located, numbers = [], []

    def program():
        for _ in range(6):
            before = len(located)
            noting(model, x).backward()
            numbers.append(len(located) - before)

    code = compile(
        "def find_site(*args, **kwargs):\n    count()\n    return original(*args, **kwargs)",
        forward_memory.__file__,
        "exec",
    )
    names = {"count": lambda: located.append(None), "original": ForwardMemory.find_site}
    exec(code, names)
    monkeypatch.setattr(ForwardMemory, "find_site", names["find_site"])
    rows = ways.same(program, warn_only=warn_only)
    assert {"Embedding"} <= {name for row in rows for name in row[2]}
    assert numbers[5] >= 3
    assert numbers[-1] == 0
