"""Checks of tensors that the launchers of several families share, with PyTorch's messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def raises_like_aten(launcher: F) -> F:
    """Mark a launcher that raises, before it launches or writes, where PyTorch refuses a call.

    It need not know the words: PyTorch's shape functions are then asked for them. Of another
    launcher's call they are asked first, which takes longer than the rest of a call whose shapes
    are new.
    """
    launcher.raises_like_aten = True  # type: ignore[attr-defined]  # functions have no such field
    return launcher


def named(launcher: F, module: str, name: str, doc: str) -> F:
    """Name a launcher that a factory made; a row's function is found and pickled by its name."""
    launcher.__module__, launcher.__doc__ = module, doc
    launcher.__name__ = launcher.__qualname__ = name
    return launcher


def check_implemented(name: str, dtype: torch.dtype, dtypes: Collection[torch.dtype]) -> None:
    """Raise NotImplementedError unless ATen's CUDA kernel ``name`` takes a dtype.

    Args:
        name: the kernel's name in the message.
        dtype: the dtype to check.
        dtypes: the dtypes that the kernel takes.
    """
    if dtype not in dtypes:
        raise NotImplementedError(f'"{name}" not implemented for {dtype}')


def check_scalar_type(expected: torch.dtype, *dtypes: torch.dtype) -> None:
    """Raise RuntimeError unless all dtypes that are found are the expected one."""
    for dtype in dtypes:
        if dtype != expected:
            raise RuntimeError(f"expected scalar type {expected} but found {dtype}")


def check_factor(value: complex, dtype: torch.dtype) -> None:
    """Raise RuntimeError unless a floating or complex dtype holds a factor, or an infinite one."""
    largest = torch.finfo(dtype).max
    if (value.imag and not dtype.is_complex) or any(
        largest < abs(part) < float("inf") for part in (value.real, value.imag)
    ):
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


def check_devices(name: str, *tensors: Tensor) -> None:
    """Raise RuntimeError unless the tensors of a call of ``name`` are on one device."""
    # Quicker than the devices, of which PyTorch makes objects.
    index, is_cpu = tensors[0].get_device(), tensors[0].is_cpu
    for tensor in tensors[1:]:
        if tensor.get_device() != index or tensor.is_cpu is not is_cpu:
            *devices, last = (tensor.device for tensor in tensors)
            raise RuntimeError(
                f"{name}(): Expected all tensors to be on the same device, but got "
                f"{', '.join(map(str, devices))} and {last}"
            )
