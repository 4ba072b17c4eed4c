"""The places where PyTorch's Python looks at the flag and takes a slow decomposition.

``F.interpolate``, ``F.pad(mode="replicate")`` and ``F.max_pool3d(return_indices=True)`` look their
decomposition up as an attribute of ``torch._decomp.decompositions`` when they are called. While a
mode is entered those attributes stand for the plain operator, so that its backward meets the rule
table instead of a decomposition whose backward goes through index_put.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import torch

Wants = Callable[[str, torch.Tensor], bool]
"""Given the backward operator's name and the input: whether the plain operator is to run."""


def _interpolate(input: torch.Tensor, *args: Any) -> Any:
    names = {4: "upsample_bilinear2d", 5: "upsample_trilinear3d"}
    return getattr(torch._C._nn, names[input.dim()])(input, *args)


def _interpolate_backward(input: torch.Tensor, *args: Any) -> str:
    names = {4: "aten::upsample_bilinear2d_backward", 5: "aten::upsample_trilinear3d_backward"}
    return names.get(input.dim(), "")


def _bicubic(input: torch.Tensor, *args: Any) -> Any:
    return torch._C._nn.upsample_bicubic2d(input, *args)


def _bicubic_backward(*args: Any) -> str:
    return "aten::upsample_bicubic2d_backward"


def _replicate(input: torch.Tensor, padding: Any) -> Any:
    return torch._C._nn.pad(input, padding, "replicate")


def _replicate_backward(input: torch.Tensor, padding: Any) -> str:
    return f"aten::replication_pad{len(padding) // 2}d_backward"


def _max_pool3d(input: torch.Tensor, *args: Any) -> Any:
    return torch._C._nn.max_pool3d_with_indices(input, *args)


def _max_pool3d_backward(*args: Any) -> str:
    return "aten::max_pool3d_with_indices_backward"


_DETOURS: dict[str, tuple[Callable[..., Any], Callable[..., str]]] = {
    "_upsample_linear_vec": (_interpolate, _interpolate_backward),
    "upsample_bicubic2d_vec": (_bicubic, _bicubic_backward),
    "_replication_pad": (_replicate, _replicate_backward),
    "max_pool3d_with_indices": (_max_pool3d, _max_pool3d_backward),
}


class Detours:
    """The stand-ins, installed while at least one instance is open.

    Args:
        wants: asked at each call, so that other threads, and modes that leave the detours as
            PyTorch has them, get the decomposition.
    """

    _lock = threading.Lock()
    _users = 0
    _originals: ClassVar[dict[str, Any]] = {}

    def __init__(self, wants: Wants) -> None:
        import torch._decomp.decompositions as decompositions

        with Detours._lock:
            if Detours._users == 0:
                for name, (plain, backward) in _DETOURS.items():
                    original = getattr(decompositions, name, None)
                    if original is not None:
                        Detours._originals[name] = original
                        stand_in = _stand_in(original, plain, backward, wants)
                        setattr(decompositions, name, stand_in)
            Detours._users += 1

    def close(self) -> None:
        """Put the decompositions back when nobody is left who needs the stand-ins."""
        import torch._decomp.decompositions as decompositions

        with Detours._lock:
            Detours._users -= 1
            if Detours._users == 0:
                for name, original in Detours._originals.items():
                    setattr(decompositions, name, original)
                Detours._originals.clear()


def _stand_in(
    original: Callable[..., Any],
    plain: Callable[..., Any],
    backward: Callable[..., str],
    wants: Wants,
) -> Callable[..., Any]:
    @functools.wraps(original)
    def stand_in(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and wants(backward(input, *args), input):
            return plain(input, *args)
        return original(input, *args, **kwargs)

    return stand_in
