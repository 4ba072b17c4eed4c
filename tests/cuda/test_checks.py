"""The checks that launchers share: what passes, and PyTorch's words for what does not."""

import pytest
import torch

from detmode.cuda.checks import check_devices, check_implemented, check_scalar_type

F32, I64 = torch.float32, torch.int64
FLOAT, META = torch.zeros(1), torch.zeros(1, device="meta")
SAME = r"op\(\): Expected all tensors .* (cpu|meta) and"


@pytest.mark.parametrize(
    ("check", "passes", "fails", "text"),
    [
        (check_implemented, ("op", F32, [F32]), ("op", I64, [F32]), '"op" not'),
        (check_scalar_type, (F32, F32), (F32, F32, I64), "but found"),
        (check_devices, ("op", FLOAT, FLOAT), ("op", META, FLOAT), SAME),
        (check_devices, ("op", META), ("op", FLOAT, META, FLOAT), SAME),
    ],
)
def test_checks(check, passes, fails, text):
    """A check lets pass what goes together, and raises on what does not, wherever it stands."""
    check(*passes)
    with pytest.raises(RuntimeError, match=text):
        check(*fails)
