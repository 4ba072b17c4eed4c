"""What kinds of tensors there are for those who look on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

_NO_DISPATCH = Tensor.__torch_dispatch__


def is_foreign(cls: type) -> bool:
    """Whether tensors of a class desugar: the operators that they are made of are looked at."""
    return getattr(
        cls, "__torch_dispatch__", None
    ) is not _NO_DISPATCH and not cls.__module__.startswith("torch._subclasses.")


def has_data(tensor: Tensor) -> bool:
    """Whether there are elements to read: not in meta and tracing tensors, nor in a capture."""
    # isinstance is slow, and most are plain.
    plain = type(tensor) is Tensor or not isinstance(tensor, (FakeTensor, FunctionalTensor))
    return plain and not tensor.is_meta and not (tensor.is_cuda and is_capturing())


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing is computed then, and nothing waited for."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def form_of(tensor: Tensor) -> str:
    """How a tensor looks: dtype, shape, strides or layout, device."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return f"{dtype} nested, {tensor.size(0)} of {tensor.dim() - 1} dimensions {tensor.device}"
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"{dtype}{list(tensor.shape)} {layout} {tensor.device}"
    return f"{dtype}{list(tensor.shape)} strides {list(tensor.stride())} {tensor.device}"
