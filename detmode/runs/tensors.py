"""The kinds of tensors that recordings and probes distinguish."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

_NO_DISPATCH = Tensor.__torch_dispatch__


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
