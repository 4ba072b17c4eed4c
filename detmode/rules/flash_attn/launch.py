"""The operators of flash-attn, called with ``deterministic=True``."""

from __future__ import annotations

from typing import Any

import torch


def flash_attn_backward(**arguments: Any) -> Any:
    """``flash_attn::_flash_attn_backward``."""
    return torch.ops.flash_attn._flash_attn_backward(**arguments | _DETERMINISTIC)


def flash_attn_varlen_backward(**arguments: Any) -> Any:
    """``flash_attn::_flash_attn_varlen_backward``."""
    return torch.ops.flash_attn._flash_attn_varlen_backward(**arguments | _DETERMINISTIC)


def flash_attn_3_backward(**arguments: Any) -> Any:
    """``flash_attn_3::_flash_attn_backward``."""
    return torch.ops.flash_attn_3._flash_attn_backward(**arguments | _DETERMINISTIC)


def flash_attn_3_bwd(**arguments: Any) -> Any:
    """``flash_attn_3::bwd``."""
    return torch.ops.flash_attn_3.bwd(**arguments | _DETERMINISTIC)


_DETERMINISTIC = {"deterministic": True}
