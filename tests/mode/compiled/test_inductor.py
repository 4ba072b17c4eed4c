"""Inductor's own choices: none that timing makes decides bits, and nothing is out of sight."""

import contextlib
import logging
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch._dynamo.utils
from torch._higher_order_ops.associative_scan import associative_scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from detmode import DeterministicMode
from detmode.mode.compiled import hooks, lowering, timing
from detmode.process.versions import parse_version

pytestmark = [
    # PyTorch's compilers warn of much that no test is about, and of more in each version.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not hooks.CAN_COMPILE, reason="PyTorch 2.8 compiles nothing inside the mode"
    ),
]

SINCE_2_10 = pytest.mark.skipif(
    parse_version(torch.__version__) < (2, 10),
    reason="in PyTorch 2.9 products may be refused, and timings cannot be distorted",
)


def said(caplog):
    """The options of which the mode has spoken, in the order in which it did."""
    return [
        record.message.partition("torch.compile: ")[2].partition("=")[0]
        for record in caplog.records
        if record.name == "detmode" and record.levelno >= logging.WARNING
    ]


TIMED = {
    option.name: option.timed
    for option in timing.OPTIONS
    if option.module == "torch._inductor.config"
}


@pytest.mark.parametrize("given", ["options", "globally"])
def test_options_by_which_timing_would_decide(given, caplog):
    """They do not hold inside the mode, which says so once for each; outside they do."""
    import torch._inductor.config as config
    from torch._inductor import compile_fx

    known = {name: value for name, value in TIMED.items() if hasattr(config, name)}
    seen = []

    def note(model, inputs, config_patches=None, **rest):
        with config.patch(config_patches or {}):
            seen.append({name: getattr(config, name) for name in (*known, "epilogue_fusion")})
        return model

    options = {"epilogue_fusion": False, **(known if given == "options" else {})}
    function = torch.compile(lambda x: x + 1, options=options)
    with (
        config.patch({} if given == "options" else known),
        mock.patch.object(compile_fx, "compile_fx", note),
    ):
        with DeterministicMode():
            function(torch.ones(3))
            function(torch.ones(2, 2))
        function(torch.ones(3))
    fixes = hasattr(config, "deterministic")
    inside, outside = dict(known), known
    for option in timing.OPTIONS:
        if option.name in known:
            stays = option.used == option.timed
            inside[option.name] = False if stays and not fixes else option.used
    assert seen == [{**each, "epilogue_fusion": False} for each in (inside, inside, outside)]
    defaults = () if given == "options" else ("deterministic", "shape_padding")
    told = [name for name in known if name not in defaults]
    assert sorted(said(caplog)) == sorted(told)


def test_what_the_mode_cannot_fix_is_said(caplog, monkeypatch):
    """The user's kernels that timing configures, and sizes that earlier runs have noted."""

    def my_kernel():
        """Stands for the user's function."""

    # One of its own: PyTorch 2.11 writes the sources of all kernels down wherever it compiles.
    monkeypatch.setattr(timing, "kernel_side_table", type(timing.kernel_side_table)())
    graph = torch.fx.Graph()
    for configs in (["one"], ["one", "another"]):
        kernel = mock.Mock(configs=configs, base_fn=my_kernel)
        number = timing.kernel_side_table.add_kernel(kernel)
        graph.call_function(print, kwargs={"kernel_idx": number})
    graph.call_function(print)
    mode, gm = DeterministicMode(), torch.fx.GraphModule({}, graph)
    timing.say_what_may_vary(gm, mode.say_once)
    with mock.patch.object(torch.compiler.config, "job_id", "mine"):
        for _ in range(2):
            timing.say_what_may_vary(gm, mode.say_once)
    kernels, sizes = [record.message for record in caplog.records]
    assert "the Triton kernel my_kernel has 2 configurations" in kernels
    assert "TORCH_COMPILE_JOB_ID" in sizes


REAL, INDEX = torch.float32, torch.int64


def added(x, index):
    return torch.zeros_like(x).index_put((index,), x, accumulate=True)


def scattered(x, index):
    return torch.zeros_like(x).scatter_add(0, index, x)


def scanned(x):
    return associative_scan(lambda a, b: a * b + b, x, 0, combine_mode="pointwise")


def step(x, weight, index):
    return torch.relu(x @ weight).index_put((index,), x, accumulate=True) + 1


def lowered(function, *arguments, mode=None, device="cuda", settings=None):
    """The operations that Inductor makes of a function; it needs no GPU for that.

    Arguments are shapes and dtypes. The settings are Inductor's, as of a program inside the mode.
    """
    import torch._inductor.config as config
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.codecache import CacheBase
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    properties = SimpleNamespace(
        **{"name": "a GPU", "major": 9, "minor": 0, "multi_processor_count": 132, "warp_size": 32},
        **{"regs_per_multiprocessor": 1 << 16, "max_threads_per_multi_processor": 1 << 11},
    )

    def of_device(*device):
        return properties

    with contextlib.ExitStack() as stack:
        fake = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        inputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in arguments]
        gm = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
        for owner, name, value in (
            (CudaInterface, "get_device_properties", staticmethod(of_device)),
            (CudaInterface.Worker, "get_device_properties", staticmethod(of_device)),
            (torch.cuda, "get_device_properties", of_device),
            (torch.cuda, "get_device_capability", lambda *device: (9, 0)),
            (torch.cuda, "current_device", lambda: 0),
            (CacheBase, "get_system", lambda: {"hash": ""}),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        if mode is not None:
            stack.enter_context(mode)
        stack.enter_context(config.patch(settings or {}))
        if mode is not None:
            stack.enter_context(lowering.keeping_whole(mode, inputs))
        stack.enter_context(V.set_fake_mode(fake))
        graph = GraphLowering(gm, example_inputs=inputs, is_inference=True)
        stack.enter_context(V.set_graph_handler(graph))
        stack.enter_context(V.set_debug_handler(mock.MagicMock()))
        graph.run(*inputs)
    return graph.operations


def varying(operations):
    """Those of Inductor's own operations whose results depend on which part finishes first."""
    from torch._inductor import ir

    generated = [getattr(operation, "data", None) for operation in operations]
    return [
        type(data).__name__
        for data in generated
        if isinstance(data, ir.SplitScan) or getattr(data, "scatter_mode", None) == "atomic_add"
    ]


@pytest.mark.parametrize(
    ("function", "arguments", "varies"),
    [
        (added, [((100, 7), REAL), ((100,), INDEX)], "Scatter"),
        (scattered, [((100, 7), REAL), ((100, 7), INDEX)], "Scatter"),
        (scanned, [((1 << 20,), REAL)], "SplitScan"),
    ],
)
def test_nothing_is_generated_that_depends_on_the_order_of_threads(function, arguments, varies):
    """Neither atomics nor scans whose tiles wait for each other are in the code for CUDA."""
    assert varying(lowered(function, *arguments)) == [varies]
    assert varying(lowered(function, *arguments, mode=DeterministicMode())) == []


@SINCE_2_10
def test_cuda_graphs_hold_what_the_mode_does_not_decide_on():
    """Inductor divides its CUDA graphs at twins; what lies between is recorded, products too."""
    from torch._inductor.utils import is_cudagraph_unsafe_op

    shapes = ((64, 64), REAL), ((64, 64), REAL), ((64,), INDEX)
    named = {
        str(getattr(operation, "op_overload", None)): is_cudagraph_unsafe_op(operation)
        for operation in lowered(step, *shapes, mode=DeterministicMode())
        if type(operation).__name__ != "MultiOutput"
    }
    assert named == {
        "aten.mm.out": False,
        "None": False,
        "detmode_twin.aten__of__index_put__of__default.default": True,
    }


def test_the_backend_cudagraphs_records_no_listed_call():
    """It runs the graph of a listed call without recording it; any other it would record."""
    from torch._dynamo.backends import cudagraphs

    reasons = []

    def note(reason, *args, **kwargs):
        reasons.append(reason)

    with (
        DeterministicMode(simulate="cuda") as mode,
        mock.patch.object(cudagraphs, "log_cudagraph_skip_and_bump_counter", note),
    ):
        given = torch.ones(4, 3), torch.tensor([1, 1, 2, 0])
        torch.compile(added, backend="cudagraphs")(*given)
        torch.compile(torch.sin, backend="cudagraphs")(given[0])
    assert [row.count for row in mode.records] == [1]
    assert ["DeterministicMode" in reason for reason in reasons] == [True, False]


@SINCE_2_10
def test_rows_that_no_call_of_the_graph_can_match_leave_it_as_it_is():
    """Rows for CUDA concern no CPU tensor, and rows for sparse tensors no dense one."""

    def decided_on(mode, matrix):
        def multiply_and_add(matrix, x, index):
            return torch.mm(matrix, x).index_add(0, index, x)

        inputs = matrix, torch.ones(3, 3), torch.tensor([0, 1, 1])
        gm = make_fx(multiply_and_add, tracing_mode="fake")(*inputs)
        return [str(node.target) for node in gm.graph.nodes if lowering.may_be_met(mode, node)]

    dense, sparse = torch.ones(3, 3), torch.ones(3, 3).to_sparse()
    assert decided_on(DeterministicMode(), sparse) == []
    assert decided_on(DeterministicMode(simulate="cuda"), dense) == ["aten.index_add.default"]
    wanted = ["aten.mm.default", "aten.index_add.default"]
    assert decided_on(DeterministicMode(simulate="cuda"), sparse) == wanted


def product(a, b):
    return torch.bmm(a, b) + 1


def kernel_of_product(distort, mode=None):
    """The kernel that ``max_autotune`` takes for a product on the CPU, and how many it timed.

    Each kernel seems slower than the one before; with ``distort="inverse"``, faster.
    """
    import torch._inductor.config as config
    from torch._inductor.runtime.benchmarking import Benchmarker, may_distort_benchmarking_result

    timings = []

    def timing(*args, **kwargs):
        timings.append(1.0 + len(timings))
        return timings[-1]

    settings = {
        **{"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"},
        **{"deterministic": False, "autotune_local_cache": False},
    }
    with config.patch({"test_configs.distort_benchmarking_result": distort}):
        # Inductor distorts the timings of GPUs alone.
        timed = may_distort_benchmarking_result(timing)
        with mock.patch.object(Benchmarker, "benchmark_cpu", timed):
            shapes = [((2, 96, 96), REAL)] * 2
            operations = lowered(product, *shapes, mode=mode, device="cpu", settings=settings)
    return type(operations[0]).__name__, len(timings)


@SINCE_2_10
def test_max_autotune_takes_the_same_kernel_whatever_is_faster(caplog):
    """ATen's product is taken, without a timing."""
    kernels = {kernel_of_product(distort, DeterministicMode()) for distort in ("", "inverse")}
    assert kernels == {("ExternKernelOut", 0)}
    assert said(caplog) == ["max_autotune"] * 2


@pytest.mark.thorough
@SINCE_2_10
def test_timing_chooses_outside_of_the_mode():
    """Timings, which the mode takes away, do decide: turned round they take the other kernel."""
    kernels = {kernel_of_product(distort) for distort in ("", "inverse")}
    assert kernels == {("ExternKernelOut", 2), ("CppTemplateBuffer", 2)}


@pytest.mark.thorough
def test_code_for_dynamic_shapes_is_that_of_the_sizes_that_came_first(tmp_path, monkeypatch):
    """Which code is in the caches does not decide how the sums of another program are split."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def hits(*sizes, inside):
        found = []
        for size in sizes:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            with DeterministicMode() if inside else contextlib.nullcontext():
                torch.compile(torch.sin, dynamic=True)(torch.ones(size))
            found.append(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"])
        return found

    assert hits(40, 50, inside=False) == [0, 1]
    assert hits(40, 50, 50, inside=True) == [0, 0, 1]
