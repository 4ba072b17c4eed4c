"""The host runner runs CUDA code as a GPU may, and finds what a GPU would not report."""

import platform
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from detmode.cuda import CompileError, Source, empty, host, launch, launch_blocks
from detmode.cuda.host import library
from detmode.cuda.launch import unavailable
from tests.shared import ROOT, cuda_sources
from tests.shared.cuda_sources import FAULTS, KERNELS, WARP, add_racing, pattern, source_in

SEEDS = (None, 0, 1, 2)


def run_fault(entry: str, output: torch.Tensor, shared: int = 0, **others: object) -> None:
    launch_blocks(FAULTS, entry, 2, 64, shared=shared, output=output, n=100, **others)


ONES = torch.ones(100)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("entry", "others", "message"),
    [
        ("write_after", {}, "'output': out-of-bounds write .* after the end of its 400 bytes"),
        ("write_before", {}, "argument 'output': out-of-bounds write .* before its start"),
        ("write_const", {"input": ONES}, "argument 'input': write into a const input"),
        ("write_shared", {"shared": 252}, "after the 252 bytes of dynamic shared memory"),
        ("null_write", {"other": None}, "thread .*: access to memory that is not there"),
        ("barrier_some", {}, "barrier divergence: .* 17 of 64 threads"),
        ("barrier_returned", {}, "barrier divergence: .* 63 of 64 threads"),
        ("barrier_two", {}, r"barrier divergence: .* while others wait"),
        ("shuffle_some", {}, "warp divergence: .* lanes 0x20 "),
        ("shuffle_mask", {}, "warp divergence: lane .* with the mask 0x1"),
        ("overflow_stack", {}, "a stack overflow"),
        pytest.param(
            *("divide_by_zero", {}, "integer division by zero"),
            marks=pytest.mark.skipif(
                platform.machine() not in ("x86_64", "AMD64"), reason="only x86 traps on it"
            ),
        ),
    ],
)
def test_faults_are_errors(
    entry: str, others: dict[str, Any], message: str, seed: int | None
) -> None:
    """Each fault raises LaunchError naming it, for every schedule, and ends the launch and not the
    process; it leaves the output and the input alone.
    """
    output = torch.zeros(100)
    with host.schedule(seed), pytest.raises(host.LaunchError, match=message):
        run_fault(entry, output, **others)
    assert torch.equal(output, torch.zeros(100))
    assert torch.equal(ONES, torch.ones(100))


def test_dynamic_shared_memory_is_whole() -> None:
    """Writes within the bytes that were asked for are fine."""
    run_fault("write_shared", torch.zeros(100), shared=256)


ENDLESS = """
import torch
from tests.shared.cuda_sources import FAULTS
from detmode.cuda import launch_blocks

def test_endless():
    print("begins", flush=True)
    launch_blocks(FAULTS, "endless", 1, 1, output=torch.zeros(1), n=1)
"""


@pytest.mark.thorough
def test_a_kernel_without_end_ends_its_test(tmp_path: Path, run_python: Any) -> None:
    """It returns to no signal handler: the suite's time limit does not count on one."""
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    test = tmp_path / "test_endless.py"
    test.write_text(ENDLESS)
    launch_blocks(
        FAULTS, "assert_small", 1, 1, output=torch.zeros(1), n=1
    )  # compiles them, for both
    settings = ("-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-s", "--timeout=5")
    ended = run_python("-m", "pytest", *settings, str(test))
    assert "begins" in ended.stdout
    assert ended.returncode == 1
    assert "Timeout" in ended.stdout + ended.stderr


def test_device_assert_is_its_own_error() -> None:
    """DETMODE_ASSERT raises DeviceAssert with the condition; the next launch works."""
    output = torch.zeros(100)
    with pytest.raises(host.DeviceAssert, match=r"faults\.cu:\d+: .*`n < 10` failed"):
        run_fault("assert_small", output)
    launch(FAULTS, "assert_small", 1, output=output, n=5)
    assert output[0] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_forgotten_elements_stay_poisoned(seed: int | None) -> None:
    """An element that no thread writes keeps the NaN of `empty`."""
    output = empty((100,), torch.float32, "cpu")
    with host.schedule(seed):
        run_fault("forget", output)
    assert output.isnan().tolist() == [True] + [False] * 99


@pytest.mark.skipif(sys.platform != "linux", reason="shared variables are found by ELF's tables")
@pytest.mark.parametrize("entry", ["read_shared", "read_shared_of<float>"])
@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory_starts_poisoned_in_every_block(seed: int | None, entry: str) -> None:
    """A block sees neither zeros nor another block's values in its shared memory."""
    output = torch.zeros(100)
    with host.schedule(seed):
        run_fault(entry, output)
    assert output[:2].isnan().all()


def test_out_of_bounds_reads_give_nan() -> None:
    """Without a sanitized build a read past the end is not an error, but gives NaN."""
    output = torch.zeros(1)
    run_fault("read_after", output, input=torch.zeros(100))
    assert output.isnan().all()


@pytest.mark.parametrize("seed", SEEDS)
def test_warp_operations(seed: int | None) -> None:
    """Shuffles, votes, reductions and matches give what CUDA specifies, in every lane."""
    output = torch.zeros(2 * 64, 10, dtype=torch.int64)
    with host.schedule(seed):
        launch_blocks(WARP, "warp_operations", 2, 64, output=output)
    for lane in range(32):
        half = lane // 16 * 16
        expected = [
            lane // 8 * 8 + 3,
            lane - 2 if lane - 2 >= half else lane,
            lane + 2 if lane + 2 < half + 16 else lane,
            lane ^ 5,
            sum(1 << i for i in range(0, 32, 3)),
            1,
            25 + 22,
            sum(1 << i for i in range(lane % 4, 32, 4)),
            15,
            15 if lane < 16 else 16,
        ]
        assert output.view(4, 32, 10)[:, lane].tolist() == [expected] * 4


@pytest.mark.parametrize("seed", SEEDS)
def test_block_operations(seed: int | None) -> None:
    """The barriers that count and vote give every thread the result; shared memory is shared."""
    output = torch.zeros(3 * 96, 4, dtype=torch.int64)
    with host.schedule(seed):
        launch_blocks(WARP, "block_operations", 3, 96, output=output)
    expected = [[48, 1, 1, (x + 1) % 96] for x in range(96)]
    assert output.view(3, 96, 4).tolist() == [expected] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_every_thread_runs_once(seed: int | None) -> None:
    """Each thread of each block of a three-dimensional launch runs exactly once."""
    output = torch.zeros(2 * 3 * 4 * 5 * 6 * 7, dtype=torch.int64)
    with host.schedule(seed):
        launch_blocks(WARP, "coordinates", (2, 3, 4), (5, 6, 7), output=output)
    assert (output == 1).all()


def draw(n: int) -> torch.Tensor:
    output = torch.zeros(n, dtype=torch.int32)
    launch(WARP, "tickets", n, next=torch.zeros(1, dtype=torch.int32), output=output, n=n)
    return output


def test_schedules_shuffle_and_repeat() -> None:
    """A seed shuffles blocks and threads; launches differ within a context and repeat across.

    Without a seed thread i runs i-th.
    """
    assert torch.equal(draw(1000), torch.arange(1000, dtype=torch.int32))
    orders = []
    for seed in (7, 7, 8):
        with host.schedule(seed):
            orders.append([draw(1000), draw(1000)])
    expected = torch.arange(1000, dtype=torch.int32)
    for order in orders[0]:
        assert not torch.equal(order, expected)
        assert torch.equal(order.sort().values, expected)
    assert not torch.equal(orders[0][0], orders[0][1])
    assert torch.equal(orders[0][0], orders[1][0])
    assert torch.equal(orders[0][1], orders[1][1])
    assert not torch.equal(orders[0][0], orders[2][0])


@pytest.mark.parametrize("threads", [2, 8, 33, 64, 256])
def test_threads_leave_a_barrier_in_any_order(threads: int) -> None:
    """With a seed, however few they are; without one they leave it as they came."""

    def turns(seed: int | None) -> tuple[list[int], list[int]]:
        before, after = torch.zeros(2, threads, dtype=torch.int64)
        with host.schedule(seed):
            launch_blocks(WARP, "turns", 1, threads, before=before, after=after)
        return before.tolist(), after.tolist()

    came, left = turns(None)
    assert came == left == list(range(threads))
    orders = [turns(seed) for seed in range(8)]
    assert any(before != after for before, after in orders)
    assert len({tuple(after) for _, after in orders}) > 1
    assert all(sorted(after) == came for _, after in orders)


def test_schedules_nest_and_survive_exceptions() -> None:
    """Leaving a context, by an exception too, restores the outer schedule where it was."""
    with host.schedule(3):
        draw(300)
        second = draw(300)
    with host.schedule(3):
        draw(300)
        with pytest.raises(RuntimeError, match="inside"), host.schedule(None):
            assert torch.equal(draw(300), torch.arange(300, dtype=torch.int32))
            raise RuntimeError("inside")
        assert torch.equal(draw(300), second)


@pytest.mark.parametrize("seed", [True, 1.5, "1"])
def test_schedule_rejects_other_types(seed: Any) -> None:
    """A seed is None or an int."""
    with pytest.raises(TypeError, match="seed must be None or an int"), host.schedule(seed):
        pass


def test_threads_switch_at_atomics() -> None:
    """With a seed a thread may lose its turn at an atomic: a lost update shows."""
    counts = set()
    for seed in (None, 1, 2, 3):
        counter = torch.zeros(1, dtype=torch.int32)
        with host.schedule(seed):
            launch(WARP, "lost_update", 2000, counter=counter, scratch=counter.clone(), n=2000)
        counts.add(int(counter))
    assert 2000 in counts
    assert len(counts) > 1


def test_negative_control() -> None:
    """A float atomicAdd gives different bits for different seeds: the shuffle exposes it."""
    torch.manual_seed(0)
    source, index = torch.randn(5000), torch.randint(0, 10, (5000,))
    seen = set()
    for seed in range(5):
        with host.schedule(seed):
            output = add_racing(torch.zeros(10), source, index)
        expected = torch.zeros(10).index_add(0, index, source)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
        seen.add(pattern(output))
    assert len(seen) == 5


def test_arguments_by_kind() -> None:
    """int, float, bool, None and Tensor arrive as int64_t, double, bool and pointers."""
    output = torch.zeros(5, dtype=torch.int64)
    launch(
        WARP, "kinds", 1,
        input=None, output=output, whole=-(2**62), real=1.25, flag=True, anything=None,
    )  # fmt: skip
    assert output.tolist() == [-(2**62), 5, 1, 1, 1]
    some = torch.zeros(1, dtype=torch.int32)
    launch(
        WARP, "kinds", 1,
        input=some, output=output, whole=3, real=-0.5, flag=False,
        anything=torch.zeros(1, dtype=torch.float64),
    )  # fmt: skip
    assert output.tolist() == [3, -2, 0, 0, 0]


INT32 = torch.zeros(1, dtype=torch.int32)
INT64 = torch.zeros(5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"real": 1}, TypeError, "real is double, so it takes a float, but got int"),
        ({"whole": 1.0}, TypeError, "whole is int64_t, so it takes an int, but got float"),
        ({"whole": True}, TypeError, "whole is int64_t, .* but got bool"),
        ({"flag": 1}, TypeError, "flag is bool, so it takes a bool, but got int"),
        ({"whole": INT64}, TypeError, "whole is int64_t, .* but got Tensor"),
        ({"input": 5}, TypeError, "input is pointer, so it takes a Tensor or None, but got int"),
        ({"whole": 2**63}, ValueError, "whole is 9223372036854775808, which no int64_t holds"),
        ({"input": INT64}, host.LaunchError, r"input is a Tensor of torch.int64, .* const int32_t"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(
    wrong: dict[str, object], error: type[Exception], message: str
) -> None:
    """An argument of the wrong kind is an error that names the kernel, the parameter and both."""
    fitting = {"input": INT32, "output": INT64, "whole": 1, "real": 1.0, "flag": True}
    with pytest.raises(error, match=rf"^warp\.cu: kinds: {message}"):
        launch(WARP, "kinds", 1, anything=None, **(fitting | wrong))


def test_aliased_arguments_stay_aliased() -> None:
    """Two arguments over one memory see each other's writes, as on a GPU."""
    values = torch.arange(10.0)
    launch(KERNELS, "scale<float>", 5, input=values[:5], output=values[:5], n=5, factor=2.0)
    assert values.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def test_empty_tensors_have_no_bytes() -> None:
    """A write to an empty tensor is out of bounds."""
    with pytest.raises(host.LaunchError, match="after the end of its 0 bytes"):
        launch(FAULTS, "write_after", 1, output=torch.zeros(0), n=0)


def test_strided_tensors_cover_their_last_element() -> None:
    """A non-contiguous tensor is guarded behind its last element in memory."""
    base = torch.zeros(10, 10)
    column = base[:, 3]
    launch(FAULTS, "write_after", 1, output=column, n=90)
    assert base[9, 3] == 1
    with pytest.raises(host.LaunchError, match="after the end of its 364 bytes"):
        launch(FAULTS, "write_after", 1, output=column, n=91)


def test_launches_from_several_threads() -> None:
    """Launches of one source from several OS threads do not disturb one another."""
    values = torch.randn(20000)

    def work(seed: int) -> None:
        with host.schedule(seed):
            for _ in range(5):
                output = empty(values.shape, values.dtype, "cpu")
                launch(
                    KERNELS, "scale<float>", 20000, input=values, output=output, n=20000, factor=2.0
                )
                assert torch.equal(output, values * 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


FILLS = """
template <typename T> __global__ void first(T* out) { __syncthreads(); out[threadIdx.x] = T(1); }
template <typename T> __global__ void second(T* out) { __syncthreads(); out[threadIdx.x] = T(2); }
"""


def test_kernels_of_one_dtype_are_compiled_together(tmp_path, monkeypatch) -> None:
    """A launch waits for no other dtype; libraries have one set of stacks, whichever launches."""
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path / "cache"))
    source = source_in(tmp_path, FILLS, "first<float>", "second<float>", "first<double>")
    stacks = library._free_stacks["plain"]
    libraries, mapped = [], []
    for entry, value, dtype in (
        ("first<float>", 1, torch.float32),
        ("second<float>", 2, torch.float32),
        ("first<double>", 1, torch.float64),
    ):
        output = torch.zeros(256, dtype=dtype)
        launch_blocks(source, entry, 1, 256, out=output)
        assert (output == value).all()
        libraries.append(len(list((tmp_path / "cache").rglob("*.so"))))
        mapped.append(sum(each.n for each in stacks))
    assert libraries == [1, 1, 2]
    assert mapped[0] == mapped[1] == mapped[2] >= 256


def test_compile_errors_show_the_log(tmp_path) -> None:
    """A file that g++ rejects raises CompileError with file, line and g++'s words."""
    source = source_in(tmp_path, '#include "index.cuh"\n__global__ void f() { oops(); }\n')
    with pytest.raises(CompileError, match=r"(?s)text\.cu:2.*oops"):
        host.compile(source)


def test_scalar_parameters_have_three_types(tmp_path) -> None:
    """A kernel parameter of another scalar type does not compile."""
    with pytest.raises(CompileError, match="scalar parameters are int64_t, double or bool"):
        host.compile(source_in(tmp_path, "__global__ void f(int n) {}\n"))


def test_cache_that_cannot_be_made(tmp_path, monkeypatch) -> None:
    """A warning says that the cache's folder cannot be made, and the kernel runs."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path / "file" / "cache"))
    source = source_in(tmp_path, "__global__ void f(bool flag) {}\n")
    with pytest.warns(RuntimeWarning, match="Not a directory: .*set DETMODE_CACHE"):
        assert host.compile(source).kinds(0) == [("b", " ")]


def test_a_changed_header_compiles_again(tmp_path, monkeypatch) -> None:
    """A library of an older runner is not taken: each header of the runner is in the key."""
    headers = tuple(Path(shutil.copy(header, tmp_path)) for header in library.HEADERS)
    monkeypatch.setattr(library, "HEADERS", headers)
    parts = re.findall('#include "(.*)"', (tmp_path / "runtime.h").read_text())
    of_cuda = (Path(library.__file__).parent / "cuda_headers").rglob("*.h")
    assert {header.name for header in headers} == {
        "runtime.h",
        *parts,
        *(header.name for header in of_cuda),
    }
    asked = set()
    monkeypatch.setattr(library, "take", lambda kind, name, make: asked.add(name))
    for changed in (None, *headers, None):
        if changed is not None:
            changed.write_text(changed.read_text() + "// changed\n")
        source = source_in(tmp_path, "__global__ void f(bool flag) {}\n")
        library._build(source, "plain", source.entries)
    assert len(asked) == 1 + len(headers)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("/bin/true", "'/bin/true' does not answer as a C++ compiler does"),
        ("/bin/cat", "'/bin/cat' does not answer as a C++ compiler does"),
        ("no-such-compiler -O2", "there is no program 'no-such-compiler'"),
        ("g++ '-O2", "No closing quotation"),
        ("''", "there is no program ''"),
        ("{tmp_path}", "there is no program"),
        ("{tmp_path}/text", "cannot be started: Exec format error"),
        ("g++ --no-such-option", "does not answer"),
    ],
)
def test_what_is_wrong_with_cxx(value: str, said: str, tmp_path, monkeypatch) -> None:
    """Asking is answered with one sentence that names CXX; compiling raises the same."""
    (tmp_path / "text").write_bytes(b"\x7fELF no program")
    (tmp_path / "text").chmod(0o755)
    value = value.format(tmp_path=tmp_path)
    monkeypatch.setenv("CXX", value)
    reason = unavailable.__wrapped__("cpu")
    assert reason.startswith(f"CXX is {value!r}: ")
    assert said in reason
    assert reason.endswith("; set it to a C++ compiler, or unset it.")
    assert "\n" not in reason
    assert host.compiler() is None
    with pytest.raises(CompileError, match="^CXX is "):
        host.compile(Source(cuda_sources.__file__, "warp.cu", WARP.entries))


def test_cxx_is_a_command(tmp_path, monkeypatch) -> None:
    """A launcher and its compiler, or a compiler with arguments, are what compiles; all are in the
    key.
    """
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path / "cache"))
    compiler = host.compiler()
    launcher = tmp_path / "my ccache"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\nexec "$@"\n')
    launcher.chmod(0o755)
    made = set()
    for command in (compiler, f"'{launcher}' {compiler}", f"'{launcher}' {compiler} -DMINE=1"):
        monkeypatch.setenv("CXX", f" {command} ")
        assert unavailable.__wrapped__("cpu") is None
        made.add(host.compile(source_in(tmp_path, "__global__ void f(bool flag) {}\n")).path)
        assert host.compiler() == command
    assert len(made) == 3
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 6  # each asks, compiles and links
    assert all(call.startswith(compiler) for call in calls)
    assert sum("-DMINE=1" in call for call in calls) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always use ucontext")
def test_portable_switches(monkeypatch) -> None:
    """Built with ucontext instead of assembly, barriers and warp operations work alike."""
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, "-DDETMODE_UCONTEXT=1"))
    source = Source(cuda_sources.__file__, "warp.cu", WARP.entries)
    for entry, block, columns in (("warp_operations", 64, 10), ("block_operations", 96, 4)):
        expected = torch.zeros(2 * block, columns, dtype=torch.int64)
        output = expected.clone()
        launch_blocks(WARP, entry, 2, block, output=expected)
        with host.schedule(3):
            launch_blocks(source, entry, 2, block, output=output)
        assert torch.equal(output, expected)
