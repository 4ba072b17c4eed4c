"""The checks that launchers share: what passes, and PyTorch's words for what does not."""

import pytest
import torch

from detmode.cuda.checks import check_devices, check_implemented, check_scalar_type

FLOAT, LONG = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
META = torch.zeros(1, device="meta")
SAME = r"op\(\): Expected all tensors .* (cpu|meta) and"


@pytest.mark.parametrize(
    ("check", "passes", "fails", "text"),
    [
        (check_implemented, ("op", FLOAT, [FLOAT.dtype]), ("op", LONG, [FLOAT.dtype]), '"op" not'),
        (check_scalar_type, (FLOAT.dtype, FLOAT, None), (FLOAT.dtype, None, LONG), "but found"),
        (check_devices, ("op", FLOAT, LONG), ("op", META, FLOAT), SAME),
        (check_devices, ("op", META), ("op", FLOAT, META, FLOAT), SAME),
    ],
)
def test_checks(check, passes, fails, text):
    """A check lets pass what goes together, and raises on what does not, wherever it stands."""
    check(*passes)
    with pytest.raises(RuntimeError, match=text):
        check(*fails)
