"""CUDA graphs: substitutes are captured after a first call, and a replay is the eager call."""

import threading

import pytest
import torch

import detmode
from detmode.cuda import device
from detmode.verify.cases import Case
from detmode.verify.claims import same_bits
from tests.shared.gpu_calls import CHOSEN, arguments_of, held_up, substituted, tensors_in

pytestmark = pytest.mark.cuda

WAITS = {
    "aten::bincount": "the size of the result depends on the largest element",
    "aten::histc": "without a range the smallest and the largest element are found first",
}
"""Operators that wait for the GPU, as ATen's do, and so cannot be captured."""

CAPTURED = [case for case in CHOSEN if case.sample.op not in WAITS]


@pytest.mark.parametrize("case", CAPTURED, ids=str)
def test_a_replay_is_the_eager_call(case: Case) -> None:
    """A captured call replayed with other values gives the bits that they give without a graph.

    Three replays in turn: what a launch counts in, or marks, starts anew in each.
    """
    arguments = arguments_of(case)
    substituted(case, arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = substituted(case, arguments)
    for seed in (0, 1, 2):
        fresh = tensors_in(arguments_of(case, seed))
        held = tensors_in(arguments)
        if [each.shape for each in fresh] != [each.shape for each in held]:
            pytest.fail(f"the shapes of {case.sample.name} depend on the seed; choose another")
        for mine, other in zip(held, fresh):
            mine.copy_(other)
        expected = substituted(case, arguments)
        with held_up():
            graph.replay()
        torch.cuda.synchronize()
        assert same_bits(results, expected)


def test_operators_in_one_graph() -> None:
    """A graph of all operators in turn, on one stream, replays each one's bits."""
    calls = [(case, arguments_of(case)) for case in CAPTURED]
    expected = [substituted(case, arguments) for case, arguments in calls]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [substituted(case, arguments) for case, arguments in calls]
    for _ in range(3):
        for results in captured:
            for result in results:
                result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        for (case, _), results, eager in zip(calls, captured, expected):
            assert same_bits(results, eager), str(case)


def test_a_training_step_in_a_graph() -> None:
    """Forward and backward under the mode inside a capture: each replay has the eager gradient."""
    from detmode import DeterministicMode

    image = torch.randn(2, 3, 9, 9, device="cuda", requires_grad=True)
    weight = torch.randn(2, 3, 21, 21, device="cuda")

    def step() -> torch.Tensor:
        with DeterministicMode():
            grown = torch.nn.functional.interpolate(image, size=(21, 21), mode="bilinear")
            (gradient,) = torch.autograd.grad((grown * weight).sum(), image)
        return gradient

    # As PyTorch asks: autograd warms up on a stream of its own.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        weight.normal_()
        expected = step()
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits([captured], [expected])


@pytest.mark.parametrize("case", CAPTURED, ids=str)
def test_a_first_launch_after_warming(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the substitute's kernels a capture needs none that was not loaded by warming."""
    arguments = arguments_of(case)
    expected = substituted(case, arguments)  # loads ATen's kernels, too
    monkeypatch.setattr(device, "_kernels", {})
    detmode.warm(case.sample.op, [expected[0].dtype])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = substituted(case, arguments)
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(results, expected)


@pytest.mark.parametrize("case", CAPTURED[:3], ids=str)
def test_a_first_launch_beside_a_capture(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels load in a thread while another captures in PyTorch's default mode; both are right."""
    arguments = arguments_of(case)
    expected = substituted(case, arguments)
    monkeypatch.setattr(device, "_kernels", {})
    captured = torch.ones(10, device="cuda")
    results = []

    def first_call() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results.extend(substituted(case, arguments))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.add_(1)
        thread = threading.Thread(target=first_call)
        thread.start()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, torch.full_like(captured, 2))
    assert same_bits(results, expected)


@pytest.mark.parametrize("case", CAPTURED[:3], ids=str)
def test_a_first_launch_inside_a_capture(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with a sentence, and nothing is broken: the same is captured after a call."""
    arguments = arguments_of(case)
    expected = substituted(case, arguments)
    monkeypatch.setattr(device, "_kernels", {})
    beside = torch.ones(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="for the first time inside a CUDA graph capture"),
        torch.cuda.graph(graph),
    ):
        # An empty graph would be a warning of its own.
        beside.add_(1)
        substituted(case, arguments)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(beside, torch.full_like(beside, 2))
    assert same_bits(substituted(case, arguments), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = substituted(case, arguments)
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(results, expected)
