"""Tensors of more than 2^31 elements: positions are 64 bits wide everywhere.

Each call runs small on the host runner and large on a GPU, with values whose result is known
exactly: small whole numbers, and others near the end, beyond position 2^31.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.shared.gpu_calls import DEVICES, by_substitutes

fcntl = pytest.importorskip("fcntl", reason="processes wait for one another by Unix's locks")

GIB = 1 << 30


@pytest.fixture(params=DEVICES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """The device, and a power of two that the elements of a large tensor exceed."""
    if request.param == "cpu":
        yield "cpu", 1 << 14
        return
    # Of the processes that share the GPU one at a time has so much of its memory.
    with (tmp_path_factory.getbasetemp().parent / "large.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        if free < 24 * GIB:
            pytest.skip(f"needs 24 GiB of a GPU's memory, {free / GIB:.0f} are free")
        yield "cuda", 1 << 31
        torch.cuda.empty_cache()


def substituted(device: str, run: Callable[[], Any]) -> Any:
    """The result of ``run`` by a substitute."""
    # Filling what is written anyhow would double the time and the memory's traffic.
    return by_substitutes(run, device, fill_uninitialized_memory=False)


def all_equal(tensor: torch.Tensor, value: float) -> bool:
    """Compare all elements with the value, in parts whose positions are 32 bits wide."""
    return all(bool((part == value).all()) for part in tensor.reshape(-1).split(1 << 28))


def test_cumsum(place: tuple[str, int]) -> None:
    """A scan of one row: a step before position 2^31 and one behind it."""
    device, size = place
    x = torch.zeros(size + 5000, dtype=torch.half, device=device)
    x[3], x[size - 7], x[size + 9] = 1, 2, 4
    y = substituted(device, lambda: x.cumsum(0))
    for begin, end, value in ((0, 3, 0), (3, size - 7, 1), (size - 7, size + 9, 3)):
        assert all_equal(y[begin:end], value)
    assert all_equal(y[size + 9 :], 7)


def test_index_add_of_wide_rows(place: tuple[str, int]) -> None:
    """Five rows that together exceed the size, added to three, of which one meets none."""
    device, size = place
    columns = size // 5 + 77
    source = torch.ones(5, columns, dtype=torch.half, device=device)
    source[4, -1] = 8
    x = torch.ones(3, columns, dtype=torch.half, device=device)
    index = torch.tensor([2, 0, 2, 2, 2], device=device)
    y = substituted(device, lambda: x.index_add(0, index, source))
    assert all_equal(y[0], 2)
    assert all_equal(y[1], 1)
    assert all_equal(y[2, :-1], 5)
    assert y[2, -1].item() == 12


def test_index_add_to_many_rows(place: tuple[str, int]) -> None:
    """Destinations beyond the size, of which three rows name the first and twice the last."""
    device, size = place
    x = torch.zeros(size // 4096 + 1, 4096, dtype=torch.half, device=device)
    index = torch.tensor([0, len(x) - 1, len(x) - 1], device=device)
    source = torch.ones(3, 4096, dtype=torch.half, device=device)
    y = substituted(device, lambda: x.index_add(0, index, source))
    assert all_equal(y[0], 1)
    assert all_equal(y[1:-1], 0)
    assert all_equal(y[-1], 2)


def test_median_of_many_rows(place: tuple[str, int]) -> None:
    """Rows of 32 elements in order; in the last row they are others."""
    device, size = place
    x = torch.arange(32, dtype=torch.int8, device=device).repeat(size // 32 + 1, 1)
    x[-1] = 7
    x[-1, 20] = 9
    values, indices = substituted(device, lambda: x.median(1))
    assert all_equal(values[:-1], 15)
    assert all_equal(indices[:-1], 15)
    assert (values[-1].item(), indices[-1].item()) == (7, 0)


@pytest.mark.parametrize("channels_last", [False, True])
def test_upsample_backward(place: tuple[str, int], channels_last: bool) -> None:
    """Channels whose gradients together exceed the size: each gives what one alone gives."""
    device, size = place
    channels = size // 1024 + 1
    one = torch.arange(1024, device=device).remainder(5).half().view(1, 1, 32, 32)
    grad = one.repeat(1, channels, 1, 1)
    grad[:, -1] *= 2
    if channels_last:
        grad = grad.to(memory_format=torch.channels_last)

    def backward(gradient: torch.Tensor) -> torch.Tensor:
        shape = [1, gradient.shape[1], 16, 16]
        return torch.ops.aten.upsample_bilinear2d_backward(gradient, [32, 32], shape, False)

    y = substituted(device, lambda: backward(grad))
    alone = substituted(device, lambda: backward(one))
    assert alone.any()
    y[:, -1] /= 2
    assert all_equal(y.sub_(alone), 0)


@pytest.mark.parametrize("share", [1, 4])
def test_pad_backward(place: tuple[str, int], share: int) -> None:
    """Eight planes a thread; a quarter of the size is the most that is counted in 32 bits."""
    device, size = place
    out = size // share // 8
    gradient = torch.ones(8, out, dtype=torch.half, device=device)
    gradient[5, 40], gradient[7, out - 40] = 2, 3
    x = torch.empty(8, out - 8, dtype=torch.half, device=device)
    backward = torch.ops.aten.replication_pad1d_backward
    result = substituted(device, lambda: backward(gradient, x, [3, 5]))
    # The ends have the copies before and behind them as well.
    assert bool((result[:, 0] == 4).all() and (result[:, -1] == 6).all())
    assert (result[5, 37].item(), result[7, out - 43].item()) == (2, 3)
    result[:, 0] = result[:, -1] = result[5, 37] = result[7, out - 43] = 1
    assert all_equal(result, 1)


def test_histogram(place: tuple[str, int]) -> None:
    """More elements than a float counts one by one: the counts are exact."""
    device, size = place
    x = torch.zeros(size + 256, device=device)
    x[-512:] = 1
    counts = substituted(device, lambda: torch.histc(x, bins=2, min=-1, max=1))
    # In bins [-1, 0) and [0, 1]; one in front makes the first.
    assert counts.tolist() == [0, size + 256]
    x[0] = -1
    counts = substituted(device, lambda: torch.histc(x, bins=4, min=-1, max=1))
    assert counts.tolist() == [1, 0, float(torch.tensor(size - 257.0)), 512]
