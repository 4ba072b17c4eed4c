"""The kinds of tensors that repetitions and recordings distinguish, and their bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from detmode.cuda.elements import plain
from detmode.cuda.memory import COMPONENTS
from detmode.process.dispatch import without_modes

_NO_DISPATCH = Tensor.__torch_dispatch__
UNINITIALIZED = (UninitializedParameter, UninitializedBuffer)
"""Tensors of lazy modules, which have no shape yet."""
_WITHOUT_DATA = (FakeTensor, FunctionalTensor, *UNINITIALIZED)


def is_foreign(cls: type) -> bool:
    """Return whether a class has its own ``__torch_dispatch__``; its inner operators are seen."""
    return getattr(
        cls, "__torch_dispatch__", None
    ) is not _NO_DISPATCH and not cls.__module__.startswith("torch._subclasses.")


def has_data(tensor: Tensor) -> bool:
    """Return whether there are elements to read.

    Meta and tracing tensors and uninitialized parameters have none, nor has a capture.
    """
    # isinstance is slow, and most tensors are plain.
    plain = type(tensor) is Tensor or not isinstance(tensor, _WITHOUT_DATA)
    return plain and not tensor.is_meta and not (tensor.is_cuda and is_capturing())


def is_strided(tensor: Tensor) -> bool:
    """Return whether a tensor has data in the memory of a single storage."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and has_data(tensor)
        and not tensor._is_zerotensor()
    )


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured; then nothing is computed or waited for."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def form_of(tensor: Tensor) -> str:
    """Describe a tensor: dtype, shape, strides or layout, device."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, UNINITIALIZED):
        return f"{dtype} uninitialized {tensor.device}"
    if tensor.is_nested:
        return f"{dtype} nested, {tensor.size(0)} of {tensor.dim() - 1} dimensions {tensor.device}"
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"{dtype}{list(tensor.shape)} {layout} {tensor.device}"
    return f"{dtype}{list(tensor.shape)} strides {list(tensor.stride())} {tensor.device}"


def dtype_and_shape(tensor: Tensor) -> str:
    """``"float32[2, 3]"``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def parts(tensor: Tensor) -> dict[str, Tensor]:
    """Return a tensor's strided components by name; "" for a tensor that is strided itself.

    Those of a quantized one are its integers, and what makes numbers of them.
    """
    if names := COMPONENTS.get(tensor.layout):
        return {name.lstrip("_"): getattr(tensor, name)() for name in names}
    if tensor.is_nested:
        return {"sizes": tensor._nested_tensor_size(), "values": tensor.contiguous().values()}
    if tensor.is_quantized:
        return {"": tensor.int_repr(), **_scales(tensor)}
    return {"": tensor if tensor.layout == torch.strided else tensor.to_dense()}


def _scales(tensor: Tensor) -> dict[str, Tensor]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {
            "scale": torch.tensor(tensor.q_scale(), dtype=torch.float64, device="cpu"),
            "zero_point": torch.tensor(tensor.q_zero_point(), device="cpu"),
        }
    return {
        "scale": tensor.q_per_channel_scales(),
        "zero_point": tensor.q_per_channel_zero_points(),
    }


def bytes_of(storage: torch.UntypedStorage | torch.TypedStorage) -> Tensor:
    """Return the memory of a storage as a tensor: uint8 of shape (n,)."""
    whole = storage.untyped() if isinstance(storage, torch.TypedStorage) else storage
    with without_modes():
        return torch.empty(0, dtype=torch.uint8, device=whole.device).set_(whole)


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of the elements in row-major order: uint8 of shape (n, itemsize)."""
    return plain(tensor).view(torch.uint8).reshape(tensor.numel(), tensor.itemsize)


def to_digest(tensor: Tensor) -> Tensor:
    """Return a tensor with the bytes that are digested of one: itself, if it is strided.

    For any other it is made of the bytes of its components, and empty if it has no data.
    """
    if is_strided(tensor) and not tensor.is_quantized:
        return tensor
    if not has_data(tensor):
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    components = parts(tensor).values()
    return torch.cat([as_bytes(part).reshape(-1).to(tensor.device) for part in components])
