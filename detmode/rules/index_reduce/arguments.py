"""Arguments for the samples of products."""

from __future__ import annotations

from typing import Any

import torch


def factors(arguments: dict[str, Any], name: str = "source") -> dict[str, Any]:
    """The same with factors of which many can be multiplied: near 1, or odd integers."""
    values = arguments[name]
    if values.dtype is torch.bool:
        return arguments
    if values.is_floating_point():
        near = torch.exp2(torch.tanh(values.double()) / 4) * values.double().sign()
        return {**arguments, name: near.to(values.dtype)}
    return {**arguments, name: 2 * values + 1}
