"""The Python code that reads the flag: slow decompositions, and torchvision's alerts.

``F.interpolate``, ``F.pad(mode="replicate")`` and ``F.max_pool3d(return_indices=True)`` look their
decomposition up as an attribute of ``torch._decomp.decompositions`` when they are called. While a
mode is entered those attributes stand for the plain operator, so that its backward meets the rule
table instead of a decomposition whose backward goes through index_put.
``torchvision.ops.roi_align`` does the same with an attribute of its own module.

Since 0.29 torchvision alerts in Python, above the dispatcher, before it calls the operator. In a
mode that lists the operator the alert is skipped, because the mode handles the call right after it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from detmode import cuda
from detmode.mode import listed
from detmode.mode.acting_mode import mode_of_python
from detmode.mode.substitution import validations
from detmode.process.patched import Patched
from detmode.process.undo import Undo
from detmode.table.rule import Substitute
from detmode.table.rule_table import resolve

Plain = tuple[Callable[..., Any] | None, str]
"""A plain operator, and the name of its backward."""


def _nn(name: str) -> Plain:
    return getattr(torch._C._nn, name, None), f"aten::{name}_backward"


_LINEAR = {4: "upsample_bilinear2d", 5: "upsample_trilinear3d"}

_DETOURS: dict[str, Callable[..., Plain]] = {
    "_upsample_linear_vec": lambda input, *_: _nn(_LINEAR.get(input.dim(), "")),
    "upsample_bicubic2d_vec": lambda *_: _nn("upsample_bicubic2d"),
    "_replication_pad": lambda input, padding: _nn(f"replication_pad{len(padding) // 2}d"),
    "max_pool3d_with_indices": lambda *_: _nn("max_pool3d_with_indices"),
}


def _roi_align(*_: Any) -> Plain:
    return torch.ops.torchvision.roi_align, "torchvision::_roi_align_backward"


_VISION = "torchvision.ops.roi_align"


def _vision() -> ModuleType | None:
    """Return torchvision's module, once its operators are there too."""
    loaded = sys.modules.get(_VISION)
    return loaded if loaded and hasattr(torch.ops.torchvision, "roi_align") else None


def replace(undo: Undo) -> None:
    """Install the stand-ins until ``undo`` runs, and as long as another block needs them.

    They ask at each call for the mode that acts: other threads, and modes that leave the detours as
    PyTorch has them, get the decomposition and the alert.
    """
    importlib.import_module("torch._decomp.decompositions")
    for attribute in STAND_INS:
        attribute.until(undo)


def look_again() -> None:
    """Install what is missing: torchvision may be imported, or compile its own, in a block."""
    for attribute in STAND_INS:
        attribute.look_again()


def _stand_in(plain: Callable[..., Plain], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stand_in(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            function, backward = plain(input, *args)
            if function is not None and _prefers_plain_operator(backward, input):
                return function(input, *args)
        result = original(input, *args, **kwargs)
        # torchvision's puts a compiled one in its own place.
        look_again()
        return result

    return stand_in


def _quiet(original: Callable[[str], None]) -> Callable[[str], None]:
    @functools.wraps(original)
    def stand_in(caller: str) -> None:
        if not _meets(caller):
            original(caller)

    return stand_in


def _prefers_plain_operator(backward: str, input: torch.Tensor) -> bool:
    """Return whether the plain operator replaces a detour, as its backward has a substitute."""
    mode = mode_of_python()
    if mode is None or not mode.policy.substitute:
        return False
    if input.is_meta:
        return mode.simulate is not None
    if not input.is_cuda:
        return False
    func = resolve(backward)
    rows = mode.table.get(func) if func is not None else ()
    return any(isinstance(row.rule.action, Substitute) for row in rows) and (
        isinstance(input, FakeTensor) or cuda.unavailable("cuda") is None
    )


def _meets(alert: str) -> bool:
    """Return whether to skip an alert in Python: of an operator that the mode itself handles.

    torchvision alerts before it calls the operator; PyTorch, where a compiler asks for the shape of
    a result, before there is anything to run.
    """
    if validations.here():
        return True
    mode = mode_of_python()
    return mode is not None and any(
        alert in map(row.rule.alert_for, ("functional", "out"))
        # It may have been loaded after the block was entered.
        and not (mode.intercepts_listed and not listed.registered(row.rule.op))
        for row in mode.table
    )


def _loaded(module: str) -> Callable[[], ModuleType | None]:
    return lambda: sys.modules.get(module)


STAND_INS = (
    *(
        Patched(_loaded("torch._decomp.decompositions"), name, functools.partial(_stand_in, plain))
        for name, plain in _DETOURS.items()
    ),
    Patched(_loaded("torch._prims_common"), "alert_not_deterministic", _quiet),
    Patched(_vision, "_roi_align", functools.partial(_stand_in, _roi_align)),
)
"""The attributes that are replaced."""
