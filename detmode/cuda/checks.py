"""What the launchers of several families ask of their tensors, in PyTorch's words."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor


def check_implemented(name: str, tensor: Tensor, dtypes: Collection[torch.dtype]) -> None:
    """That ATen's CUDA kernel ``name`` takes the dtype of ``tensor``.

    Raises:
        NotImplementedError: it does not.
    """
    if tensor.dtype not in dtypes:
        raise NotImplementedError(f'"{name}" not implemented for {tensor.dtype}')


def check_scalar_type(dtype: torch.dtype, *tensors: Tensor | None) -> None:
    """That the tensors that there are have ``dtype``.

    Raises:
        RuntimeError: one has another.
    """
    for tensor in tensors:
        if tensor is not None and tensor.dtype != dtype:
            raise RuntimeError(f"expected scalar type {dtype} but found {tensor.dtype}")


def check_devices(name: str, *tensors: Tensor) -> None:
    """That the tensors of a call of ``name`` are on one device.

    Raises:
        RuntimeError: they are not.
    """
    *devices, last = (tensor.device for tensor in tensors)
    if any(device != last for device in devices):
        raise RuntimeError(
            f"{name}(): Expected all tensors to be on the same device, but got "
            f"{', '.join(map(str, devices))} and {last}"
        )
