"""Certificates of Triton's kernels, and of operators that launch some."""

import inspect
import itertools
import os
import random
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip(
    "triton",
    minversion="3.6",  # `certify` refuses an older one
    reason="Triton has no wheels for this platform",
    exc_type=ImportError,
)

import triton.language as tl

from detmode.verify.certificates import certify
from detmode.verify.certificates.orders import TooManyError, all_orders
from detmode.verify.certificates.triton import interpreter
from detmode.verify.certificates.triton.dependence import Step, Touch, meeting, relation
from detmode.verify.certificates.triton.schedules import Programs
from tests.verify.certificates import triton_kernels
from tests.verify.certificates.triton_kernels import CASES, integers
from tests.verify.certificates.triton_kernels import random as numbers


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if case.thorough else ())
        for name, case in CASES.items()
    ],
)
def test_verdicts(name):
    """Each kernel gets the verdict that it deserves, from two schedules or an access by name."""
    case = CASES[name]
    arguments = case.arguments()
    before = {key: each.clone() for key, each in arguments.items() if torch.is_tensor(each)}
    certificate = certify(case.kernel, arguments, grid=case.grid)
    assert str(certificate.verdict) == case.verdict, certificate
    assert case.found in certificate.summary
    assert certificate.all_orders == case.all_orders
    for key, each in before.items():
        torch.testing.assert_close(arguments[key], each, rtol=0, atol=0, equal_nan=True)


@triton.jit
def lanes(x, out, BLOCK: tl.constexpr):
    """One program, whose lanes meet."""
    at = tl.arange(0, BLOCK)
    tl.atomic_add(out + at % 2, tl.load(x + at))


@triton.jit
def half_written(out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at % 2 == 0)


@triton.jit
def twice_in_one_store(out):
    tl.store(out + tl.arange(0, 4) // 2, tl.arange(0, 4))


@triton.jit
def same_value(out):
    tl.store(out, 3)


@triton.jit
def within_a_program(out):
    tl.atomic_add(out, 1, scope="cta")


@triton.jit
def waits_for_a_later_one(flags, out):
    mine, count = tl.program_id(0), tl.num_programs(0)
    if mine < count - 1:
        while tl.load(flags + mine + 1, volatile=True) == 0:
            pass
    tl.store(out + mine, mine)
    tl.atomic_xchg(flags + mine, 1)


@triton.jit
def waits_for_ever(flags):
    while tl.atomic_add(flags, 0) == 0:
        pass


@triton.jit
def three_sizes(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out + (x * tl.num_programs(1) + y) * tl.num_programs(2) + z, x + 10 * y + 100 * z)


@triton.jit
def through_a_descriptor(x, out, rows, columns):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [4, 16])
    tl.store(out + tl.program_id(0), tl.sum(source.load([tl.program_id(0) * 4, 0])))


@triton.jit
def asserts(out, n):
    tl.device_assert(tl.program_id(0) < n, "too many programs")


@triton.jit
def ticket(partial, counter, out, n):
    """More programs than all orders are run of."""
    mine = tl.program_id(0)
    tl.store(partial + mine, mine * 0.1)
    if tl.atomic_add(counter, 1) == n - 1:
        total = 0.0
        for each in range(n):
            total += tl.load(partial + each)
        tl.store(out, total)


FLAGS = {"flags": torch.zeros(4, dtype=torch.int32)}
EVERY_ORDER = "order-independent: the same bits in every order"

FINDINGS = {
    "lanes": (lanes, (1,), {"x": numbers(32), "out": torch.zeros(2), "BLOCK": 32}, "varies: out["),
    "two_lanes_of_a_store": (
        twice_in_one_store, (1,), {"out": torch.zeros(4)},
        "race: twice_in_one_store: program (0, 0, 0) stores different values to element 0 of 'out'",
    ),
    "same_value": (same_value, (3,), {"out": torch.zeros(1)}, EVERY_ORDER),
    "atomic_of_a_program": (
        within_a_program, (2,), {"out": torch.zeros(1, dtype=torch.int32)}, "race: within_a_program"
    ),
    "waiting": (
        waits_for_a_later_one, (2,), {**FLAGS, "out": torch.zeros(4)}, "order-independent"
    ),
    "waiting_for_ever": (
        waits_for_ever, (2,), FLAGS, "fault: waits_for_ever: all programs wait for memory"
    ),
    "three_sizes": (
        three_sizes, (2, 3, 2), {"out": torch.empty(12)}, EVERY_ORDER
    ),
    "descriptor": (
        through_a_descriptor, (2,),
        {"x": torch.ones(8, 16), "out": torch.empty(2), "rows": 8, "columns": 16},
        EVERY_ORDER,
    ),
    "assertion": (asserts, (3,), {"out": FLAGS["flags"], "n": 2}, "fault: asserts: too many"),
    "ticket": (
        ticket, (8,),
        {"partial": torch.empty(8), "counter": integers(1, 1), "out": torch.empty(1), "n": 8},
        "order-independent: the same bits in 21 orders",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FINDINGS)
def test_findings(name):
    """Rare faults, waiting and ways to use memory are judged too: see the names of the cases."""
    kernel, grid, arguments, summary = FINDINGS[name]
    assert certify(kernel, arguments, grid=grid).summary.startswith(summary)


@pytest.mark.parametrize("refusal", [TypeError, DeprecationWarning])
def test_index(refusal, monkeypatch):
    """A loop's bound may be a tensor, also where Triton's own interpreter cannot convert one."""
    inner = triton.runtime.interpreter
    patch = inner._patch_lang

    def refuse(tensor):
        raise refusal("an array of shape (1,), as Triton 3.6 under NumPy 2.4, or an older one")

    def patch_as_before(function):
        patch(function)
        tl.tensor.__index__ = refuse

    monkeypatch.setattr(inner, "_patch_lang", patch_as_before)
    case = CASES["scatter_add-segments"]
    assert certify(case.kernel, case.arguments(), grid=case.grid).is_order_independent


def test_memory_between():
    """Memory that a kernel leaves as it was is its own input, and not what varies."""
    certificate = certify(half_written, {"out": torch.zeros(64), "BLOCK": 16}, grid=(4,))
    assert certificate.is_order_independent


@pytest.fixture(scope="module")
def operators():
    """Operators made in the two ways of PyTorch, of which one reads memory that nothing wrote."""
    with torch.library._scoped_library("detmode_certified", "FRAGMENT"):

        @torch.library.custom_op("detmode_certified::scatter", mutates_args=())
        def scatter(index: torch.Tensor, source: torch.Tensor, filled: bool) -> torch.Tensor:
            rows, columns = source.shape
            out = source.new_zeros(4, columns) if filled else source.new_empty(4, columns)
            triton_kernels.scatter_add[(rows,)](index, source, out, columns, BLOCK=16)
            return out * 2

        @torch.library.triton_op("detmode_certified::histogram", mutates_args=())
        def histogram(bins: torch.Tensor) -> torch.Tensor:
            out = torch.zeros(4, dtype=torch.int32)
            counted = torch.library.wrap_triton(triton_kernels.histogram)
            counted[(triton.cdiv(bins.numel(), 16),)](bins, out, bins.numel(), BLOCK=16)
            return out

        @torch.library.custom_op("detmode_certified::nothing", mutates_args=())
        def nothing(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @torch.library.custom_op(
            "detmode_certified::on_cuda", mutates_args=("x",), device_types="cuda"
        )
        def on_cuda(x: torch.Tensor) -> None:
            same_value[(2,)](x)

        yield {"scatter": scatter, "histogram": histogram, "nothing": nothing, "on_cuda": on_cuda}


@pytest.mark.parametrize(
    ("filled", "named"), [(True, True), (False, False)], ids=["order", "new_memory"]
)
def test_the_line_of_the_float_atomic(operators, filled, named):
    """It is named in the table, and in the summary where orders differ and not new memory."""
    certificate = certify("detmode_certified::scatter", scattered(16 if filled else 1, filled))
    lines, first = inspect.getsourcelines(triton_kernels.scatter_add.fn)
    added = next(number for number, line in enumerate(lines, first) if "atomic_add" in line)
    line = f"triton_kernels.py:{added}"
    assert certificate.float_adds == (line,)
    assert f"float add at {line}" in str(certificate)
    assert (f"(atomics add floats at {line})" in certificate.summary) is named


def scattered(rows, filled):
    return {"index": integers(4, rows), "source": numbers(rows, 10), "filled": filled}


@pytest.mark.parametrize(
    ("name", "arguments", "summary"),
    [
        ("scatter", scattered(16, True), "varies: result["),
        ("scatter", scattered(1, False), "varies: result[0, 0] is nan"),
        ("histogram", {"bins": integers(4, 100)}, EVERY_ORDER),
        ("on_cuda", {"x": torch.zeros(1)}, EVERY_ORDER),
    ],
    ids=["float_add", "new_memory", "integer_add", "for_cuda_alone"],
)
def test_operators(operators, name, arguments, summary):
    """Operators are certified by name and as objects; their results are compared."""
    certificate = certify(f"detmode_certified::{name}", arguments)
    assert certificate.summary.startswith(summary), certificate
    assert certify(operators[name], arguments) == certificate
    assert certificate.kernel.startswith(f"detmode_certified::{name}")


def test_errors(operators, monkeypatch):
    """Whatever cannot be certified is refused by name, with what to do."""
    out = torch.zeros(1, dtype=torch.bfloat16)
    x = torch.ones(4)
    with pytest.raises(ValueError, match="no operator 'detmode_certified::absent'; import"):
        certify("detmode_certified::absent", {})
    with pytest.raises(ValueError, match="nothing.* launched no kernel of Triton's"):
        certify(operators["nothing"], {"x": x})
    with pytest.raises(TypeError, match="takes its arguments alone, no grid"):
        certify(operators["nothing"], {"x": x}, grid=1)
    with pytest.raises(NotImplementedError, match="cannot add it atomically; certify the kernel"):
        certify(lanes, {"x": x.bfloat16(), "out": out, "BLOCK": 4}, grid=1)
    with pytest.raises(TypeError, match="takes 1 arguments, but got 2"):
        certify(same_value, [x, x], grid=1)
    monkeypatch.delattr(interpreter.interpreter, "_implicit_cvt")
    changed = r"Triton .* has no triton.runtime.interpreter._implicit_cvt, .* use another version"
    with pytest.raises(RuntimeError, match=changed):
        certify(same_value, {"out": x}, grid=1)


def state():
    """All that the interpreter, and its hooks, change."""
    jit, tuner = triton.runtime.jit.JITFunction, triton.runtime.autotuner.Autotuner
    inner = triton.runtime.interpreter
    return [
        jit.run, jit.__call__, tuner.run, inner.InterpretedFunction.run, dict(os.environ),
        triton.knobs.runtime.interpret, dict(vars(inner.interpreter_builder)).keys() - {
            "grid_dim", "grid_idx"
        }, *(dict(vars(each)) for each in (tl, tl.core, tl.tensor, tl.math, tl.dtype)),
        dict(lanes.fn.__globals__).keys(), dict(inner.InterpretedFunction.rewritten_fn),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["three_sizes", "two_lanes_of_a_store", "assertion"])
def test_nothing_remains(name):
    """Triton is as before, after a certificate and after a fault."""
    kernel, grid, arguments, _ = FINDINGS[name]
    before = state()
    certify(kernel, arguments, grid=grid)
    assert state() == before


@pytest.mark.thorough
def test_interpreted_before():
    """With TRITON_INTERPRET set, Triton's own way, certificates are the same."""
    program = (
        "from detmode.verify.certificates import certify\n"
        "from tests.verify.certificates.triton_kernels import CASES\n"
        "for name in ('histogram-counts', 'gamma_gradient-lock', 'autotuned_sum-float32'):\n"
        "    case = CASES[name]\n"
        "    print(certify(case.kernel, case.arguments(), grid=case.grid).summary)\n"
    )
    path = os.pathsep.join(sys.path)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": value},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for value in ("0", "1")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 3


def touch(kind, operation, place):
    addresses = torch.arange(4 * place, 4 * place + 4).numpy()
    return Touch(kind, operation, addresses, 4, 1)


def explored(programs, most=10_000):
    """All results of programs, which are lists of (place, what they append there or None)."""
    results, runs = set(), 0

    def run(choices):
        memory, at, steps = {}, [0] * len(programs), []
        while ready := frozenset(i for i, program in enumerate(programs) if at[i] < len(program)):
            wanted = choices[len(steps)] if len(steps) < len(choices) else min(ready)
            place, value = programs[wanted][at[wanted]]
            at[wanted] += 1
            kind = ("atomic load", "LOAD") if value is None else ("atomic", "XCHG")
            steps.append(Step(wanted, ready, [touch(*kind, place)]))
            seen = memory.setdefault(place, [])
            memory.setdefault(f"seen by {wanted}", []).append(tuple(seen))
            if value is not None:
                seen.append(value)
        results.add(repr(sorted(memory.items(), key=str)))
        return steps

    runs = all_orders(run, relation(), most)
    return results, runs


def all_results(programs):
    """The same from all interleavings, and their number."""
    results = set()
    of_steps = [i for i, program in enumerate(programs) for _ in program]
    orders = set(itertools.permutations(of_steps))
    for order in orders:
        memory, at = {}, [0] * len(programs)
        for program in order:
            place, value = programs[program][at[program]]
            at[program] += 1
            seen = memory.setdefault(place, [])
            memory.setdefault(f"seen by {program}", []).append(tuple(seen))
            if value is not None:
                seen.append(value)
        results.add(repr(sorted(memory.items(), key=str)))
    return results, len(orders)


def test_all_orders():
    """A run of every class of orders gives every result, and needs fewer runs than orders."""
    drawn = random.Random(0)
    fewer = 0
    for _ in range(12):
        programs = [
            [(drawn.randrange(3), drawn.choice([None, f"{program}{step}"])) for step in range(2)]
            for program in range(4)
        ]
        results, runs = explored(programs)
        expected, orders = all_results(programs)
        assert results == expected, programs
        fewer += runs < orders / 2
    assert fewer == 12


def test_shuffles():
    """Each seed starts programs in an order of its own; without a seed it is program order."""

    def started(seed):
        order = []
        programs = Programs(30, lambda: None, order.append, seed, [])
        programs.run(60)
        return tuple(order), programs.window

    in_order = tuple(range(30))
    assert started(None) == (in_order, 1)
    by_seed = {f"{seed}": started(f"{seed}") for seed in range(30)}
    assert len({by_seed[f"{seed}"] for seed in range(10)}) == 10
    assert by_seed["3"] == started("3")
    alone = [order for order, window in by_seed.values() if window == 1]
    assert len(alone) > 3
    assert in_order not in alone
    # Choices come first; then each program runs as long as it can, and the next one in order.
    assert started([2, 0]) == ((2, 0, 1, *range(3, 30)), 1)


def test_number_of_orders():
    """Programs that meet once have n! orders; those that do not meet, or only read, have one."""
    assert explored([[(0, i)] for i in range(5)])[1] == 120
    assert explored([[(i, i)] for i in range(5)])[1] == 1
    assert explored([[(0, None)] for i in range(5)])[1] == 1
    assert explored([[(i // 2, i)] for i in range(4)])[1] == 4
    with pytest.raises(TooManyError):
        explored([[(0, i)] for i in range(5)], most=119)


def test_conflicting():
    """Programs conflict where one writes what another uses; unread integer sums commute."""
    kinds = {
        "load": ("load", "LOAD"),
        "store": ("store", "STORE"),
        "add": ("atomic", "ADD"),
        "max": ("atomic", "MAX"),
        "float": ("atomic", "FADD"),
    }

    class Unread:
        was_read = False

    def of(first, second):
        steps = []
        for program, kind in enumerate((first, second)):
            used = touch(*kinds[kind], 0)
            used.result = Unread()
            steps.append(Step(program, frozenset(), [used, touch("load", "LOAD", 1)]))
        return meeting(steps)

    pairs = itertools.combinations_with_replacement(kinds, 2)
    commute = {("load", "load"), ("add", "add"), ("max", "max")}
    for pair in pairs:
        assert of(*pair) == (set() if pair in commute else {0, 1}), pair
