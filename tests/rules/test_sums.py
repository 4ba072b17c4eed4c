"""The substituted sums are not only as good as ATen's: with collisions they are better."""

from collections.abc import Callable

import pytest
import torch

from detmode import DeterministicMode
from tests.shared import needs

Add = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
ADDENDS, WIDTH = 20_000, 3


def sources(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Zeros (4, WIDTH), an index (ADDENDS,) of which half goes to one row, and the addends."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 4, (ADDENDS,), generator=generator)
    index[torch.rand(ADDENDS, generator=generator) < 0.5] = 1
    values = torch.randn(ADDENDS, WIDTH, generator=generator, dtype=dtype)
    return torch.zeros(4, WIDTH, dtype=dtype), index, values


ADD: dict[str, Add] = {
    "rows": lambda out, index, x: out.scatter_add(0, index[:, None].expand_as(x), x),
    "elements": lambda out, index, x: out.scatter_add(0, index[:, None].repeat(1, WIDTH), x),
    "sum": lambda out, index, x: out.scatter_reduce(0, index[:, None].expand_as(x), x, "sum"),
    "mean": lambda out, index, x: out.scatter_reduce(0, index[:, None].expand_as(x), x, "mean"),
    "index_add": lambda out, index, x: out.index_add(0, index, x),
    "index_put": lambda out, index, x: out.index_put((index,), x, accumulate=True),
}
SUMS = [
    pytest.param(add, dtype, id=f"{name}-{dtype}")
    for name, add in ADD.items()
    for dtype in (torch.float32, torch.complex64)
    if not (dtype.is_complex and name in ("sum", "mean"))  # ATen's CPU has none
]


@needs.compiler
@pytest.mark.parametrize(("add", "dtype"), SUMS)
def test_error_is_smaller_than_atens(add: Add, dtype: torch.dtype) -> None:
    """Twenty thousand addends in four rows: the largest error against float64 is below ATen's."""
    out, index, source = sources(dtype)
    wide = torch.promote_types(dtype, torch.float64)
    truth = add(out.to(wide), index, source.to(wide))
    aten = add(out, index, source)
    with DeterministicMode(simulate="cuda") as mode:
        ours = add(out, index, source)
    assert [record.action for record in mode.records] == ["substitute"]
    ours_error = (ours.to(wide) - truth).abs().max().item()
    aten_error = (aten.to(wide) - truth).abs().max().item()
    assert ours_error < aten_error
