"""The GPU's launch path, with the driver replaced by a record of what it is asked."""

import ctypes
import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import detmode
from detmode import cuda
from detmode.cuda import device
from tests.shared.cuda_sources import FAULTS, KERNELS, WARP

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


# The driver's numbers of a thread's capture modes.
GLOBAL, RELAXED = 0, 2


class Driver:
    """Stands in for CuPy's modules and launches, and for torch's device queries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.loaded: list[tuple[bytes, str]] = []
        self.launched: list[tuple[int, ...]] = []
        self.values: list[tuple[bytes, ...]] = []
        self.devices: list[int] = []
        self.count = 0
        self.static_shared = 0
        self.capturing = False
        self.mode = GLOBAL
        self.captures_beside = 0
        monkeypatch.setenv("DETMODE_CACHE", str(directory))
        monkeypatch.setattr(device, "_kernels", {})
        monkeypatch.setattr(device, "unavailable", lambda: None)
        driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=self.exchange)
        monkeypatch.setattr(device, "_driver", lambda: driver)
        monkeypatch.setattr(cupy, "RawModule", self.module)
        monkeypatch.setattr(cupy.cuda.runtime, "setDevice", self.devices.append)
        monkeypatch.setattr(cupy.cuda.driver, "launchKernel", self.launch)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(
            torch._C, "_cuda_getCurrentRawStream", lambda index: 1234 + index, raising=False
        )

    def exchange(self, reference: Any) -> int:
        mode = reference._obj
        mode.value, self.mode = self.mode, mode.value
        return 0

    def module(self, *, path: str) -> SimpleNamespace:
        if self.captures_beside and self.mode != RELAXED:
            self.captures_beside = 0
            raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

        def get_function(name: str) -> SimpleNamespace:
            self.loaded.append((Path(path).read_bytes(), name))
            return SimpleNamespace(
                kernel=SimpleNamespace(ptr=100 + len(self.loaded)),
                max_dynamic_shared_size_bytes=0,
                shared_size_bytes=self.static_shared,
            )

        return SimpleNamespace(get_function=get_function)

    def launch(self, *arguments: int) -> None:
        *head, parameters, extra = arguments
        assert extra == 0
        pointers = (ctypes.c_void_p * self.count).from_address(parameters)
        self.values.append(tuple(ctypes.string_at(pointer, 8) for pointer in pointers))
        self.launched.append(tuple(head))


GPU = torch.device("cuda", 0)


def launch_forget(shared: int = 0) -> None:
    """One block of the kernel of this name."""
    arguments = FAULTS.signature("forget").bind({"output": torch.zeros(1), "n": 1})
    device.launch_blocks(FAULTS, "forget", (1, 1, 1), (32, 1, 1), arguments, shared, 0)


@pytest.fixture
def driver(monkeypatch, tmp_path) -> Driver:
    return Driver(monkeypatch, tmp_path)


def test_an_entry_is_loaded_once(driver: Driver) -> None:
    """The first launch compiles and loads the entry; each launch goes to torch's stream."""
    x, y = torch.zeros(300), torch.zeros(300)
    driver.count = 4
    for factor in (2.0, 3.0):
        arguments = KERNELS.signature("scale<float>").bind(
            {"n": 300, "factor": factor, "input": x, "output": y}
        )
        device.launch_blocks(KERNELS, "scale<float>", (2, 1, 1), (256, 1, 1), arguments, 0, 0)
    ((code, name),) = driver.loaded
    assert code.startswith(b"\x7fELF")
    assert name.encode() in code
    assert driver.launched == [(101, 2, 1, 1, 256, 1, 1, 0, 1234)] * 2
    assert [struct.unpack("=QQqd", b"".join(raw)) for raw in driver.values] == [
        (x.data_ptr(), y.data_ptr(), 300, 2.0),
        (x.data_ptr(), y.data_ptr(), 300, 3.0),
    ]
    assert set(driver.devices) == {0}


def test_each_parameter_has_its_own_address(driver: Driver) -> None:
    """The driver finds the arguments in the order of the parameters, wherever pointers stand."""
    x, y = torch.zeros(5, dtype=torch.int64), torch.zeros(3)
    arguments = {"input": None, "output": x, "whole": -5, "real": 2.5, "flag": True, "anything": y}
    bound = WARP.signature("kinds").bind(arguments)
    driver.count = 6
    device.launch_blocks(WARP, "kinds", (1, 1, 1), (32, 1, 1), bound, 0, 0)
    assert struct.unpack("=QQqdqQ", b"".join(driver.values[0])) == (
        *(0, x.data_ptr(), -5, 2.5, 1),
        y.data_ptr(),
    )


def test_much_shared_memory_is_asked_for(driver: Driver) -> None:
    """Above 48 KiB of dynamic shared memory the kernel's limit is raised, once for each size."""
    driver.count = 2
    for shared in (1024, 65536, 65536):
        launch_forget(shared)
    (kernel,) = device._kernels.values()
    assert kernel.raw.max_dynamic_shared_size_bytes == 65536
    assert [launched[7] for launched in driver.launched] == [1024, 65536, 65536]


@pytest.mark.parametrize(("static", "raised"), [(1024, 0), (1025, 47 * 1024)])
def test_static_shared_memory_counts(driver: Driver, static: int, raised: int) -> None:
    """Static and dynamic shared memory together have the limit of 48 KiB."""
    driver.count, driver.static_shared = 2, static
    launch_forget(47 * 1024)
    (kernel,) = device._kernels.values()
    assert kernel.raw.max_dynamic_shared_size_bytes == raised


def test_the_limit_of_shared_memory_never_sinks(driver: Driver) -> None:
    """Of two threads that raise a kernel's limit at once, the one that asks for more prevails."""
    driver.count = 2

    class Raised:
        """A kernel of which, while one limit is on its way to the driver, a larger one is set."""

        limit = 0
        other: threading.Thread | None = None

        def __setattr__(self, name: str, value: int) -> None:
            if Raised.other is None:
                Raised.other = threading.Thread(target=launch_forget, args=(98304,))
                Raised.other.start()
                Raised.other.join(timeout=0.2)
            Raised.limit = value

    launch_forget()
    (kernel,) = device._kernels.values()
    kernel.raw = Raised()
    launch_forget(65536)
    Raised.other.join()
    assert Raised.limit == 98304
    assert sorted(launched[7] for launched in driver.launched) == [0, 65536, 98304]


def test_a_first_launch_inside_a_capture_is_refused(driver: Driver) -> None:
    """Nothing is loaded or launched, and the message says what to do; later captures go on."""
    driver.count = 2
    driver.capturing = True
    with pytest.raises(RuntimeError, match=r"forget is launched for the first time inside .* once"):
        launch_forget()
    assert not driver.loaded
    assert not driver.launched
    for driver.capturing in (False, True):
        launch_forget()
    assert len(driver.launched) == 2


def test_a_first_launch_beside_a_capture(driver: Driver) -> None:
    """An entry loads while another thread captures, and that capture goes on.

    The thread's own mode is then as before, also where the entry could not be loaded.
    """
    driver.count = 2
    driver.captures_beside = 1
    launch_forget()
    assert driver.captures_beside == 1
    assert len(driver.launched) == 1
    assert driver.mode == GLOBAL
    with pytest.raises(ValueError, match="absent"):
        device.load(FAULTS, "absent", GPU)
    assert driver.mode == GLOBAL


def test_a_second_gpu_has_kernels_of_its_own(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GPU of a process loads an entry for itself, and is launched on its own stream."""
    driver.count = 2
    current = [0]
    architectures: list[int] = []

    class On:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    def capability(index: int) -> tuple[int, int]:
        architectures.append(index)
        return (9, 0)

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[-1], raising=False)
    monkeypatch.setattr(torch.cuda, "device", On)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    arguments = FAULTS.signature("forget").bind({"output": torch.zeros(1), "n": 1})
    for index in (0, 1, 1, 0):
        device.launch_blocks(FAULTS, "forget", (1, 1, 1), (32, 1, 1), arguments, 0, index)
    functions = [(launched[0], launched[8]) for launched in driver.launched]
    assert functions == [(101, 1234), (102, 1235), (102, 1235), (101, 1234)]
    assert architectures == [0, 1]
    assert current == [0]


@pytest.mark.usefixtures("without_player")
def test_a_warm_kernel_can_be_captured(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels of an operator and a dtype are loaded, also those of sizes that were not met.

    Another process with the same cache compiles none.
    """
    monkeypatch.setattr(cuda, "unavailable", lambda device: None)
    warmed = detmode.warm("aten::nll_loss2d_forward", [torch.bfloat16])
    kernels = tuple(f"nll_loss2d/kernels.cu: nll_loss2d_{k}<bfloat16>" for k in ("finish", "sum"))
    assert (warmed.device, warmed.compiled, warmed.found) == (GPU, kernels, ())
    assert len(driver.loaded) == 2
    driver.capturing = True
    again = detmode.warm("aten::nll_loss2d_forward", [torch.bfloat16])
    assert (again.compiled, again.found, len(driver.loaded)) == ((), kernels, 2)
    with pytest.raises(RuntimeError, match=r"<half> is launched for .* or call detmode\.warm$"):
        detmode.warm("aten::nll_loss2d_forward", [torch.float16])

    driver.capturing = False
    monkeypatch.setattr(device, "_kernels", {})
    monkeypatch.setattr(cupy.cuda.nvrtc, "compileProgram", None)
    other = detmode.warm("aten::nll_loss2d_forward", [torch.bfloat16])
    assert (other.compiled, other.found, len(driver.loaded)) == ((), kernels, 4)


def test_unavailable_is_an_error_at_launch(monkeypatch) -> None:
    """Launching raises RuntimeError with the sentence if launches cannot work."""
    monkeypatch.setattr(device, "unavailable", lambda: "No driver.")
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    with pytest.raises(RuntimeError, match=r"forget cannot be launched\. No driver\."):
        launch_forget()
    with pytest.raises(RuntimeError, match=r"^No kernel can be launched\. No driver\.$"):
        device.most_shared(7)
