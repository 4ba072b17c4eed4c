"""Substitutes keep to torch's current stream, and to memory that is theirs until they have run."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._pytree import tree_map_only

from detmode.cuda import device, launch
from detmode.verify.cases import Case, cases
from detmode.verify.claims import same_bits
from tests.shared.cuda_sources import KERNELS
from tests.shared.gpu_calls import CHOSEN, arguments_of, held_up, poison, substituted, tensors_in

pytestmark = pytest.mark.cuda

EVERY_OPERATOR = pytest.mark.parametrize("case", CHOSEN, ids=str)


@EVERY_OPERATOR
def test_a_stream_is_kept_to(case: Case) -> None:
    """On another stream a substitute waits for what makes its inputs there, and is waited for.

    The inputs arrive late, and the result is overwritten at once: a launch on any other stream
    would read zeros, or what was overwritten would be read.
    """
    arguments = arguments_of(case)
    expected = substituted(case, arguments)
    late = tree_map_only(torch.Tensor, torch.zeros_like, arguments)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), held_up():
        for mine, arriving in zip(tensors_in(late), tensors_in(arguments)):
            mine.copy_(arriving)
        results = substituted(case, late)
        kept = [result.clone() for result in results]
        for result in results:
            result.zero_()
    stream.synchronize()
    assert same_bits(kept, expected)


@EVERY_OPERATOR
def test_memory_is_given_back_in_order(case: Case) -> None:
    """Inputs and scratch that are free when the call returns keep their values until it has run."""
    expected = substituted(case, arguments_of(case))
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            arguments = arguments_of(case)
            with held_up():
                results = substituted(case, arguments)
                del arguments
                poison(0xFF)
        stream.synchronize()
        assert same_bits(results, expected)


@EVERY_OPERATOR
def test_memory_of_another_stream(case: Case) -> None:
    """Inputs of one stream that are recorded on another, as PyTorch asks, may be freed at once."""
    arguments = arguments_of(case)
    expected = substituted(case, arguments)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), held_up():
        results = substituted(case, arguments)
    for tensor in tensors_in(arguments):
        tensor.record_stream(stream)
    del arguments
    # On the first stream, to which the freed memory belongs.
    poison(0xFF)
    stream.synchronize()
    assert same_bits(results, expected)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_what_memory_held_does_not_matter(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results have the same bits whatever the allocator's memory holds: nothing is forgotten."""
    # The flag would have every torch.empty filled.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    found = []
    for byte in (0x00, 0xFF, 0x5A):
        arguments = arguments_of(case)
        poison(byte)
        found.append([result.clone() for result in substituted(case, arguments)])
    assert same_bits(found[1], found[0])
    assert same_bits(found[2], found[0])


def test_threads_and_streams_load_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that eight OS threads launch first, each on its own stream, is right in all."""
    monkeypatch.setattr(device, "_kernels", {})
    values = [torch.randn(100_000, device="cuda") for _ in range(8)]
    outputs = [torch.zeros_like(each) for each in values]
    torch.cuda.synchronize()
    together = threading.Barrier(8)

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        together.wait()
        with torch.cuda.stream(stream):
            for _ in range(50):
                n, factor = values[number].numel(), float(number)
                launch(
                    KERNELS, "scale<float>", n,
                    input=values[number], output=outputs[number], n=n, factor=factor,
                )  # fmt: skip
        stream.synchronize()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for number in range(8):
        assert torch.equal(outputs[number], values[number] * number)
    assert len(device._kernels) == 1


@EVERY_OPERATOR
def test_a_thread_that_is_new_to_cuda(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are loaded in another OS thread give the same bits there and here."""
    arguments = arguments_of(case)
    expected = substituted(case, arguments)
    torch.cuda.synchronize()
    monkeypatch.setattr(device, "_kernels", {})

    def work() -> tuple[torch.Tensor, ...]:
        results = substituted(case, arguments)
        torch.cuda.synchronize()
        return results

    with ThreadPoolExecutor(1) as pool:
        assert same_bits(pool.submit(work).result(), expected)
    assert same_bits(substituted(case, arguments), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@EVERY_OPERATOR
def test_the_second_gpu(case: Case) -> None:
    """Tensors of a GPU that is not the current one run there, with the same bits on a like one."""
    arguments = case.sample.arguments(case.dtype, "cuda:1")
    assert torch.cuda.current_device() == 0
    results = substituted(case, arguments)
    assert {result.device.index for result in results} == {1}
    assert torch.cuda.current_device() == 0
    if torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1):
        here = substituted(case, arguments_of(case))
        assert same_bits([each.cpu() for each in results], [each.cpu() for each in here])
