"""Launching: sizes, devices, dtypes, and what a machine without a GPU says."""

import sys

import pytest
import torch

from detmode.cuda import ctype, device, empty_like, index_ctype, launch, launch_blocks, unavailable
from detmode.cuda.launch import BLOCK
from tests.shared.cuda_sources import FLOATING, KERNELS, WARP, accumulate, pattern

X = torch.zeros(1)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.cuda))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("n", [0, 1, 63, 256, 1000])
def test_launch_covers_all_elements(dtype: torch.dtype, n: int, device: str) -> None:
    """A launch of n threads writes n elements, none where n is 0."""
    values = torch.randn(n).to(device, dtype)
    output = empty_like(values)
    launch(KERNELS, f"scale<{ctype(dtype)}>", n, input=values, output=output, n=n, factor=2.0)
    assert torch.equal(output, values * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_grid_stride_loop_covers_a_capped_grid(device: str) -> None:
    """Fewer threads than elements still write them all."""
    values = torch.randn(10 * BLOCK, device=device)
    output = empty_like(values)
    launch(KERNELS, "scale<float>", 1, input=values, output=output, n=values.numel(), factor=2.0)
    assert torch.equal(output, values * 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kib", [1, 46, 47, 48, 60])
def test_shared_memory(kib: int, device: str) -> None:
    """A block has what it asks for beside its static shared memory, more than 48 KiB too."""
    n = kib * 256
    values = torch.arange(n, dtype=torch.float32, device=device)
    output = torch.zeros_like(values)
    for _ in range(2):
        launch_blocks(
            KERNELS, "reverse_in_shared", 1, 256, input=values, output=output, n=n, shared=4 * n
        )
        assert torch.equal(output, values.flip(0))
        output.zero_()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_denormals_are_kept(dtype: torch.dtype, device: str) -> None:
    """Neither what is read nor what is written is flushed to zero."""
    limit = torch.finfo(dtype)
    smallest = limit.smallest_normal * limit.eps
    values = torch.arange(1, 100).to(torch.float64).mul(2 * smallest).to(dtype)
    assert values.double().max() < limit.smallest_normal or dtype == torch.bfloat16
    output = torch.zeros_like(values, device=device)
    launch(
        KERNELS, f"scale<{ctype(dtype)}>", 99,
        input=values.to(device), output=output, n=99, factor=0.5,
    )  # fmt: skip
    assert torch.equal(output.cpu().double(), torch.arange(1, 100).double() * smallest)


def test_wrong_sizes() -> None:
    """Negative thread counts and impossible blocks and grids are ValueErrors that say the limit."""
    arguments = {"input": X, "output": X, "n": 1, "factor": 1.0}
    with pytest.raises(ValueError, match="must not be negative, but got -1"):
        launch(KERNELS, "scale<float>", -1, **arguments)
    for grid, block, message in (
        (1, (32, 33), "1 to 1024 threads"),
        (1, (1, 1, 65), "at most 64 along z"),
        ((1, 1, 1, 1), 32, "1 to 3 sizes"),
        ((1, 65536), 32, "at most 65535"),
        ((1, 1, 65536), 32, "at most 65535"),
        ((1, -1, 1), 32, "grid must not be negative"),
        (-1, 32, "grid must not be negative"),
        (2**31, 32, r"below 2\*\*31 along x"),
    ):
        with pytest.raises(ValueError, match=message):
            launch_blocks(KERNELS, "scale<float>", grid, block, **arguments)
    launch_blocks(KERNELS, "scale<float>", (2**31 - 1, 65535, 0), 32, **arguments)


def test_unknown_entry() -> None:
    """An entry that the source does not list is named, for zero threads too."""
    for threads in (0, 1):
        with pytest.raises(ValueError, match="no entry 'scale<int64_t>'"):
            launch(KERNELS, "scale<int64_t>", threads, input=X, output=X, n=1, factor=1.0)


class OnAnotherGpu(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.get_device:
            return 1
        return super().__torch_function__(func, types, args, kwargs)


def test_devices() -> None:
    """Tensors of two devices, no tensor at all, and meta tensors are refused."""
    meta = X.to("meta")
    for input, output, error, message in (
        (X, X.as_subclass(OnAnotherGpu), RuntimeError, "on the same device, but got cpu and "),
        (X, meta, ValueError, "but got meta tensors"),
        (None, None, ValueError, "needs at least one tensor"),
        (meta, meta, ValueError, "but got meta tensors"),
    ):
        with pytest.raises(error, match=message):
            launch(KERNELS, "scale<float>", 1, input=input, output=output, n=1, factor=1.0)


def test_index_ctype() -> None:
    """32 bits up to 2**29, which added three times fits; 64 bits where one count is above it."""
    assert index_ctype(1, 2**29) == "int32_t"
    assert index_ctype(2**29 + 1, 1) == "int64_t"


def test_ctype() -> None:
    """Every supported dtype has a name; complex32 has none."""
    assert [ctype(d) for d in (torch.float16, torch.complex64, torch.int8, torch.bool)] == [
        "half",
        "complex<float>",
        "int8_t",
        "bool",
    ]
    with pytest.raises(TypeError, match=r"do not support torch\.complex32"):
        ctype(torch.complex32)


def test_unavailable() -> None:
    """Answers for every device type, where launches do not work with one sentence; never raises."""
    assert unavailable("cpu") is None
    reason = unavailable("cuda")
    assert reason is None or (reason.endswith(".") and "\n" not in reason)
    assert unavailable("mps") == "Launches run on cuda and cpu devices, not on mps."


@pytest.mark.parametrize(
    ("version", "expected"), [("12.6", "cuda12"), ("13.0", "cuda13"), (None, "cuda13")]
)
def test_extra_follows_torch(monkeypatch, version: str | None, expected: str) -> None:
    """The extra that a remedy names has the major version of PyTorch's CUDA."""
    monkeypatch.setattr(torch.version, "cuda", version)
    assert device.extra() == expected


def test_remedy_without_cupy(monkeypatch) -> None:
    """With a GPU but without CuPy the sentence names the extra to install."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    reason = device.unavailable()
    assert "pip install 'detmode[cuda12]'" in reason


@pytest.mark.cuda
@pytest.mark.skipif(unavailable("cuda") is not None, reason=str(unavailable("cuda")))
class TestOnGpu:
    @pytest.mark.parametrize("dtype", FLOATING, ids=str)
    def test_same_bits_as_the_host(self, dtype: torch.dtype) -> None:
        """The accumulator's sums on the GPU are the host's, bit for bit, denormals included."""
        values = torch.randn(10000, dtype=torch.float64) * torch.exp(torch.randn(10000) * 30)
        values = values.to(dtype)
        index = torch.randint(0, 50, (10000,))
        expected = accumulate(torch.zeros(50, dtype=dtype), index, values, 14)
        for _ in range(10):
            result = accumulate(
                torch.zeros(50, dtype=dtype, device="cuda"), index.cuda(), values.cuda(), 14
            )
            assert pattern(result) == pattern(expected)

    def test_warp_operations_as_on_the_host(self) -> None:
        """The host runner's warp and block operations give what the GPU gives."""
        for entry, block, columns in (("warp_operations", 64, 10), ("block_operations", 96, 4)):
            expected = torch.zeros(2 * block, columns, dtype=torch.int64)
            result = expected.cuda()
            launch_blocks(WARP, entry, 2, block, output=expected)
            launch_blocks(WARP, entry, 2, block, output=result)
            assert torch.equal(result.cpu(), expected)
