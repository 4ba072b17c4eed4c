"""The kinds of tensors that repetitions and recordings distinguish, and their bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from detmode.cuda.elements import plain

_NO_DISPATCH = Tensor.__torch_dispatch__

SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""The methods that give the strided tensors a sparse one is made of, by its layout."""


def is_foreign(cls: type) -> bool:
    """Return whether a class has its own ``__torch_dispatch__``; its inner operators are seen."""
    return getattr(
        cls, "__torch_dispatch__", None
    ) is not _NO_DISPATCH and not cls.__module__.startswith("torch._subclasses.")


def has_data(tensor: Tensor) -> bool:
    """Return whether there are elements to read: not in meta and tracing tensors or a capture."""
    # isinstance is slow, and most tensors are plain.
    plain = type(tensor) is Tensor or not isinstance(tensor, (FakeTensor, FunctionalTensor))
    return plain and not tensor.is_meta and not (tensor.is_cuda and is_capturing())


def is_strided(tensor: Tensor) -> bool:
    """Return whether a tensor has data in a single storage."""
    return tensor.layout is torch.strided and not tensor.is_nested and has_data(tensor)


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured; then nothing is computed or waited for."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def form_of(tensor: Tensor) -> str:
    """Describe a tensor: dtype, shape, strides or layout, device."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return f"{dtype} nested, {tensor.size(0)} of {tensor.dim() - 1} dimensions {tensor.device}"
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"{dtype}{list(tensor.shape)} {layout} {tensor.device}"
    return f"{dtype}{list(tensor.shape)} strides {list(tensor.stride())} {tensor.device}"


def parts(tensor: Tensor) -> dict[str, Tensor]:
    """Return a tensor's strided components by name; "" for a tensor that is strided itself."""
    if tensor.layout in SPARSE_PARTS:
        return {name.lstrip("_"): getattr(tensor, name)() for name in SPARSE_PARTS[tensor.layout]}
    if tensor.is_nested:
        return {"sizes": tensor._nested_tensor_size(), "values": tensor.contiguous().values()}
    if tensor.is_quantized:
        return {"": tensor.int_repr()}
    return {"": tensor if tensor.layout == torch.strided else tensor.to_dense()}


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of the elements in row-major order: uint8 of shape (n, itemsize)."""
    return plain(tensor).view(torch.uint8).reshape(tensor.numel(), tensor.itemsize)


def to_digest(tensor: Tensor) -> Tensor:
    """Return a tensor with the bytes that are digested of one: itself, if it is strided.

    For any other it is made of the bytes of its components, and empty if it has no data.
    """
    if is_strided(tensor):
        return tensor
    if not has_data(tensor):
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.cat([as_bytes(part).reshape(-1) for part in parts(tensor).values()])
