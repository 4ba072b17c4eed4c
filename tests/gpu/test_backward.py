"""Backward on autograd's own threads, one for each GPU: the mode is in force there."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from variation import Load

from detmode import DeterministicMode
from detmode.mode import listed
from tests.shared.gpu_calls import DEVICES, poison

FORWARDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "upsample_bilinear2d_backward": lambda x: F.interpolate(x, size=(21, 40), mode="bilinear"),
    "upsample_bicubic2d_backward": lambda x: F.interpolate(x, size=(7, 40), mode="bicubic"),
    "upsample_trilinear3d_backward": lambda x: F.interpolate(
        x[None], size=(9, 20, 20), mode="trilinear"
    ),
    "_adaptive_avg_pool2d_backward": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "adaptive_max_pool2d_backward": lambda x: F.adaptive_max_pool2d(x, (5, 7)),
    "avg_pool3d_backward": lambda x: F.avg_pool3d(x, 3, 1),
    "max_pool3d_with_indices_backward": lambda x: F.max_pool3d(x, 3, 1),
    "replication_pad2d_backward": lambda x: F.pad(x, (2, 3, 1, 4), mode="replicate"),
    "reflection_pad1d_backward": lambda x: F.pad(x[0], (2, 3), mode="reflect"),
    "grid_sampler_2d_backward": lambda x: F.grid_sample(
        x, x[:, :1, :, :2].tanh().movedim(1, -2).expand(-1, -1, 9, -1), align_corners=False
    ),
    "scatter_add": lambda x: x.flatten().gather(0, torch.zeros_like(x, dtype=torch.int64).view(-1)),
    "index_add": lambda x: x.index_select(3, x.new_zeros(50, dtype=torch.int64)),
}


INTERCEPTS = (
    "all",
    pytest.param(
        "listed", marks=pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE)
    ),
)


def gradient(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Of a weighted sum of what the forward gives."""
    x = x.detach().requires_grad_()
    output = forward(x)
    weights = torch.arange(output.numel(), device=x.device, dtype=x.dtype).sin()
    (output.flatten() * weights).sum().backward()
    return x.grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", FORWARDS)
def test_gradients_are_substituted(op: str, device: str) -> None:
    """The backward's operator is in the report, at its forward's line, and keeps its bits."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, 9, 11).to(device)
    load = Load() if device == "cuda" else None
    found = []
    for number in range(10 if device == "cuda" else 3):
        if load is not None and number % 2 == 1:
            poison(0xFF)
            load()
        simulated = {"simulate": "cuda", "schedule_seed": number} if device == "cpu" else {}
        with DeterministicMode(**simulated) as mode:
            found.append(gradient(FORWARDS[op], x))
        rows = [row for row in mode.records if row.overload.partition(".")[0].endswith(op)]
        rows = rows or [row for row in mode.records if op in row.overload]
        assert {row.action for row in rows} == {"substitute"}, mode.report()
        assert all("test_backward.py:" in row.site for row in rows)
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", FORWARDS)
@pytest.mark.skipif(not listed.AVAILABLE, reason=listed.UNAVAILABLE)
def test_listed_operators_alone(op: str, device: str) -> None:
    """Kernels at the backend's key see the rows of a dispatch mode, and give its bits."""
    x = torch.randn(3, 4, 9, 11).to(device)
    found = []
    for intercept in ("all", "listed"):
        simulate = "cuda" if device == "cpu" else None
        with DeterministicMode(simulate=simulate, intercept=intercept) as mode:
            bits = gradient(FORWARDS[op], x)
        varied = {
            (row.overload.replace("_.", "."), row.site, row.count)
            for row in mode.records
            if row.action == "substitute"
        }
        found.append((varied, bits))
    (expected, bits), (rows, own) = found
    assert rows == expected != set()
    assert torch.equal(own, bits)


@pytest.mark.cuda
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_backward_runs_in_another_thread(intercept: str) -> None:
    """The tests above say something of autograd's threads: CUDA's backward is not in this one."""
    seen = []
    x = torch.randn(1, 1, 4, 4, device="cuda", requires_grad=True)
    with DeterministicMode(intercept=intercept) as mode:
        grown = F.interpolate(x, size=(9, 9), mode="bilinear")
        grown.register_hook(lambda gradient: seen.append(threading.get_ident()))
        grown.sum().backward()
    assert seen
    assert threading.get_ident() not in seen
    assert "aten::upsample_bilinear2d_backward.default" in {row.overload for row in mode.records}


@pytest.mark.cuda
def test_backward_of_two_threads() -> None:
    """Two OS threads under modes of their own: each report has its own rows, the bits are one's."""
    x = torch.randn(2, 3, 9, 9, device="cuda")
    torch.cuda.synchronize()
    ops = ("upsample_bilinear2d_backward", "replication_pad2d_backward")

    def work(op: str) -> tuple[torch.Tensor, set[str]]:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                with DeterministicMode() as mode:
                    result = gradient(FORWARDS[op], x)
            torch.cuda.current_stream().synchronize()
        return result, {row.overload for row in mode.records}

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, ops))
    for op, (theirs, overloads) in zip(ops, found):
        assert f"aten::{op}.default" in overloads
        assert not any(other in name for other in ops if other != op for name in overloads)
        with DeterministicMode():
            assert torch.equal(theirs, gradient(FORWARDS[op], x))
