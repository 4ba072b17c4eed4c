"""Recordings of distributed runs: results that come late, and ranks that are compared."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from detmode import DeterministicMode, diff, record
from detmode.runs.trace_file import UNDEFINED, Reader, TraceCall
from tests.shared import needs

pytestmark = needs.distributed


class Late:
    """Operators that write when they are waited for, as collectives do."""

    def __init__(self) -> None:
        self._begin = threading.Event()
        self._threads: list[threading.Thread] = []

    def write(self, tensor: Tensor, async_op: bool = True) -> None:
        def work() -> None:
            self._begin.wait()
            tensor.numpy()[:] = 7

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def made(self, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        self.write(result)
        return result

    def wait(self) -> None:
        self._begin.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def late():
    late = Late()
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("late_(Tensor(a!) tensor, bool async_op=True) -> ()")
    library.impl("late_", late.write, "CPU")
    functional = torch.library.Library("_c10d_functional", "FRAGMENT")
    functional.define("late(Tensor x) -> Tensor")
    functional.impl("late", late.made, "CPU")
    yield late
    late.wait()
    library._destroy()
    functional._destroy()


def digests_of(path: Path, operator: str, side: str) -> list[tuple[bytes, ...]]:
    return [getattr(call, side).digests for call in operators(path, operator)]


def operators(path: Path, *names: str) -> list[TraceCall]:
    return [call for call in Reader(path).calls() if call.overload.rpartition(".")[0] in names]


@pytest.mark.parametrize("others", [0, 2000], ids=["at_once", "after_many_calls"])
def test_result_is_the_one_that_was_waited_for(late, others, tmp_path):
    """Its digest is of what is there when somebody next reads or overwrites it."""
    x, y = torch.zeros(3), torch.zeros(5)
    with record(tmp_path / "run"):
        for tensor in (x, y):
            torch.ops.c10d.late_(tensor)
        for _ in range(others):
            torch.ones(2).neg()
        late.wait()
        x[1:].clone()
        x.clone()
        torch.ones(5, out=y)
        torch.full((5,), 7.0).neg()
    ((first,), (second,)) = digests_of(tmp_path / "run", "c10d::late_", "mutated")
    assert (first,) == digests_of(tmp_path / "run", "aten::clone", "inputs")[-1]
    assert (second,) == digests_of(tmp_path / "run", "aten::neg", "inputs")[-1]
    assert Reader(tmp_path / "run").about["format"] == "detmode-trace"


def test_result_that_nobody_reads(late, tmp_path):
    """It is seen at the end where the caller waited for it at once, and else not."""
    x, y = torch.zeros(3), torch.zeros(3)
    with record(tmp_path / "run"):
        torch.ops.c10d.late_(x)
        torch.ops.c10d.late_(y, False)
        late.wait()
    ((first,), (second,)) = digests_of(tmp_path / "run", "c10d::late_", "mutated")
    assert first == UNDEFINED != second


def test_view_of_an_unfinished_result_does_not_wait(late, tmp_path):
    """Its digest, too, is of what is there after a wait."""
    with record(tmp_path / "run"):
        view = torch.ops._c10d_functional.late(torch.ones(4)).view(2, 2).detach()
        late.wait()
        torch.ops._c10d_functional.wait_tensor(view).clone()
    (made,) = digests_of(tmp_path / "run", "_c10d_functional::late", "outputs")
    assert made == digests_of(tmp_path / "run", "aten::clone", "inputs")[0] != (UNDEFINED,)
    for side in ("inputs", "outputs"):
        assert digests_of(tmp_path / "run", "aten::view", side) == [made]
        # PyTorch 2.8 detaches twice.
        assert set(digests_of(tmp_path / "run", "aten::detach", side)) == {made}


def test_result_that_is_copied_into_place(late, tmp_path):
    """Gloo's own copies, inside a wait, are no use of the result."""
    x = torch.zeros(4)
    with record(tmp_path / "run"):
        torch.ops.c10d.late_(x)
        for half in x.chunk(2):
            half.copy_(torch.ones(2))
        x.clone()
    (made,) = digests_of(tmp_path / "run", "c10d::late_", "mutated")
    assert [made] == digests_of(tmp_path / "run", "aten::clone", "inputs")


@pytest.fixture
def group():
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_collectives_write_what_their_schemas_do_not_say(tmp_path):
    """Also in lists of lists; what is sent is not written."""
    x, gathered = torch.ones(3), [torch.zeros(3)]
    with record(tmp_path / "run"):
        distributed.all_reduce(x)
        distributed.all_gather(gathered, x)
        gathered[0].clone()
        distributed.barrier()
    for operator in ("c10d::allreduce_", "c10d::allgather_"):
        (call,) = operators(tmp_path / "run", operator)
        assert call.mutated.digests == digests_of(tmp_path / "run", "aten::clone", "inputs")[0]
        assert call.outputs.digests == ()
    (barrier,) = operators(tmp_path / "run", "c10d::barrier")
    assert barrier.mutated.digests == ()


@pytest.mark.usefixtures("group")
def test_functional_collectives(tmp_path):
    """The result is that of ``wait_tensor``."""
    with record(tmp_path / "run"):
        result = torch.ops._c10d_functional.all_reduce(torch.ones(3), "sum", "0")
        torch.ops._c10d_functional.wait_tensor(result).clone()
    (made,) = digests_of(tmp_path / "run", "_c10d_functional::all_reduce", "outputs")
    (waited_for,) = digests_of(tmp_path / "run", "_c10d_functional::wait_tensor", "inputs")
    assert [made] == [waited_for] == digests_of(tmp_path / "run", "aten::clone", "inputs")


@pytest.mark.usefixtures("group")
def test_what_dtensor_has_cached(tmp_path):
    """A call whose sharding is known already is recorded and counted as one for the first time."""
    mesh, reports = init_device_mesh("cpu", (1,)), []
    for run in ("cold", "warm"):
        with record(tmp_path / run), DeterministicMode() as mode:
            x = DTensor.from_local(torch.ones(7, 11), mesh, [Shard(0)])
            torch.empty_like(x).copy_(x).mul(2).sum()
        reports.append([(row.overload, row.count) for row in mode.records])
    assert diff(tmp_path / "cold", tmp_path / "warm").identical
    assert reports == [[("aten::empty_like.default", 1)]] * 2
