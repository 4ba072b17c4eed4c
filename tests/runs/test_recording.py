"""A recording's contents, and what it leaves as it was."""

import contextlib
import os
import threading
import time
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from detmode import DeterministicMode, allow, record
from detmode.runs.probing import Probe
from detmode.runs.trace_file import UNDEFINED, Reader
from tests.shared import needs
from tests.shared.programs import in_threads
from tests.shared.traces import calls, compared


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def test_out_and_lists(path):
    """``out=``, and each tensor of a foreach operator's list, is mutated."""
    x, out = torch.ones(3), torch.zeros(3)
    several = [torch.ones(2), torch.ones(4)]
    with record(path):
        torch.add(x, x, out=out)
        torch._foreach_mul_(several, 2.0)
        torch.cat([*several, out]).sum()
    add, each, cat, _ = calls(path)
    assert len(add.mutated.digests) == 1
    assert add.outputs.digests == ()
    assert len(each.mutated.digests) == 2
    assert cat.inputs.digests == (*each.mutated.digests, *add.mutated.digests)


def test_what_out_held_before_is_no_input(path, tmp_path):
    """The call writes over it."""

    def program(value, recording):
        out = torch.full((3,), value)
        with recording:
            torch.mul(torch.ones(3), 2.0, out=out)

    assert compared(tmp_path, program, 0.0, 5.0).identical
    (mul,) = calls(path, "aten::mul.out")
    assert (len(mul.inputs.digests), len(mul.mutated.digests)) == (1, 1)


def test_statistics_of_batch_norm_are_mutated(path):
    """Its schema does not say that it writes them."""
    norm = nn.BatchNorm1d(4)
    with record(path):
        norm(torch.randn(8, 4))
        norm.running_mean.clone()
        norm.running_var.clone()
    (call,), (mean, var) = calls(path, "aten::native_batch_norm.default"), calls(path)[-2:]
    assert call.mutated.digests == mean.inputs.digests + var.inputs.digests
    assert call.inputs.digests[3] != mean.inputs.digests[0]


def test_more_small_tensors_than_are_staged_at_once(path):
    """A list of 300 tensors of 32 KB has the digests that its tensors have alone."""
    several = [torch.full((8000,), float(value)) for value in range(300)]
    with record(path):
        torch._foreach_add_(several, 1.0)
        for tensor in (several[0], several[150], several[299]):
            tensor.clone()
    together, *alone = calls(path)
    assert [together.mutated.digests[n] for n in (0, 150, 299)] == [
        call.inputs.digests[0] for call in alone
    ]
    assert len(set(together.inputs.digests)) == 300


def test_fused_optimizer(path):
    """A fused optimizer's parameters, moments and steps are mutated, and seen."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, 3)).sum().backward()
    with record(path):
        optimizer.step()
    (fused,) = calls(path, "aten::_fused_adamw_.default")
    # Two parameters, their gradients, and two moments of each.
    assert len(fused.mutated.digests) >= 8
    before = dict(zip(fused.inputs.digests, range(99)))
    assert any(digest not in before for digest in fused.mutated.digests)


def test_random_operator(path):
    """A random operator has the digest of its generator's state, the given one or the default."""
    generator = torch.Generator().manual_seed(1)
    with record(path):
        torch.rand(3)
        torch.rand(3)
        torch.rand(3, generator=generator)
        torch.ones(3)
    *randoms, ones = calls(path)
    assert ones.generator is None
    assert len({call.generator for call in randoms} - {None}) == 3


def test_non_tensor_arguments(path):
    """Numbers, dtypes and lists are there as text; a long text ends in its digest."""
    with record(path):
        torch.arange(9).view(3, 3).sum(1, dtype=torch.float64)
        torch.zeros(2)[[1]] = 4.0
    assert [call.arguments for call in calls(path, "aten::view.default")] == ["_, [3, 3]"]
    assert [call.arguments for call in calls(path, "aten::sum.dim_IntList")] == [
        "_, [1], dtype=torch.float64"
    ]


@needs.compiler
@pytest.mark.parametrize("mode_is_inside", [False, True])
def test_substituted_call_is_one_call(mode_is_inside, path):
    """A substitute is recorded as the operator that it stands for, wherever the mode is entered."""
    x, index = torch.zeros(3), torch.tensor([0, 0, 2])
    mode = DeterministicMode(simulate="cuda")
    first, second = (record(path), mode) if mode_is_inside else (mode, record(path))
    with first, second:
        x.index_add_(0, index, torch.ones(3))
    assert [call.overload for call in calls(path)] == [
        "aten::ones.default",
        "aten::index_add_.default",
    ]
    assert [row.action for row in mode.records] == ["substitute"]
    assert x.tolist() == [2, 0, 1]


def test_large_and_strided_tensors(path):
    """Tensors that are digested where they are give what a copy of their values gives."""
    x = torch.randn(300, 300)
    with record(path):
        x.t().clone()
        (x + 0).t()
    turned, clone, add, view = calls(path)
    assert clone.inputs.digests == clone.outputs.digests == view.outputs.digests
    assert turned.inputs.digests == add.outputs.digests == view.inputs.digests
    assert turned.inputs.digests != turned.outputs.digests


def test_batches_inside_other_modes(path):
    """A batch that is due while tensors are fake is written, with the digests of the others."""
    x, mode = torch.ones(3), FakeTensorMode()
    with record(path):
        x.neg()
        with mode:
            for _ in range(600):
                torch.rand(3).neg()
        x.neg()
    first, *fake, last = calls(path, "aten::neg.default")
    assert len(fake) == 600
    assert (first.inputs, first.outputs) == (last.inputs, last.outputs)


@needs.compiler
@pytest.mark.parametrize("observer", [record, Probe], ids=["record", "probe"])
def test_looking_on_does_not_undo_an_exemption(observer, path):
    """An operator allowed in forward is allowed in its backward, also where it is recorded."""
    looking = observer(path) if observer is record else observer(1)
    image, grid = torch.ones(1, 1, 4, 4, requires_grad=True), torch.zeros(1, 2, 2, 2)
    with looking, DeterministicMode(simulate="cuda", substitute=False) as mode:
        with allow("aten::grid_sampler_2d"):
            found = nn.functional.grid_sample(image, grid, align_corners=False)
        found.sum().backward()
    assert {row.action for row in mode.records} == {"allow"}


@pytest.mark.parametrize(
    ("make", "has_bytes"),
    [
        (lambda: torch.eye(3).to_sparse(), True),
        (lambda: torch.eye(3).to_sparse_csr(), True),
        (lambda: torch.eye(4).to_sparse_bsr((2, 2)), True),
        (lambda: torch.eye(3).to_mkldnn(), True),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), True),
        (lambda: torch.ones(3, device="meta"), False),
        (lambda: FakeTensorMode().from_tensor(torch.ones(3)), False),
    ],
    ids=["coo", "csr", "bsr", "mkldnn", "nested", "meta", "fake"],
)
def test_tensors_that_are_not_strided(make, has_bytes, path):
    """Of what is made of several tensors all bytes are seen; of what has none, the form."""
    tensor = make()
    doubled = tensor + tensor
    with record(path):
        tensor.relu().relu()
        doubled.relu()
    one, again, other = (call.outputs for call in calls(path))
    assert one == again
    assert one.forms == other.forms
    assert (one.digests != other.digests) == has_bytes
    assert UNDEFINED not in one.digests


def test_call_that_raises_leaves_nothing(tmp_path):
    """Neither a line nor a digest, which would be taken for one of the next call."""

    def program(fails, recording):
        x = torch.arange(6.0).view(2, 3)
        with recording:
            y = x + 1
            if fails:
                with pytest.raises(RuntimeError):
                    x.mm(x)
            (y * 2).exp()

    assert compared(tmp_path, program, False, True).identical


def test_calls_of_several_threads(path):
    """As autograd's threads make them, one for each GPU: all are recorded, each with its own."""
    tensors = [torch.full((4,), float(number)) for number in range(8)]
    together = threading.Barrier(8)

    def slow(x):
        together.wait()
        return x.neg()

    def work(tensor):
        recording.observe(torch.ops.aten.neg.default, (tensor,), {}, slow)

    with record(path) as recording:
        in_threads(*(partial(work, tensor) for tensor in tensors))
        for tensor in tensors:
            tensor.neg()
    found = [(call.inputs.digests, call.outputs.digests) for call in calls(path)]
    assert set(found[:8]) == set(found[8:])
    assert len(set(found)) == 8


class Drawn(torch.utils.data.Dataset[Tensor]):
    """Makes more calls for each element than a batch of a recording holds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Tensor:
        x = torch.full((4,), float(number))
        for _ in range(300):
            x = x + 1
        return x


def test_workers_are_not_recorded(path):
    """A process that is forked in the block has the recording's files, and leaves them alone."""
    loader = torch.utils.data.DataLoader(Drawn(), batch_size=4, num_workers=2)
    with record(path):
        total = [batch.sum() for batch in loader]
        child = os.fork()
        if child == 0:
            torch.ones(3).neg()
    if child == 0:
        os._exit(0 if torch.ones(3).neg()[0] == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [float(each) for each in total] == [1200 * 4 + 6 * 4, 1200 * 4 + 22 * 4]
    assert len(calls(path, "aten::sum.default")) == 2
    assert calls(path, "aten::full.default", "aten::add.Tensor", "aten::neg.default") == []
    reader = Reader(path)
    assert len(list(reader.calls())) > 2
    assert reader.complete


class Late(torch.utils.data.Dataset[Tensor]):
    """One of the workers is late."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Tensor:
        info = torch.utils.data.get_worker_info()
        if info.id == self.worker:
            time.sleep(0.05)
        return torch.full((4,), float(number))


def test_the_order_in_which_batches_arrive_is_not_recorded(path, tmp_path):
    """It is the workers' timing; the program gets the batches in their own order."""

    def program(worker, recording):
        loader = torch.utils.data.DataLoader(Late(worker), batch_size=1, num_workers=2)
        torch.manual_seed(0)
        with recording:
            for batch in loader:
                batch.neg()

    assert compared(tmp_path, program, 0, 1).identical
    assert len(calls(path, "aten::neg.default")) == 4


def test_subclass_is_recorded_as_what_it_is_made_of(path):
    """The operators of its parts are recorded, with their bytes."""
    rows = [torch.ones(2), torch.ones(3)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with record(path):
        nested * 2
    (multiply,) = calls(path, "aten::mul.Tensor")
    assert multiply.inputs.forms == ("float32[5] strides [1] cpu",)


@pytest.mark.cuda
def test_calls_on_a_second_stream(path):
    """A digest waits for the stream that makes its tensor, and for no other."""
    x, stream = torch.arange(1 << 22, dtype=torch.float32, device="cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with record(path):
        with torch.cuda.stream(stream):
            for _ in range(20):
                y = x.double().mul(2).sub(x)
            y.neg()
        expected = x.cpu().double().neg()
        expected.clone()
    negated, clone = calls(path, "aten::neg.default")[0], calls(path, "aten::clone.default")[0]
    assert negated.outputs.digests == clone.inputs.digests


@pytest.mark.cuda
def test_capture_is_recorded_without_digests(path):
    """Recording neither breaks a capture nor is part of the graph."""
    x, graph = torch.ones(1000, device="cuda"), torch.cuda.CUDAGraph()
    x.mul(2)
    with record(path):
        with torch.cuda.graph(graph):
            y = x.mul(2)
            for _ in range(600):
                y = y.add(1)
            torch.nn.functional.dropout(y)
        x.fill_(3)
        graph.replay()
        torch.cuda.synchronize()
        y.clone()
    assert y.unique().tolist() == [606]
    captured, (clone,) = calls(path, "aten::add.Tensor"), calls(path, "aten::clone.default")
    assert len(captured) == 600
    assert {call.outputs.digests for call in captured} == {captured[0].outputs.digests}
    assert clone.inputs.digests[0] not in captured[0].outputs.digests


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # of Dynamo, by which PyTorch runs a branch
@pytest.mark.parametrize("order", ["alone", "inside", "outside"])
def test_the_body_of_a_higher_order_operator(path, order):
    """The calls in a branch are recorded once each, whether a mode decides on them or not."""
    # PyTorch compiles one function of its own for all who call cond: what it has compiled for other
    # tests, and which sizes have varied in them, would decide what it makes of this one.
    torch._dynamo.reset()

    def branch(x):
        return x.sin().cumsum(0)

    blocks = [record(path)]
    if order != "alone":
        blocks.insert(order == "outside", DeterministicMode(warn_only=True, simulate="cuda"))
    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        for _ in range(2):
            torch.cond(torch.tensor(True), branch, torch.clone, (torch.ones(3),))
    found = calls(path, "aten::sin.default", "aten::cumsum.default")
    assert [call.overload for call in found] == ["aten::sin.default", "aten::cumsum.default"] * 2
    line = f"{__file__}:{branch.__code__.co_firstlineno + 1}"
    assert {call.site for call in found} == {line}
