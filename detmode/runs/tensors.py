"""What kinds of tensors there are for those who look on."""

from __future__ import annotations

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
    """Whether there are elements to read: not in meta and tracing tensors."""
    # isinstance is slow, and most are plain.
    plain = type(tensor) is Tensor or not isinstance(tensor, (FakeTensor, FunctionalTensor))
    return plain and not tensor.is_meta
