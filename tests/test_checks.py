"""The checks that launchers share: what passes, and PyTorch's words for what does not."""

from __future__ import annotations

import pytest
import torch

from detmode.cuda.checks import check_devices, check_implemented, check_scalar_type

FLOAT, LONG = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
META = torch.zeros(1, device="meta")


def test_implemented() -> None:
    """The dtype is one of the kernel's."""
    check_implemented("kernel", FLOAT, (torch.float32,))
    with pytest.raises(NotImplementedError, match='"kernel" not implemented for torch.int64'):
        check_implemented("kernel", LONG, (torch.float32,))


def test_scalar_type() -> None:
    """Each tensor that there is has the dtype."""
    check_scalar_type(torch.float32, FLOAT, None, META)
    with pytest.raises(RuntimeError, match=r"type torch.float32 but found torch.int64"):
        check_scalar_type(torch.float32, FLOAT, None, LONG)


@pytest.mark.parametrize("tensors", [(META, FLOAT), (FLOAT, META), (FLOAT, META, FLOAT)])
def test_devices(tensors: tuple[torch.Tensor, ...]) -> None:
    """All are on one device, wherever the stranger stands."""
    check_devices("op", FLOAT, LONG, FLOAT)
    with pytest.raises(RuntimeError, match=r"op\(\): Expected all tensors .* (cpu|meta) and"):
        check_devices("op", *tensors)
