"""Memory that nobody has written has no digest: undefined to the byte, and passed on."""

import ctypes

import pytest
import torch
from torch import nn

from detmode.runs.trace_file import UNDEFINED
from detmode.runs.unwritten import DEFINED, Memory
from detmode.runs.unwritten import UNDEFINED as NOTHING_DEFINED
from tests.shared.traces import calls, compared, new


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def test_memory_that_nobody_wrote(path, tmp_path):
    """The result of ``empty``, and a view of it, is undefined until it is written."""

    def program(rest, recording):
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


# The warning that some results are not recorded is of no interest here.
@pytest.mark.filterwarnings("ignore:detmode.record.*uninitialized")
def test_computing_with_what_nobody_wrote(tmp_path):
    """The results are undefined, too, until they reach what was defined, or a value of Python's."""

    def program(byte, recording):
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
def test_memory_that_others_fill(numel, tmp_path):
    """NumPy's writes are seen, and only those; what new memory held before does not count."""

    def program(values, recording):
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


def test_memory_that_is_written_in_parts(tmp_path):
    """Undefined bytes beside written ones stay undefined, to the byte."""

    def program(byte, recording):
        with recording:
            x = new(192, byte).view(3, 64)
            x[0].copy_(torch.ones(64))
            x[:, 0].fill_(2.0)
            x[:, 1].zero_()
            x[:, :2].neg()
            x.mul_(2)
            x[:, :2].neg()

    assert compared(tmp_path, program, 1, 2).identical


def test_resized_memory(path, tmp_path):
    """A storage's new bytes are undefined, though no operator resizes it; kept ones are not."""

    def program(byte, recording):
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


@pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="oneDNN has no LSTM in bfloat16 for a CPU without AVX-512",
)
def test_workspace_of_a_recurrent_network(path, tmp_path):
    """Parts of what is left for backward nobody writes: two runs of one program are the same."""
    lstm, x = nn.LSTM(8, 8), torch.randn(5, 3, 8)

    def program(byte, recording):
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


def test_empty_tensor_is_not_unwritten_memory(path, tmp_path):
    """No bytes have a digest, and nobody is told to fill them."""

    def program(scale, recording):
        with recording:
            torch.cat([torch.empty(0), torch.ones(2)]).mul(scale)
            torch.ones(0).mul(scale)

    comparison = compared(tmp_path, program, 2.0, 3.0)
    (call,) = calls(path, "aten::mul.Tensor")[1:]
    assert UNDEFINED not in (*call.inputs.digests, *call.outputs.digests)
    assert comparison.divergence.kind == "arguments"
    assert "uninitialized memory" not in str(comparison)


def test_freed_memory_is_undefined():
    """A storage without bytes, as FSDP leaves it, has nothing to read; nor has an empty tensor."""
    memory, x = Memory(), torch.ones(4)
    assert memory.content(x) == memory.content(torch.ones(0)) == DEFINED
    x.untyped_storage().resize_(0)
    # Not in the assertion: if it fails, pytest would print the tensor.
    content = memory.content(x)
    assert content == NOTHING_DEFINED
