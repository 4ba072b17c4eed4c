"""``detmode.certify`` of CUDA C++: a table of kernels, each with the verdict that is right."""

import dataclasses
import inspect
import json
import re
import struct
from collections.abc import Callable
from math import factorial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

import detmode
from detmode.cli.parser import main
from detmode.cuda import CompileError, host
from detmode.testing import assert_order_independent
from detmode.verify.cases import cases, run_substituted
from detmode.verify.certificates.certificate import in_turns
from detmode.verify.certificates.copies import copies_of
from detmode.verify.certificates.cuda import _uses
from detmode.verify.certificates.orders import Conflicts

FILE = Path(__file__).with_name("kernels.cu")

pytestmark = pytest.mark.skipif(
    detmode.cuda.unavailable("cpu") is not None, reason="needs a C++ compiler"
)


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def integers(n: int, below: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(below, (n,), generator=generator, dtype=torch.int32)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def counters(*shape: int) -> torch.Tensor:
    return zeros(*shape, dtype=torch.int32)


class Case(NamedTuple):
    """One launch.

    Args:
        kernel: the entry.
        verdict: the right one.
        grid: blocks.
        block: threads.
        arguments: makes them.
        more: further arguments of ``certify``.
        says: a part of the summary.
    """

    kernel: str
    verdict: str
    grid: Any
    block: Any
    arguments: Callable[[], dict[str, Any]]
    more: Any = MappingProxyType({})
    says: str = ""


def split_k(**more: Any) -> dict[str, Any]:
    return {"a": floats(512), "b": floats(512), "out": zeros(1), "n": 512, **more}


def scan(dtype: torch.dtype) -> dict[str, Any]:
    x = floats(256) if dtype.is_floating_point else integers(256, 10)
    tiles = {"own": zeros(8, dtype=dtype), "prefix": zeros(8, dtype=dtype)}
    return {
        "x": x,
        "out": torch.empty_like(x),
        **tiles,
        "state": counters(8),
        "ticket": counters(1),
    }


def of_blocks(orders: int) -> str:
    """The text of a kernel whose blocks have so many orders; the first is in the repeats."""
    repeats = inspect.signature(detmode.certify).parameters["repeats"].default
    return f"{repeats + orders - 1} runs, which stand for every order of the"


ORDERED, VARIES, RACE = "order-independent", "varies", "race"
SOFTMAX = {"grad": floats(4, 64), "y": floats(4, 64).softmax(1), "columns": 64}

CASES = (
    Case(
        "histogram",
        ORDERED,
        4,
        64,
        lambda: {"bins": integers(250, 7), "counts": counters(7), "n": 250, "n_bins": 7},
        {"shared_memory": 28},
        of_blocks(1),
    ),
    Case(
        "histogram_of_weights",
        VARIES,
        4,
        64,
        lambda: {"bins": integers(250, 7), "x": floats(250), "sums": zeros(7), "n": 250},
    ),
    Case(
        "scatter_by_owner",
        ORDERED,
        2,
        32,
        lambda: {
            "index": integers(99, 50),
            "x": floats(99),
            "out": zeros(50),
            "n": 99,
            "n_out": 50,
        },
        {"outputs": ["out"]},
        of_blocks(1),
    ),
    Case(
        "scatter_any",
        RACE,
        2,
        64,
        lambda: {"index": integers(99, 50), "x": floats(99), "out": zeros(50), "n": 99},
        says="writes 4 bytes of argument 'out'",
    ),
    Case("softmax_backward", ORDERED, 4, 64, lambda: {**SOFTMAX, "out": zeros(4, 64)}),
    Case("softmax_backward_atomic", VARIES, 4, 64, lambda: {**SOFTMAX, "out": zeros(4, 64)}),
    Case(
        "gamma_by_column",
        ORDERED,
        2,
        4,
        lambda: {
            "grad": floats(9, 32),
            "x": floats(9, 32),
            "out": zeros(32),
            "rows": 9,
            "columns": 8,
        },
    ),
    Case(
        "gamma_by_rows",
        VARIES,
        3,
        32,
        lambda: {
            "grad": floats(9, 32),
            "x": floats(9, 32),
            "out": zeros(32),
            "rows": 9,
            "columns": 32,
        },
    ),
    Case(
        "split_k_last_block",
        ORDERED,
        4,
        64,
        lambda: split_k(parts=zeros(4), has_fence=True),
        says=of_blocks(factorial(4)),
    ),
    Case(
        "split_k_last_block",
        RACE,
        4,
        64,
        lambda: split_k(parts=zeros(4), has_fence=False),
        says="argument 'parts'",
    ),
    Case("split_k_atomic", VARIES, 4, 64, split_k, says="out[0]"),
    Case(
        "permute_by_rank",
        ORDERED,
        2,
        32,
        lambda: {"expert": integers(60, 4), "rows": counters(60), "n": 60, "n_experts": 4},
        {"outputs": ["rows"]},
    ),
    Case(
        "permute_by_counter",
        VARIES,
        2,
        32,
        lambda: {
            "expert": integers(60, 2).sort().values,
            "first": torch.tensor([0, int((integers(60, 2) == 0).sum())], dtype=torch.int32),
            "used": counters(2),
            "rows": counters(60),
            "n": 60,
        },
    ),
    Case(
        "top_k", ORDERED, 1, 32, lambda: {"x": floats(99), "indices": counters(5), "n": 99, "k": 5}
    ),
    Case(
        "above_threshold",
        VARIES,
        2,
        64,
        lambda: {
            "x": floats(99),
            "indices": counters(99),
            "count": counters(1),
            "n": 99,
            "threshold": 0.5,
        },
    ),
    Case("scan_of_integers", ORDERED, 8, 32, lambda: scan(torch.int32)),
    Case("scan_of_floats", VARIES, 8, 32, lambda: scan(torch.float32)),
    Case(
        "transpose",
        ORDERED,
        (2, 2),
        (8, 8),
        lambda: {"x": floats(16, 16), "out": zeros(16, 16), "size": 16, "has_barrier": True},
        {"outputs": ["out"]},
    ),
    Case(
        "transpose",
        RACE,
        (2, 2),
        (8, 8),
        lambda: {"x": floats(16, 16), "out": zeros(16, 16), "size": 16, "has_barrier": False},
        says="shared memory",
    ),
    Case(
        "stencil",
        ORDERED,
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        {"constants": {"weights": torch.tensor([0.25, 0.5, 0.25])}},
    ),
    Case(
        "stencil",
        "fault",
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        {"outputs": ["out"]},
        "output out[0] is never written",
    ),
    Case("stencil_in_place", RACE, 2, 32, lambda: {"x": floats(64), "n": 64}),
    Case(
        "stencil_past_the_end",
        "out of bounds",
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        says="reads 4 bytes out of bounds",
    ),
    Case(
        "shift_past_the_end",
        "out of bounds",
        2,
        32,
        lambda: {"x": floats(64), "out": zeros(64), "n": 64},
        says="256 bytes after the start of argument 'out', which has 256",
    ),
    Case(
        "maximum_by_swaps", ORDERED, 2, 32, lambda: {"x": floats(64), "out": counters(1), "n": 64}
    ),
    Case(
        "sum_under_lock",
        VARIES,
        2,
        16,
        lambda: {"x": floats(32), "out": zeros(1), "lock": counters(1), "n": 32},
    ),
    Case("waits_for_the_next", ORDERED, 4, 32, lambda: {"state": counters(4)}),
    Case("waits_for_ever", "fault", 2, 32, lambda: {"state": counters(1)}, says="2 blocks spin"),
    Case(
        "divergent_barrier", "fault", 1, 32, lambda: {"out": zeros(32)}, says="barrier divergence"
    ),
    Case(
        "add_pairs",
        VARIES,
        2,
        32,
        lambda: {"x": floats(128).half(), "out": zeros(2, dtype=torch.float16), "n": 64},
    ),
    Case(
        "mean_of_grid",
        ORDERED,
        3,
        64,
        lambda: {"x": floats(192), "parts": zeros(3), "out": zeros(192)},
    ),
)


def certificate(case: Case) -> detmode.Certificate:
    return detmode.certify(
        FILE, case.arguments(), entry=case.kernel, grid=case.grid, block=case.block, **case.more
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel}-{case.verdict}")
def test_verdicts(case):
    """Every kernel of the table is judged right, and the reason names what is wrong with it."""
    found = certificate(case)
    assert found.verdict == case.verdict, found
    assert case.says in str(found)


def test_what_only_another_order_meets():
    """Blocks that meet in one order only are run in both of theirs; no schedule was drawn so."""
    found = detmode.certify(
        FILE,
        {"flag": counters(1), "out": counters(1)},
        entry="meets_if_early",
        grid=3,
        block=1,
        repeats=2,
    )
    assert found.verdict == VARIES, found
    assert found.variation is not None
    assert "the order of blocks 2, 1, 0" in found.variation.schedules


def test_arguments_are_left_alone():
    """A certificate runs on copies; the arguments keep their bits."""
    case = next(case for case in CASES if case.kernel == "split_k_atomic")
    arguments = case.arguments()
    detmode.certify(FILE, arguments, entry=case.kernel, grid=4, block=64, repeats=2)
    assert arguments["out"].tolist() == [0.0]


def test_what_a_certificate_shows():
    """It prints atomics, schedules and limits; its JSON gives an equal certificate back."""
    case = next(case for case in CASES if case.kernel == "histogram_of_weights")
    found = certificate(case)
    assert found.atomics == ("float add",)
    before, _, _ = FILE.read_text().partition("atomicAdd(&sums[bins[i]], x[i])")
    line = f"kernels.cu:{before.count(chr(10)) + 1}"
    assert found.float_adds == (line,)
    assert f"(atomics add floats at {line})" in found.summary
    text = str(found)
    assert f"float add at {line}" in text
    assert " in program order, and " in text
    assert "seed" in text
    assert "not shown" in text
    assert "float add" in found._repr_html_()
    assert detmode.Certificate.from_json(found.to_json()) == found
    with pytest.raises(ValueError, match="not a certificate"):
        detmode.Certificate.from_json("{}")


@pytest.mark.parametrize(
    ("turns", "name"),
    [
        ([], "program order"),
        ([2, 1, 0], "the order of blocks 2, 1, 0"),
        ([0, 0, 1, 1], "the order of blocks 0, 1"),
        ([0, 1, 1, 2, 1], "turns (each to an atomic or its end) of blocks 0, 1, 2, 1"),
    ],
    ids=str,
)
def test_an_order_names_each_turn_once(turns, name):
    """Two turns in a row are one in the text, and two apart make it no plain order."""
    assert in_turns("blocks", turns) == name


def test_float_atomics_are_named_where_the_bits_agree():
    """Equal addends have one sum in any order; the certificate says that others may not."""
    case = next(case for case in CASES if case.kernel == "split_k_atomic")
    ones = {**case.arguments(), "a": torch.ones(512), "b": torch.ones(512)}
    found = detmode.certify(FILE, ones, entry=case.kernel, grid=4, block=64)
    assert found.is_order_independent
    assert "other values may give other bits" in found.notes[0]


@pytest.mark.parametrize(
    ("arguments", "more", "error", "message"),
    [
        ({"x": floats(4)}, {}, ValueError, "nothing is given for 'n'"),
        ({"x": floats(4), "n": 4, "m": 1}, {}, ValueError, "'m' is no parameter"),
        ((floats(4),), {}, ValueError, "1 arguments are given for 2 parameters"),
        ({"x": 1.0, "n": 4}, {}, TypeError, "x is pointer, so it takes a Tensor"),
        ({"x": floats(4), "n": 4.5}, {}, TypeError, "n is int, so it takes a number"),
        ({"x": floats(4), "n": 1 << 40}, {}, ValueError, "n is int, which cannot hold"),
        ({"x": floats(4), "n": 4}, {"entry": "stencils"}, ValueError, "no kernel 'stencils'"),
        ({"x": floats(4), "n": 4}, {"entry": None}, ValueError, "choose one with entry="),
        ({"x": floats(4), "n": 4}, {"block": None}, TypeError, "needs block="),
        ({"x": floats(4), "n": 4}, {"block": 2048}, ValueError, "1 to 1024 threads"),
        ({"x": floats(4), "n": 4}, {"repeats": 1}, ValueError, "repeats"),
        ({"x": floats(4), "n": 4}, {"outputs": ["y"]}, ValueError, "'y' is no tensor"),
        ({"x": floats(4), "n": 4}, {"constants": {"w": 1}}, ValueError, "no variable 'w'"),
        ({"x": floats(4), "n": 4}, {"constants": {"weights": floats(9)}}, ValueError, "12 bytes"),
    ],
)
def test_wrong_arguments(arguments, more, error, message):
    """Arguments that cannot be launched are one error that says what is wrong."""
    options = {"entry": "stencil_in_place", "grid": 1, "block": 4, **more}
    with pytest.raises(error, match=message):
        detmode.certify(FILE, arguments, **options)


LACKS = {
    "header": (
        "#include <cub/cub.cuh>\n__global__ void f(int* x) {}",
        r"kernel.cu:1: .* no 'cub/cub.cuh'",
    ),
    "function": (
        "__global__ void f(int* x) {\n *x = __vadd4(1, 2); }",
        r"kernel.cu:2: .* no '__vadd4'",
    ),
    "assembler": ('__global__ void f(int* x) { asm("membar.gl;"); }', "has no PTX"),
    "variables": ("__device__ int a, b;\n__global__ void f(int* x) { *x = a; }", "declare each"),
    "template": ("template <typename T> __global__ void f(T* x) {}", "entry='f<float>'"),
}


@pytest.mark.parametrize("name", LACKS)
def test_what_the_runner_does_not_have(name):
    """A source that needs more than the host runner has is refused by the name of what lacks."""
    text, message = LACKS[name]
    with pytest.raises((CompileError, ValueError), match=message):
        detmode.certify(text, {"x": counters(1)}, grid=1, block=1)


def test_inside_a_mode():
    """A mode around a certificate sees none of its calls."""
    case = next(case for case in CASES if case.kernel == "histogram")
    with detmode.DeterministicMode(simulate="cuda") as mode:
        assert certificate(case).is_order_independent
    assert not mode.records


TEMPLATE = """
#include <cuda_bf16.h>
template <typename T, int unroll>
__global__ void __launch_bounds__(32 * unroll) scale(const T* x, T* out, T factor, int n) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* values = reinterpret_cast<T*>(memory);
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  values[threadIdx.x] = i < n ? x[i] : T(0);
  __syncthreads();
  if (i < n) out[i] = values[threadIdx.x] * factor * T(SCALE);
}
"""


@pytest.mark.thorough
def test_templates_and_cupy():
    """A template's instance of 16-bit floats, and CuPy's kernels with their names and options."""
    x = floats(64).bfloat16()
    arguments = (x, torch.empty_like(x), torch.tensor(2.0, dtype=torch.bfloat16), 64)
    launch = {"grid": 2, "block": 32, "shared_memory": 64}
    entry = "scale<__nv_bfloat16, 2>"
    text = TEMPLATE.replace("SCALE", "0.5f")
    found = detmode.certify(text, arguments, entry=entry, outputs=["out"], **launch)
    assert found.is_order_independent, found
    assert found.kernel == entry
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    module = cupy.RawModule(code=TEMPLATE, options=("-DSCALE=0.5f",))
    assert detmode.certify(module, arguments, entry=entry, **launch).is_order_independent
    kernel = cupy.RawKernel(text, entry)
    assert detmode.certify(kernel, arguments, **launch).is_order_independent


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["histograms", "max_unpool", "nll_loss2d", "scan"])
def test_own_families(family, monkeypatch):
    """The kernels of detmode's own families get certificates as anybody's do.

    An election in place begins with any position at each destination; the next launch settles it.
    """
    begins = {"assign_mark"} if family == "max_unpool" else set()
    seen = {}
    launched = host.launch_blocks

    def certified(source, entry, grid, block, bound, shared=0, watch=None):
        if watch is None and entry not in seen:
            arguments = arguments_of(source.signature(entry), bound)
            launch = {"grid": grid, "block": block, "shared_memory": shared, "repeats": 6}
            seen[entry] = detmode.certify(source.path, arguments, entry=entry, **launch)
        launched(source, entry, grid, block, bound, shared, watch)

    monkeypatch.setattr(host, "launch_blocks", certified)
    for case in cases(family):
        if case.dtype is torch.float32:
            run_substituted(case.sample, case.dtype)
    assert seen
    varying = {entry: str(one) for entry, one in seen.items() if not one.is_order_independent}
    assert set(varying) == begins, "\n\n".join(varying.values())


def arguments_of(signature, bound):
    """The values of a launch's arguments, in order."""
    words, tensors = bound
    pointers = dict(zip(signature.pointers, tensors, strict=True))
    values = []
    for i, parameter in enumerate(signature.parameters):
        at = 8 * (signature.offsets[i] - len(pointers))
        if i in pointers:
            values.append(pointers[i])
        elif parameter.members:
            values.append(words[at : at + 8 * len(parameter.members)])
        else:
            form = "=d" if parameter.kind == "double" else "=q"
            values.append(struct.unpack_from(form, words, at)[0])
    return values


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        ([], 1),
        ([(0, 1, 0), (1, 1, 0), (2, 1, 0)], 1),
        ([(0, 2, 0), (1, 1, 0), (2, 1, 0)], 4),
        ([(0, 2, 0), (1, 2, 0), (2, 2, 0)], 6),
        ([(0, 2, 0), (1, 2, 0), (2, 2, 1), (3, 2, 1)], 2),
        ([(block, 2, 0) for block in range(6)], 720),
        ([(block, 2, 0) for block in range(7)], None),
        ([(block, 2, 0) for block in range(40)], None),
        ([(0, 2, place) for place in range(8)] + [(b + 1, 1, b) for b in range(8)], 256),
    ],
    ids=["alone", "readers", "writer", "writers", "apart", "six", "seven", "many", "star"],
)
def test_orders(touched, expected):
    """One order for each way to order the blocks that conflict: no two are of one class."""
    conflicts = Conflicts(40)
    rows = [(block, kinds, 7, place) for block, kinds, place in touched]
    conflicts.add(*_uses(torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)))
    orders = conflicts.orders()
    if expected is None:
        assert orders is None
        return
    assert len(orders) == len(set(orders)) == expected
    assert all(sorted(order) == list(range(40)) for order in orders)


def test_conflicts_grow():
    """A conflict that a later run shows is new once."""
    conflicts = Conflicts(3)
    assert conflicts.add(*_uses(torch.tensor([[0, 2, 0, 0], [1, 2, 0, 0]])))
    assert not conflicts.add(*_uses(torch.tensor([[0, 2, 0, 5], [1, 1, 0, 5]])))
    assert conflicts.add(*_uses(torch.tensor([[2, 2, 0, 1], [1, 1, 0, 1]])))


# What uses certificates


def test_a_test_that_asserts_it():
    """The assertion of a test returns the certificate, or fails with it."""
    good, bad = (
        next(case for case in CASES if case.kernel == name)
        for name in ("histogram", "permute_by_counter")
    )
    launch = {"entry": good.kernel, "grid": good.grid, "block": good.block, **good.more}
    assert assert_order_independent(FILE, good.arguments(), **launch).kernel == "histogram"
    with pytest.raises(AssertionError, match=r"varies: rows\[0\] is 0 in program order"):
        assert_order_independent(
            FILE, bad.arguments(), entry=bad.kernel, grid=bad.grid, block=bad.block
        )


def test_the_fixture(pytester, monkeypatch):
    """The fixture fails a test with the certificate, and puts it among the test's results."""
    pytester.makepyfile(
        f"""
        import torch
        LAUNCH = dict(entry="gamma_by_rows", grid=3, block=32)

        def arguments(value):
            x = torch.full((9, 32), 0.1)
            return dict(grad=x + value * torch.rand(9, 32), x=x, out=torch.zeros(32), rows=9,
                        columns=32)

        def test_bad(order_independent):
            torch.manual_seed(0)
            order_independent({str(FILE)!r}, arguments(1.0), **LAUNCH)

        def test_good(order_independent):
            order_independent({str(FILE)!r}, (*arguments(0.0).values(),), **LAUNCH | dict(grid=1))
        """
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ("-p", "detmode.testing.pytest_plugin", "-p", "no:cacheprovider")
    result = pytester.runpytest_inprocess(*options, "--junit-xml=results.xml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*varies: out[[]*shuffled order*"])
    assert (pytester.path / "results.xml").read_text().count('"detmode_certificate"') == 2


def test_the_command(tmp_path, capsys):
    """The command prints certificates and exits with 1 unless all kernels are order-independent."""
    program = tmp_path / "kernels.py"
    program.write_text(
        f"""
import torch
def histogram():
    bins = torch.zeros(8, dtype=torch.int32)
    return dict(kernel={str(FILE)!r}, entry="histogram", grid=2, block=4, shared_memory=28,
                arguments=dict(bins=bins, counts=torch.zeros(7, dtype=torch.int32), n=8, n_bins=7))
state = torch.zeros(1, dtype=torch.int32)
spin = dict(kernel={str(FILE)!r}, entry="waits_for_ever", grid=1, block=1, arguments=[state])
nothing = 1
"""
    )
    assert main(["certify", f"{program}::histogram", "--repeats", "3"]) == 0
    assert "order-independent: the same bits in every order" in capsys.readouterr().out
    assert main(["certify", f"{program}::histogram", f"{program}::spin", "--format=json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert (good["verdict"], bad["verdict"]) == (ORDERED, "fault")
    for target, message in (
        (f"{program}::nothing", "must be a function"),
        (f"{program}::histogramm", "has no 'histogramm'; did you mean 'histogram'?"),
        (f"{tmp_path}/none.py::f", "there is no file"),
        ("histogram", "give FILE.py::NAME"),
    ):
        assert main(["certify", target]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_rule_with_a_certificate(monkeypatch, capsys):
    """A row shows its kernel's certificate; one that varies is no reason to run the kernel."""
    launch = {"grid": 1, "block": 1, "repeats": 2}
    text = "__global__ void f(int* x) { atomicAdd(x, 1); }"
    found = detmode.certify(text, {"x": counters(1)}, **launch)
    fields = {"op": "mylib::count", "action": detmode.Allow(), "because": "it counts"}
    row = detmode.Rule(**fields, certificate=found)
    assert row.as_text()["certificate"] == found.summary
    monkeypatch.setattr("detmode.rules.default_rules", lambda: detmode.RuleTable() + [row])
    assert main(["rules", "--long"]) == 0
    assert re.search(
        r"certificate +order-independent: the same bits in 2 orders", capsys.readouterr().out
    )
    raced = dataclasses.replace(found, verdict="race", reason="two writes", all_orders=False)
    with pytest.raises(ValueError, match=r"certificate says 'race: two writes'.*Refuse\(\)"):
        detmode.Rule(**fields, certificate=raced)
    with pytest.raises(ValueError, match="certificate must be a detmode.Certificate"):
        detmode.Rule(**fields, certificate="order-independent")


def test_copies_share_what_arguments_share() -> None:
    """Arguments in one memory have copies in one, also those in lists; the program's stay."""
    x = torch.arange(6.0)
    copies, tensors, storages = copies_of({"x": x, "parts": [x[:2], x[2:]], "n": 6})
    copies["x"].zero_()
    assert [part.tolist() for part in copies["parts"]] == [[0, 0], [0, 0, 0, 0]]
    assert list(tensors) == ["x", "parts[0]", "parts[1]"]
    assert (len(storages), copies["n"], x.tolist()) == (1, 6, [0, 1, 2, 3, 4, 5])
