"""A recording's contents, and what it leaves as it was."""

import contextlib
import ctypes
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from detmode import DeterministicMode, allow, record
from detmode.runs.probing import Probe
from detmode.runs.trace_file import UNDEFINED, Reader
from detmode.runs.unwritten import DEFINED, Memory
from detmode.runs.unwritten import UNDEFINED as NOTHING_DEFINED
from detmode.sites.module_path import ModulePaths
from tests.shared import needs
from tests.shared.traces import calls, compared, new


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_out_and_lists(path: Path) -> None:
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


def test_what_out_held_before_is_no_input(path: Path, tmp_path: Path) -> None:
    """The call writes over it."""

    def program(value: float, recording: record) -> None:
        out = torch.full((3,), value)
        with recording:
            torch.mul(torch.ones(3), 2.0, out=out)

    assert compared(tmp_path, program, 0.0, 5.0).identical
    (mul,) = calls(path, "aten::mul.out")
    assert (len(mul.inputs.digests), len(mul.mutated.digests)) == (1, 1)


def test_statistics_of_batch_norm_are_mutated(path: Path) -> None:
    """Its schema does not say that it writes them."""
    norm = nn.BatchNorm1d(4)
    with record(path):
        norm(torch.randn(8, 4))
        norm.running_mean.clone()
        norm.running_var.clone()
    (call,), (mean, var) = calls(path, "aten::native_batch_norm.default"), calls(path)[-2:]
    assert call.mutated.digests == mean.inputs.digests + var.inputs.digests
    assert call.inputs.digests[3] != mean.inputs.digests[0]


def test_more_small_tensors_than_are_staged_at_once(path: Path) -> None:
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


def test_fused_optimizer(path: Path) -> None:
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


def test_memory_that_nobody_wrote(path: Path, tmp_path: Path) -> None:
    """The result of ``empty``, and a view of it, is undefined until it is written."""

    def program(rest: float, recording: record) -> None:
        full = torch.full((64,), rest)
        del full  # its memory may be given out again
        with recording:
            x = torch.empty(64)
            half = x[:32]
            x.fill_(3)
            half.clone()

    assert compared(tmp_path, program, 1.0, 2.0).identical
    empty, view, fill, clone = calls(path)
    assert empty.outputs.digests == view.outputs.digests == fill.inputs.digests == (UNDEFINED,)
    assert UNDEFINED not in (*fill.mutated.digests, *clone.inputs.digests)


def test_random_operator(path: Path) -> None:
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


def test_non_tensor_arguments(path: Path) -> None:
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
def test_substituted_call_is_one_call(mode_is_inside: bool, path: Path) -> None:
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


def test_large_and_strided_tensors(path: Path) -> None:
    """Tensors that are digested where they are give what a copy of their values gives."""
    x = torch.randn(300, 300)
    with record(path):
        x.t().clone()
        (x + 0).t()
    turned, clone, add, view = calls(path)
    assert clone.inputs.digests == clone.outputs.digests == view.outputs.digests
    assert turned.inputs.digests == add.outputs.digests == view.inputs.digests
    assert turned.inputs.digests != turned.outputs.digests


# The warning that some results are not recorded is of no interest here.
@pytest.mark.filterwarnings("ignore:detmode.record.*uninitialized")
def test_computing_with_what_nobody_wrote(tmp_path: Path) -> None:
    """The results are undefined, too, until they reach what was defined, or a value of Python's."""

    def program(byte: int, recording: record) -> None:
        with recording:
            (new(64, byte).exp() + torch.ones(64)).sum()
            x = torch.ones(64)
            if used == "written":
                x.mul_(new(64, byte).exp())
            elif used == "item":
                new(64, byte).exp().sum().item()

    for used in ("nowhere", "written", "item"):
        comparison = compared(tmp_path / used, program, 0x3F, 0x40)
        assert comparison.identical == (used == "nowhere")
        assert ("reads uninitialized memory" in str(comparison)) == (used != "nowhere")


# As above.
@pytest.mark.filterwarnings("ignore:detmode.record.*uninitialized")
@pytest.mark.parametrize("numel", [3, 1000, 100_000])
def test_memory_that_others_fill(numel: int, tmp_path: Path) -> None:
    """NumPy's writes are seen, and only those; what new memory held before does not count."""

    def program(values: tuple[int, float], recording: record) -> None:
        byte, value = values
        with recording:
            x, half, unseen = (new(numel, byte) for _ in range(3))
            x.numpy()[:] = value
            half.numpy()[: numel // 2] = value
            x.view(-1).mul(2)
            half[: numel // 2].mul(2)
            half[: numel // 2].mul(2)
            unseen.neg()
            assert set(unseen.numpy().tobytes()) == {byte}

    assert compared(tmp_path / "same", program, (0, 0.0), (7, 0.0)).identical
    comparison = compared(tmp_path / "other", program, (0, 0.0), (0, 1.0))
    divergence = comparison.divergence
    assert (divergence.kind, divergence.call.overload) == ("inputs", "aten::mul.Tensor")
    # What is written in part is an input of the second view of it.
    assert comparison.different == 4


def test_memory_that_is_written_in_parts(tmp_path: Path) -> None:
    """Undefined bytes beside written ones stay undefined, to the byte."""

    def program(byte: int, recording: record) -> None:
        with recording:
            x = new(192, byte).view(3, 64)
            x[0].copy_(torch.ones(64))
            x[:, 0].fill_(2.0)
            x[:, 1].zero_()
            x[:, :2].neg()
            x.mul_(2)
            x[:, :2].neg()

    assert compared(tmp_path, program, 1, 2).identical


def test_resized_memory(path: Path, tmp_path: Path) -> None:
    """A storage's new bytes are undefined, though no operator resizes it; kept ones are not."""

    def program(byte: int, recording: record) -> None:
        x = torch.ones(64)
        with recording:
            x.untyped_storage().resize_(0)
            x.view(8, 8)
            x.untyped_storage().resize_(256)
            ctypes.memset(x.data_ptr(), byte, 0)
            x.view(8, 8)
            x.copy_(torch.ones(64))
            x.neg()
            x.resize_(32).neg()

    assert compared(tmp_path, program, 1, 2).identical
    first, second = calls(path, "aten::view.default")
    assert first.inputs.digests == second.inputs.digests == (UNDEFINED,)
    assert all(UNDEFINED not in call.inputs.digests for call in calls(path, "aten::neg.default"))


def test_batches_inside_other_modes(path: Path) -> None:
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


def test_results_are_the_same(path: Path) -> None:
    """Recording changes no result and no random number, and ends with its block."""
    torch.manual_seed(0)
    expected = torch.rand(5).sin()
    torch.manual_seed(0)
    with record(path):
        found = torch.rand(5).sin()
    assert torch.equal(found, expected)
    torch.ones(3)
    assert [call.overload for call in calls(path)] == ["aten::rand.default", "aten::sin.default"]


class Block(nn.Module):
    """Every call of every block is on one of these lines."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.softplus(self.linear(x))
        y[:, :2].mul_(2)
        if self.inner is not None:
            y = self.inner(y)
        return y.sin()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = Block()
        self.first = Block()
        self.nested = Block(Block())
        self.twice = nn.ModuleList([shared, nn.Sequential(shared)])

    def forward(self, x: Tensor) -> Tensor:
        for module in (self.first, self.nested, *self.twice):
            x = module(x)
        return Double.apply(x)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.ceil()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.floor()


BLOCKS = ["Net.first", "Net.nested.inner", "Net.nested", "Net.twice.0", "Net.twice.1.0"]


def modules(path: Path, overload: str) -> list[str | None]:
    return [call.module for call in calls(path, overload)]


def train(path: Path, net: nn.Module) -> Path:
    with record(path):
        loss = net(torch.ones(2, 4)).sum()
        loss.argmax()  # makes no node, and is not taken for the one that made the last
        loss.backward()
    return path


def test_module_of_each_call(path: Path) -> None:
    """One line in several blocks has the path of each, in forward and backward, written in place.

    A module that is in two places of the model has both paths.
    """
    train(path, Net())
    entered = ["Net.first", "Net.nested", "Net.nested.inner", "Net.twice.0", "Net.twice.1.0"]
    assert modules(path, "aten::sin.default") == BLOCKS
    assert modules(path, "aten::softplus.default") == entered
    assert modules(path, "aten::addmm.default") == [f"{block}.linear" for block in entered]
    assert modules(path, "aten::softplus_backward.default") == entered[::-1]
    cosines = calls(path, "aten::cos.default")
    assert [call.module for call in cosines] == BLOCKS[::-1]
    assert {call.site for call in cosines} == {
        call.site for call in calls(path, "aten::sin.default")
    }
    # Writing to a view makes a node of another kind; its backward copies.
    assert modules(path, "aten::clone.default") == entered[::-1]
    # A function's own backward.
    assert modules(path, "aten::floor.default") == ["Net"]
    assert modules(path, "aten::sum.default")[0] is None
    (total,), expand = calls(path, "aten::sum.default"), calls(path, "aten::expand.default")[0]
    assert expand.site == total.site


class Gradient(nn.Module):
    """Runs a backward inside its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.autograd.grad(self.inner(x).sum(), x)[0]


def test_backward_inside_a_forward(path: Path) -> None:
    """The module is that of the forward call, not the one that runs the backward."""
    with record(path):
        Gradient(Net())(torch.ones(2, 4, requires_grad=True))
    assert modules(path, "aten::floor.default") == ["Gradient.inner"]
    assert modules(path, "aten::cos.default") == [
        block.replace("Net", "Gradient.inner") for block in BLOCKS[::-1]
    ]


def test_same_modules_in_each_run(path: Path, tmp_path: Path) -> None:
    """Two runs of one program have the same modules, whatever was recorded or called before."""
    net = Net()
    net.nested(torch.ones(1, 4))
    train(path, net)
    with record(tmp_path / "between"):
        net.twice[1](torch.ones(1, 4))
    net.zero_grad()
    train(tmp_path / "again", net)
    first, again = (
        [(call.overload, call.module) for call in calls(each)]
        for each in (path, tmp_path / "again")
    )
    assert first == again
    assert None not in modules(tmp_path / "between", "aten::sin.default")
    assert modules(tmp_path / "between", "aten::sin.default") == ["Sequential.0"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_forward_has_the_modules_of_the_first(reentrant: bool, path: Path) -> None:
    """Activation checkpointing calls a module alone in backward: it is the one of the model."""

    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            for module in (self.first, self.nested):
                x = checkpoint(module, x, use_reentrant=reentrant)
            return x

    with record(path):
        Checkpointed()(torch.ones(2, 4, requires_grad=True)).sum().backward()
    names = [f"Checkpointed.{name}" for name in ("first", "nested.inner", "nested")]
    again = modules(path, "aten::sin.default")[3:]
    assert modules(path, "aten::sin.default")[:3] == names
    # The other way stops where all that backward needs is there: before the last call.
    assert again == ([names[1], names[2], names[0]] if reentrant else [names[1]])
    assert modules(path, "aten::cos.default") == [names[2], names[1], names[0]]


def test_paths_of_modules_that_are_gone() -> None:
    """No module is kept alive, and one at the address of another has a name of its own."""
    paths = ModulePaths()
    for kind in (nn.ReLU, nn.Tanh) * 20:
        module = nn.Sequential(kind())
        expected = f"Sequential.0.{kind.__name__}"
        assert paths.of([module, module[0], kind()], recomputed=False) == expected
        gone = weakref.ref(module)
        del module
        assert gone() is None
    assert not paths._called.children
    assert not paths.known


@needs.compiler
@pytest.mark.parametrize("observer", [record, Probe], ids=["record", "probe"])
def test_looking_on_does_not_undo_an_exemption(observer: Any, path: Path) -> None:
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
def test_tensors_that_are_not_strided(make: Any, has_bytes: bool, path: Path) -> None:
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


def test_call_that_raises_leaves_nothing(tmp_path: Path) -> None:
    """Neither a line nor a digest, which would be taken for one of the next call."""

    def program(fails: bool, recording: record) -> None:
        x = torch.arange(6.0).view(2, 3)
        with recording:
            y = x + 1
            if fails:
                with pytest.raises(RuntimeError):
                    x.mm(x)
            (y * 2).exp()

    assert compared(tmp_path, program, False, True).identical


def test_calls_of_several_threads(path: Path) -> None:
    """As autograd's threads make them, one for each GPU: all are recorded, each with its own."""
    tensors = [torch.full((4,), float(number)) for number in range(8)]
    together = threading.Barrier(8)

    def slow(x: Tensor) -> Tensor:
        together.wait()
        return x.neg()

    def work(tensor: Tensor) -> None:
        recording.observe(torch.ops.aten.neg.default, (tensor,), {}, slow)

    with record(path) as recording:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, tensors))
        for tensor in tensors:
            tensor.neg()
    found = [(call.inputs.digests, call.outputs.digests) for call in calls(path)]
    assert set(found[:8]) == set(found[8:])
    assert len(set(found)) == 8


@pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="oneDNN has no LSTM in bfloat16 for a CPU without AVX-512",
)
def test_workspace_of_a_recurrent_network(path: Path, tmp_path: Path) -> None:
    """Parts of what is left for backward nobody writes: two runs of one program are the same."""
    lstm, x = nn.LSTM(8, 8), torch.randn(5, 3, 8)

    def program(byte: int, recording: record) -> None:
        # What is freed here is what the workspace gets.
        blocks = [torch.full((1 << power,), byte, dtype=torch.uint8) for power in range(6, 20)] * 4
        del blocks
        lstm.zero_grad(set_to_none=True)
        with recording, torch.autocast("cpu", dtype=torch.bfloat16):
            lstm(x)[0].float().sum().backward()

    assert compared(tmp_path, program, 0x00, 0xFF).identical
    layers = calls(path, "aten::mkldnn_rnn_layer.default")
    assert [call.outputs.digests[3] for call in layers] == [UNDEFINED] * len(layers)
    assert UNDEFINED not in [digest for call in layers for digest in call.outputs.digests[:3]]


class Drawn(torch.utils.data.Dataset[Tensor]):
    """Makes more calls for each element than a batch of a recording holds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Tensor:
        x = torch.full((4,), float(number))
        for _ in range(300):
            x = x + 1
        return x


def test_workers_are_not_recorded(path: Path) -> None:
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


def test_the_order_in_which_batches_arrive_is_not_recorded(path: Path, tmp_path: Path) -> None:
    """It is the workers' timing; the program gets the batches in their own order."""

    def program(worker: int, recording: record) -> None:
        loader = torch.utils.data.DataLoader(Late(worker), batch_size=1, num_workers=2)
        torch.manual_seed(0)
        with recording:
            for batch in loader:
                batch.neg()

    assert compared(tmp_path, program, 0, 1).identical
    assert len(calls(path, "aten::neg.default")) == 4


def test_empty_tensor_is_not_unwritten_memory(path: Path, tmp_path: Path) -> None:
    """No bytes have a digest, and nobody is told to fill them."""

    def program(scale: float, recording: record) -> None:
        with recording:
            torch.cat([torch.empty(0), torch.ones(2)]).mul(scale)
            torch.ones(0).mul(scale)

    comparison = compared(tmp_path, program, 2.0, 3.0)
    (call,) = calls(path, "aten::mul.Tensor")[1:]
    assert UNDEFINED not in (*call.inputs.digests, *call.outputs.digests)
    assert comparison.divergence.kind == "arguments"
    assert "uninitialized memory" not in str(comparison)


def test_subclass_is_recorded_as_what_it_is_made_of(path: Path) -> None:
    """The operators of its parts are recorded, with their bytes."""
    rows = [torch.ones(2), torch.ones(3)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with record(path):
        nested * 2
    (multiply,) = calls(path, "aten::mul.Tensor")
    assert multiply.inputs.forms == ("float32[5] strides [1] cpu",)


@pytest.mark.cuda
def test_calls_on_a_second_stream(path: Path) -> None:
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
def test_capture_is_recorded_without_digests(path: Path) -> None:
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


def test_freed_memory_is_undefined() -> None:
    """A storage without bytes, as FSDP leaves it, has nothing to read; nor has an empty tensor."""
    memory, x = Memory(), torch.ones(4)
    assert memory.content(x) == memory.content(torch.ones(0)) == DEFINED
    x.untyped_storage().resize_(0)
    # Not in the assertion: if it fails, pytest would print the tensor.
    content = memory.content(x)
    assert content == NOTHING_DEFINED


@pytest.mark.filterwarnings("ignore")  # of Dynamo, by which PyTorch runs a branch
@pytest.mark.parametrize("order", ["alone", "inside", "outside"])
def test_the_body_of_a_higher_order_operator(path: Path, order: str) -> None:
    """The calls in a branch are recorded once each, whether a mode decides on them or not."""
    # PyTorch compiles one function of its own for all who call cond: what it has compiled for other
    # tests, and which sizes have varied in them, would decide what it makes of this one.
    torch._dynamo.reset()

    def branch(x: Tensor) -> Tensor:
        return x.sin().cumsum(0)

    blocks: list[Any] = [record(path)]
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
