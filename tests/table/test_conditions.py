"""Conditions print as they are written and hold for the calls that they mean."""

from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.process.arguments import signature_of
from detmode.process.torch_settings import FLAG, deterministic_flag
from detmode.process.undo import Undo
from detmode.rules import default_rules, families
from detmode.table import conditions
from detmode.table.call import Call
from detmode.table.conditions import ALWAYS, COMPLEX, FLOATING, INTEGRAL, Condition
from detmode.table.rule_table import resolve
from detmode.verify.cases import samples_of

aten = torch.ops.aten
X = torch.ones(3, 4)


def call(func: Any, *args: Any, pretend: str | None = None, **kwargs: Any) -> Call:
    return Call(signature_of(func), args, kwargs, pretend)


def test_tensors_of_a_call():
    """Those in lists count, behind what is none too; sizes are no tensors."""
    first, second = torch.zeros(2), torch.ones(2)
    index = torch.tensor([0])
    for made, expected in (
        (call(aten.cat.default, [first, second]), [first, second]),
        (call(aten.index.Tensor, first, [None, index]), [first, index]),
        (call(aten.new_zeros.default, first, [2, 3]), [first]),
    ):
        assert list(map(id, made.tensors)) == list(map(id, expected))


def evaluated(text: str) -> Condition:
    return eval(text, {**vars(conditions), "torch": torch, "always": ALWAYS})


def odd_tensors() -> tuple[torch.Tensor | None, ...]:
    """Tensors without strides, elements or data, and none."""
    parts = [torch.ones(2), torch.ones(3)]
    return (
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor(parts),
        torch.nested.nested_tensor(parts, layout=torch.jagged),
        torch.tensor(1.0),
        torch.empty(0),
        torch.empty(2, device="meta"),
        None,
    )


@pytest.mark.parametrize("name", families())
def test_whatever_the_arguments_a_row_answers(name: str) -> None:
    """A condition that raised would hide what ATen says of arguments that it rejects."""
    for op, sample in {sample.op: sample for sample in samples_of(name).cases}.items():
        func = resolve(op)
        if func is None:
            continue
        given = signature_of(func).bind((), sample.arguments(sample.dtypes[0]))
        for argument, value in given.items():
            odd = odd_tensors() if isinstance(value, torch.Tensor) else (-99, *range(8))
            for other in odd if isinstance(value, (torch.Tensor, int)) else ():
                odd_call = Call(signature_of(func), (), {**given, argument: other}, "cuda")
                for row in default_rules().get(func):
                    assert row.rule.when(odd_call) in (True, False)


def test_prints_as_written() -> None:
    """The text of every condition in the table is an expression that makes it again."""
    for row in default_rules():
        when = row.rule.when
        assert when != str(when) == repr(when)
        again = evaluated(str(when))
        assert again == when
        assert again.arguments == when.arguments
        assert again.dtypes == when.dtypes


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("on('cpu')", call(aten.relu.default, X), True),
        ("on('cuda')", call(aten.relu.default, X), False),
        ("on('cuda')", call(aten.relu.default, X, pretend="cuda"), True),
        ("on('cuda', 'cpu')", call(aten.relu.default, X), True),
        ("on('cuda', 'mps')", call(aten.relu.default, X), False),
        ("on('cpu')", call(aten.empty.memory_format, [3]), True),
        ("on('cuda')", call(aten.empty.memory_format, [3], device="cuda"), True),
        ("dtype_in('self', FLOATING)", call(aten.relu.default, X), True),
        ("dtype_in('self', INTEGRAL)", call(aten.relu.default, X), False),
        ("dtype_in('tensors', FLOATING)", call(aten.cat.default, [X.long(), X]), True),
        ("dtype_in('tensors', COMPLEX)", call(aten.cat.default, [X.long(), X]), False),
        ("result_dtype_in('self', FLOATING)", call(aten.cumsum.default, X, 0), True),
        ("result_dtype_in('self', FLOATING)", call(aten.cumsum.default, X.long(), 0), False),
        (
            "result_dtype_in('self', FLOATING)",
            call(aten.cumsum.default, X.long(), 0, dtype=torch.float64),
            True,
        ),
        ("result_dtype_in('self', FLOATING)", call(aten.cumsum.out, X.long(), 0, out=X), True),
        ("argument('dim', 0, 1)", call(aten.cumsum.default, X, 1), True),
        ("argument('dim', 0)", call(aten.cumsum.default, X, 1), False),
        ("argument('no_such', None)", call(aten.cumsum.default, X, 1), True),
        ("argument_given('weights')", call(aten.bincount.default, X.long()[0]), False),
        ("argument_given('weights')", call(aten.bincount.default, X.long()[0], X[0]), True),
        ("nonempty('self')", call(aten.relu.default, X), True),
        ("nonempty('self')", call(aten.relu.default, X[:0]), False),
        ("single('self')", call(aten.relu.default, X[:0]), False),
        ("single('self')", call(aten.relu.default, X[:1, :1]), True),
        ("single('self')", call(aten.relu.default, X[0, 0]), True),
        ("single('self')", call(aten.relu.default, X[0, :2]), False),
        ("sparse('self')", call(aten.relu.default, X.to_sparse()), True),
        ("sparse('self')", call(aten.relu.default, X), False),
        ("sparse('self', 'mat2')", call(aten.mm.default, X, X.T.to_sparse()), True),
        ("sparse('self', 'mat2')", call(aten.mm.default, X, X.T), False),
        ("sparse_by_dense('self', 'mat2')", call(aten.mm.default, X.to_sparse_csc(), X.T), True),
        ("sparse_by_dense('self', 'mat2')", call(aten.mm.default, X, X.T.to_sparse()), True),
        ("sparse_by_dense('self', 'mat2')", call(aten.mm.default, X, X.T), False),
        ("sparse_by_dense('self', 'vec')", call(aten.mv.default, X.to_sparse(1), X[0]), False),
        (
            "sparse_by_dense('self', 'mat2')",
            call(aten.mm.default, X.to_sparse(), X.T.to_sparse()),
            False,
        ),
        (
            "sparse_by_dense('self', 'mat2')",
            call(aten.mm.default, X[:2].to_sparse_bsr((1, 1)), X.T),
            False,
        ),
        ("quantized('self')", call(aten.relu.default, X), False),
        ("row_major('self')", call(aten.relu.default, X), True),
        ("row_major('self')", call(aten.relu.default, X.T), False),
        ("row_major('self')", call(aten.relu.default, X[:, :2]), False),
        ("lies_along('self', 'dim')", call(aten.cumsum.default, X, 0), False),
        ("lies_along('self', 'dim')", call(aten.cumsum.default, X[:1], -1), True),
        ("lies_along('self', 'dim')", call(aten.cumsum.default, X[:1], -2), False),
        ("lies_along('self', 'dim')", call(aten.cumsum.default, X[0], -1), True),
        ("lies_along('self', 'dim')", call(aten.cumsum.default, X[:1], 0), False),
        ("lies_along('self', 'dim')", call(aten.cumsum.default, X[0, 0], 0), False),
        ("bias_of('self', 'mat2')", call(aten.addmm.default, X[0], X.T, X), True),
        ("bias_of('self', 'mat2')", call(aten.addmm.default, X[0, :1], X.T, X), False),
        ("bias_of('self', 'mat2')", call(aten.addmm.default, X[0], X.T[:, :1], X[:1]), False),
        ("bias_of('self', 'mat2')", call(aten.addmm.default, X[:1], X.T, X), False),
        ("bias_of('self', 'mat2')", call(aten.addmm.default, X.T[0], X, X.T), False),
        ("bias_of('self', 'mat2')", call(aten.addmm.default, X[0, :1], X.T, X[:, :1]), False),
    ],
)
def test_holds(text: str, given: Call, expected: bool) -> None:
    """One call each for which a condition holds, or just does not."""
    assert evaluated(text)(given) is expected


def test_requires_grad_asks_grad_mode_too() -> None:
    """Under ``no_grad`` a tensor that requires grad makes no autograd node."""
    given = call(aten.relu.default, torch.ones(3, requires_grad=True))
    condition = conditions.requires_grad("self")
    assert condition(given)
    with torch.no_grad():
        assert not condition(given)


@pytest.mark.parametrize(
    ("size", "pooled", "uneven"),
    [
        ((4, 4, 4), (2, 4, 1), False),
        ((5, 4, 4), (2, 2, 2), True),
        ((4, 5, 4), (2, 2, 2), True),
        ((4, 4, 5), (2, 2, 2), True),
        ((4, 4, 4), (0, 2, 2), False),
    ],
)
def test_uneven_windows(size: tuple[int, ...], pooled: tuple[int, ...], uneven: bool) -> None:
    """Windows overlap where a size is no multiple of the output's; batch and channels are none."""
    condition = conditions.uneven_windows("self", "grad_output")
    for front in ((1, 3), (3,)):
        grad, input = torch.ones(*front, *pooled), torch.ones(*front, *size)
        given = call(aten.adaptive_max_pool3d_backward.default, grad, input, grad)
        assert condition(given) is uneven


def test_joined_conditions() -> None:
    """``&`` needs both, and keeps what both read."""
    both = conditions.on("cpu") & conditions.dtype_in("self", FLOATING)
    assert str(both) == "on('cpu') & dtype_in('self', FLOATING)"
    assert both.arguments == ("self",)
    assert both.dtypes == FLOATING
    assert both(call(aten.relu.default, X))
    assert not both(call(aten.relu.default, X.long()))
    assert str(conditions.dtype_in("self", FLOATING + COMPLEX)).endswith("FLOATING + COMPLEX)")
    assert str(conditions.dtype_in("self", INTEGRAL)) == "dtype_in('self', INTEGRAL)"


def test_flag_and_fill() -> None:
    """Settings are read when the call is made: what the program chose, not what a call holds."""
    given = call(aten.empty.memory_format, [3])
    for value in (True, False):
        undo = Undo()
        FLAG.choose((value, False), undo)
        with deterministic_flag(not value):
            assert conditions.deterministic_flag(value)(given)
            assert not conditions.deterministic_flag(not value)(given)
        undo.run()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    assert conditions.fill_uninitialized_memory(filled)(given)
    assert not conditions.fill_uninitialized_memory(not filled)(given)


@pytest.mark.parametrize(
    ("value", "unset"), [(None, True), (":4096:8", False), (":16:8", False), (":4096:2", True)]
)
def test_cublas_workspace(monkeypatch: pytest.MonkeyPatch, value: str | None, unset: bool) -> None:
    """Only the two values that PyTorch takes count, unless others are named."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    given = call(aten.mm.default, X, X.T)
    assert conditions.cublas_workspace_unset()(given) is unset
    assert conditions.cublas_workspace_unset(":4096:2")(given) is (value != ":4096:2")


@pytest.mark.parametrize(
    ("value", "allreduce", "reduce_scatter"),
    [
        (None, True, True),
        ("", True, True),
        ("^NVLS", True, True),
        ("^NVLSTree", True, True),
        ("^NVLS,NVLSTree", False, False),
        ("^Ring", True, True),
        ("Ring", False, False),
        ("Tree,NVLS", True, True),
        ("nvls", True, True),
        ("broadcast:ring", True, True),
        ("allreduce:ring", False, True),
        ("reducescatter:ring", True, False),
        ("AllReduce:Tree;ReduceScatter:^nvls,nvlstree", False, False),
        ("^NVLS,NVLSTree;allreduce:nvls", True, False),
        ("nvls;allreduce:tree,ring", False, True),
        ("ring;allreduce:nvls;allreduce:tree", False, False),
        # What NCCL refuses is no promise.
        ("Ring,Fast", True, True),
        ("ring;tree", True, True),
        ("gather:ring", True, True),
        (" ring", True, True),
        ("allreduce:", True, True),
    ],
)
def test_nvls(
    monkeypatch: pytest.MonkeyPatch, value: str | None, allreduce: bool, reduce_scatter: bool
) -> None:
    """NCCL_ALGO is read as NCCL reads it, for each function; what it leaves open is possible."""
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if value is not None:
        monkeypatch.setenv("NCCL_ALGO", value)
    possible = conditions.nvls_possible()
    functional = torch.ops._c10d_functional
    assert possible(call(functional.all_reduce.default, X, "sum", "group")) is allreduce
    scatter = call(functional.reduce_scatter_tensor.default, X, "sum", 2, "group")
    assert possible(scatter) is reduce_scatter


@pytest.mark.parametrize(
    ("algorithms", "more", "possible"),
    [
        # PyTorch's value is enough where its starter says that all ranks are on one node.
        ("^NVLS", {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}, False),
        ("^NVLS", {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"}, True),
        ("^NVLS", {"LOCAL_WORLD_SIZE": "8"}, True),
        ("NVLS", {"NCCL_NVLS_ENABLE": "0"}, False),
        ("NVLS", {"NCCL_NVLS_ENABLE": "1"}, True),
        ("NVLS", {"NCCL_NVLS_ENABLE": "2"}, True),
    ],
)
def test_nvls_by_other_variables(
    algorithms: str, more: dict[str, str], possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``^NVLS`` leaves out its tree on one node alone; NCCL_NVLS_ENABLE=0 excludes both."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in {"NCCL_ALGO": algorithms, **more}.items():
        monkeypatch.setenv(name, value)
    assert conditions.nvls_possible()(call(aten.relu.default, X)) is possible


@pytest.mark.parametrize("ranks", [2, 3])
def test_order_of_a_reduction(ranks: int) -> None:
    """MAX and MIN have none, nor has any operation of two ranks; what is not known has one.

    PyTorch 2.8 does not show the operation of ``c10d``'s own calls.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    functional = torch.ops._c10d_functional
    seen: dict[str, tuple[bool, bool]] = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = Call(signature_of(func), args, kwargs or {})
            if "reduce" in str(func):
                given = made.arguments["reduce_op"]
                is_shown = isinstance(given, str) or hasattr(given, "op")
                seen[f"{func} {name}"] = (is_shown, conditions.order_matters()(made))
            return func(*args, **(kwargs or {}))

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with Watch():
            for name in ("sum", "avg", "max", "min"):
                operation = getattr(distributed.ReduceOp, name.upper())
                distributed.all_reduce(torch.ones(2), op=operation)
                distributed.reduce(torch.ones(2), 0, op=operation)
                group = distributed.group.WORLD.group_name
                for result in (
                    functional.all_reduce(torch.ones(2), name, group),
                    functional.reduce_scatter_tensor(torch.ones(ranks), name, ranks, group),
                ):
                    functional.wait_tensor(result)
    finally:
        distributed.destroy_process_group()
    for call_name, (is_shown, has_order) in seen.items():
        is_extremum = is_shown and call_name.endswith(("max", "min"))
        assert has_order is (ranks > 2 and not is_extremum), call_name
    assert len(seen) == 16
    unknown = call(functional.all_reduce.default, X, "sum", "no such group")
    assert conditions.order_matters()(unknown)


def test_sizes_that_a_traced_graph_leaves_open() -> None:
    """No condition asks for a size that hangs on data: what may vary counts as varying."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.ones(3)[torch.ones(3) > 0]
        assert conditions.nonempty("self")(call(aten.relu.default, x))
        assert not conditions.single("self")(call(aten.relu.default, x))
        assert conditions.lies_along("self", "dim")(call(aten.cumsum.default, x, 0))
        output, image = torch.ones(1, 2, 2, 2), x.expand(1, 2, 2, -1)
        pooled = call(aten.adaptive_max_pool3d_backward.default, output, image, output)
        assert conditions.uneven_windows("self", "grad_output")(pooled)
        mat = x.expand(2, -1)
        assert not conditions.bias_of("self", "mat2")(call(aten.addmm.default, x, mat, mat))


def test_tensors_without_strides() -> None:
    """Conditions on shapes and strides do not hold for tensors that have none, and say no more."""
    for x in odd_tensors()[:3]:
        for text, given in (
            ("row_major('self')", call(aten.relu.default, x)),
            ("lies_along('self', 'dim')", call(aten.cumsum.default, x, 0)),
            (
                "uneven_windows('self', 'grad_output')",
                call(aten.adaptive_max_pool3d_backward.default, x, x, X.long()),
            ),
            ("bias_of('self', 'mat2')", call(aten.addmm.default, x, x, x)),
        ):
            assert evaluated(text)(given) is False
