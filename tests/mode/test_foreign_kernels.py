"""The inside of other libraries' operators: a mode receives what their kernels call."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from detmode import (
    Allow,
    DeterministicMode,
    Native,
    Rule,
    Substitute,
    allow,
    audit,
    default_rules,
    probe,
    record,
)

PLACES = torch.tensor([1, 1])


@torch.library.custom_op("detmode_foreign::sum_into", mutates_args=())
def sum_into(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3).index_add(0, PLACES, x)


@sum_into.register_fake
def _(x):
    return x.new_empty(3)


def _backward(ctx, grad):
    return torch.zeros(2).index_add(0, torch.tensor([1, 1, 0]), grad)


sum_into.register_autograd(_backward)


@sum_into.register_vmap
def _(info, in_dims, x):
    return torch.stack([sum_into(row) for row in x.movedim(in_dims[0], 0)]), 0


@torch.library.custom_op("detmode_foreign::outer", mutates_args=("x",))
def outer(x: torch.Tensor) -> None:
    x.add_(sum_into(x[:2]))


@torch.library.custom_op("detmode_foreign::product", mutates_args=())
def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


@torch.library.custom_op("detmode_foreign::made", mutates_args=())
def made(n: int) -> torch.Tensor:
    return torch.zeros(n).index_add(0, PLACES, torch.ones(2))


@torch.library.custom_op("detmode_foreign::scaled", mutates_args=())
def scaled(x: torch.Tensor, *, func: int, key: int, keys: int, call: int) -> torch.Tensor:
    return sum_into(x) * func


def rows(mode):
    return [(row.overload, row.count) for row in mode.report().records]


@pytest.fixture
def mode():
    return DeterministicMode(simulate="cuda")


@pytest.fixture
def x():
    return torch.ones(2, requires_grad=True)


SUMS = ("aten::index_add.default", 1)
UNLISTED = "not checked: detmode_foreign::sum_into, which no rule lists"


@pytest.mark.parametrize("intercept", ["all", "listed"])
@pytest.mark.parametrize("action", [None, Allow(), Native(), Substitute(scaled, launches=False)])
def test_arguments_have_any_names(intercept, action, tmp_path):
    """An operator's own argument may have the name of a parameter through which it passes."""
    rules = default_rules()
    if action is not None:
        guarantee = None if isinstance(action, Allow) else "run_to_run"
        why = {"guarantee": guarantee, "because": "a test"}
        rules += [Rule(op="detmode_foreign::scaled", action=action, **why)]
    mode = DeterministicMode(simulate="cuda", rules=rules, intercept=intercept)
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        with record(tmp_path / str(x.requires_grad)), mode:
            assert scaled(x, func=2, key=1, keys=1, call=1).tolist() == [0, 4, 0]


def test_the_body_and_its_backward_have_rows(mode, x):
    """Calls of the body, and of its registered backward, are substituted and counted."""
    with mode:
        result = sum_into(x)
        result.sum().backward()
    assert rows(mode) == [SUMS, SUMS]
    assert mode.report().verdict.startswith(UNLISTED)
    assert torch.equal(result, sum_into(x))
    assert x.grad.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("call", [lambda: outer(torch.ones(3)), lambda: made(3)])
def test_bodies_in_bodies_and_operators_without_tensors(mode, call):
    """An operator's body may call another's, write its argument, or make a tensor."""
    with mode:
        call()
    assert rows(mode) == [SUMS]


def test_an_audit_sees_the_inside(x):
    """An audit has the rows of the body, on CPU tensors."""
    report = audit(lambda: sum_into(x).sum().backward())
    assert [(row.overload, row.count) for row in report.records] == [SUMS, SUMS]
    assert report.verdict.startswith(UNLISTED)


def test_an_audit_counts_the_bytes_once():
    """The bytes of the body's calls stand for the operator's; of an opaque kernel, its own do."""
    lib = torch.library.Library("detmode_foreign_opaque", "DEF")
    lib.define("half(Tensor x) -> Tensor")
    lib.impl("half", lambda x: torch.from_numpy(x.numpy() / 2), "CPU")
    moved = audit(lambda: torch.ops.detmode_foreign_opaque.half(torch.ones(8)))
    assert moved.total.bytes >= 2 * 8 * 4
    x = torch.ones(2, 2)
    assert audit(lambda: product(x)).total == audit(lambda: x @ x).total


def test_what_would_raise_raises_inside():
    """A refused call in a body raises PyTorch's message, and the mode goes on afterwards."""

    @torch.library.custom_op("detmode_foreign::refused", mutates_args=())
    def refused(x: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, PLACES, torch.ones(2))

    with DeterministicMode(simulate="cuda", overrides={"aten::index_add": "error"}) as mode:
        with pytest.raises(RuntimeError, match="index_add"):
            refused(torch.zeros(3))
        torch.zeros(3).scatter_add(0, PLACES, torch.ones(2))
    assert [row.action for row in mode.report().records] == ["error", "substitute"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_calls_the_operator_whole(mode, x, backend):
    """The graph has the operator; what its body calls is met when the graph runs."""
    with mode:
        torch.compile(sum_into, backend=backend, fullgraph=True)(x).sum().backward()
    assert [name for name, _ in rows(mode)].count(SUMS[0]) == 2


def test_tracers_get_the_operator_whole(mode):
    """Fake tensors, meta tensors and ``make_fx`` meet the operator, not its body."""
    with mode:
        assert sum_into(torch.ones(2, device="meta")).shape == (3,)
        traced = make_fx(sum_into)(torch.ones(2))
    with FakeTensorMode(), mode:
        assert sum_into(torch.ones(2)).shape == (3,)
    assert "detmode_foreign.sum_into" in traced.code
    assert SUMS not in rows(mode)


def test_vmap(mode):
    """The registered rule of ``vmap`` is used, and what it calls is met."""
    with mode:
        torch.vmap(sum_into)(torch.ones(4, 2))
    assert rows(mode) == [(SUMS[0], 4)]


def test_autocast_casts_in_the_body_as_without_a_mode(mode):
    """Under autocast the body's products are cast as they are outside."""
    with torch.autocast("cpu", torch.bfloat16):
        expected = product(torch.ones(2, 2))
        with mode:
            assert product(torch.ones(2, 2)).dtype == expected.dtype == torch.bfloat16


def test_a_mode_around_that_is_not_detmodes_is_told(mode, caplog):
    """A mode around this one gets the operator whole; the log says once what is not seen."""
    with FlopCounterMode(display=False), mode:
        for _ in range(2):
            sum_into(torch.ones(2))
    assert [record.message for record in caplog.records] == [
        "what the kernel of detmode_foreign::sum_into calls is not seen: _FlopCounterMode is "
        "entered around DeterministicMode; enter it inside"
    ]
    with mode, FlopCounterMode(display=False):
        sum_into(torch.ones(2))
    assert rows(mode) == [SUMS]


def test_regions_and_rules_reach_the_body():
    """Allowed by a region, by an override or by a rule, an operator is allowed with its body."""
    name = "detmode_foreign::sum_into"
    rules = default_rules() + [Rule(op=name, action=Allow(), because="its places are distinct")]
    with DeterministicMode(simulate="cuda") as region, allow(name):
        sum_into(torch.ones(2))
    with DeterministicMode(simulate="cuda", overrides={name: "allow"}) as override:
        sum_into(torch.ones(2))
    with DeterministicMode(simulate="cuda", rules=rules) as ruled:
        sum_into(torch.ones(2))
        torch.ones(2)
    assert ruled.report().verdict.startswith("deterministic")
    assert rows(region) == rows(ruled) == []
    assert rows(override) == [(f"{name}.default", 1)]


def test_recordings_and_probes_have_the_operator(mode, tmp_path):
    """Around the mode, a recording and a probe observe the operator, and the mode its body."""
    with record(tmp_path / "trace"), mode:
        sum_into(torch.ones(2))
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert rows(mode) == [SUMS]
    assert b"detmode_foreign::sum_into" in text

    def program():
        with mode:
            sum_into(torch.ones(2))

    report = probe(program, repeats=2)
    assert rows(mode) == [(SUMS[0], 2)]
    assert not report.rows
    assert report.probed
