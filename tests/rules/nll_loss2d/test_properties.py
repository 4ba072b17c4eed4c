"""The negative log likelihood over images, on the host runner and through the user's functions."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.rules.nll_loss2d import launch
from detmode.rules.nll_loss2d.launch import nll_loss2d_forward
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.strategies import FLOATS, LAYOUTS, SEEDS, in_schedules

pytestmark = needs.compiler

MEAN, SUM = 1, 2
sizes = st.one_of(st.integers(0, 6), st.integers(1, 9), st.sampled_from([1, 33, 70]))


def exact(self: Tensor, target: Tensor, weight: Tensor, mean: bool, ignored: int) -> list[float]:
    """Output and total weight, with sums that `math.fsum` rounds once."""
    n, h, w = torch.where(target != ignored)
    chosen = target[n, h, w]
    weights = weight.double()[chosen].tolist()
    losses = [-x * y for x, y in zip(self[n, chosen, h, w].double().tolist(), weights)]
    loss, total = math.fsum(losses), math.fsum(weights)
    if not mean:
        return [loss, total]
    if total == 0:
        return [math.nan if loss == 0 else math.copysign(math.inf, loss), total]
    return [loss / total, total]


@given(data=st.data(), dtype=FLOATS, reduction=st.sampled_from([MEAN, SUM]))
def test_forward(data: st.DataObject, dtype: torch.dtype, reduction: int) -> None:
    """The exact sums rounded once, or divided; the bits of any schedule; scalars of the dtype."""
    shape = [data.draw(st.integers(0, 3)), data.draw(st.integers(1, 7))]
    shape += [data.draw(sizes), data.draw(sizes)]
    make = Maker(dtype, seed=data.draw(SEEDS))
    self = data.draw(LAYOUTS)(make.normal(*shape))
    target = make.integers(0, shape[1], shape[0], *shape[2:])
    ignored = data.draw(st.sampled_from([-100, 0, shape[1] - 1, 2**40]))
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    target[torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < share] = ignored
    target = data.draw(LAYOUTS)(target)
    weight = data.draw(st.sampled_from([None, make.normal(shape[1]).abs(), torch.zeros(shape[1])]))
    if weight is not None:
        weight = weight.to(dtype)
    arguments = (self, target, weight, reduction, ignored)
    output, total = in_schedules(lambda: nll_loss2d_forward(*arguments), data.draw(SEEDS))
    assert (output.dtype, output.shape, total.dtype, total.shape) == (dtype, (), dtype, ())
    plain = torch.ones(shape[1]) if weight is None else weight
    means = reduction == MEAN
    expected = torch.tensor(exact(self, target, plain, means, ignored), dtype=torch.float64)
    # Products of doubles are rounded, and so are both sums of a mean.
    roundings = 2 if dtype is torch.float64 else 1
    magnitude = exact(-self.abs(), target, plain, means, ignored)[0]
    bound = torch.finfo(dtype).eps * expected.abs() + 1e-300
    bound[0] += roundings * torch.finfo(torch.float64).eps * (abs(magnitude) if magnitude else 0)
    got = torch.stack([output, total]).double()
    assert torch.equal(got.isnan(), expected.isnan())
    overflow = expected.abs() > torch.finfo(dtype).max
    wrong = (got - expected).abs() > bound + 2 * torch.finfo(dtype).smallest_normal
    assert not (wrong & expected.isfinite() & ~overflow).any(), (got, expected)


@pytest.mark.parametrize(
    ("n", "limits"), [(1, {}), (300, {}), (3000, {"MAX_BLOCKS": 2}), (30_000, {"PER_THREAD": 1})]
)
def test_what_is_rounded_away_is_kept(
    n: int, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of float64 are rounded once: of a thread's turns, of a block, and of blocks by turns."""
    for name, value in limits.items():
        monkeypatch.setattr(launch, name, value)
    make = Maker(torch.float64, seed=n)
    large = make.normal(n) * 2.0**40
    both = torch.cat([large, -large, make.normal(n)])
    order = make.normal(3 * n).argsort()
    scores, target = both[order].view(1, 1, 3, n), torch.zeros(1, 3, n, dtype=torch.int64)
    output, total = nll_loss2d_forward(scores, target, None, SUM, -100)
    assert output.item() == pytest.approx(math.fsum((-both).tolist()), rel=1e-13)
    assert total.item() == 3 * n
    # Each of these weights is lost beside the first one.
    target[0] = 1
    target[0, 1, n // 2] = 0
    weight = torch.tensor([1.0, 2.0**-54], dtype=torch.float64)
    _, total = nll_loss2d_forward(scores.expand(1, 2, 3, n), target, weight, SUM, -100)
    assert total.item() == math.fsum([1.0] + [2.0**-54] * (3 * n - 1))


@pytest.mark.parametrize("dims", [3, 4, 5, 6])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(dims: int, reduction: str, smoothing: float) -> None:
    """Loss and gradients of `F.cross_entropy` over maps of any dimension are ATen's."""
    make, image = Maker(torch.float64, seed=dims), (3, 5, 2, 3)[: dims - 2]
    scores, target = make.normal(2, 4, *image), make.integers(0, 4, 2, *image)
    target[0, 0] = -100
    arguments: Any = {"weight": make.normal(4).abs(), "reduction": reduction}
    expected, leaf = (scores.clone().requires_grad_() for _ in range(2))
    loss = F.cross_entropy(expected, target, label_smoothing=smoothing, **arguments)
    loss.backward()
    with DeterministicMode(simulate="cuda") as mode:
        ours = F.cross_entropy(leaf, target, label_smoothing=smoothing, **arguments)
        ours.backward()
    assert "aten::nll_loss2d_forward.default" in [
        record.overload for record in mode.records if record.action == "substitute"
    ]
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(leaf.grad, expected.grad)


def test_half_precision_mean_of_many_pixels() -> None:
    """A mean is finite where the sums are not: more than 65504 pixels in float16."""
    scores = torch.full((1, 2, 300, 300), -1.5, dtype=torch.float16)
    output, total = nll_loss2d_forward(
        scores, torch.zeros(1, 300, 300, dtype=torch.int64), None, MEAN, -100
    )
    assert output.item() == 1.5
    assert total.item() == math.inf


def test_a_wrong_class_is_an_error_on_the_device() -> None:
    """The kernel checks what nothing checks before the launch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("detmode.rules.nll_loss2d.launch._check_on_host", lambda *_: None)
        for wrong in (-1, 2, 2**40):
            with pytest.raises(host.DeviceAssert):
                nll_loss2d_forward(
                    torch.zeros(1, 2, 1, 1), torch.full((1, 1, 1), wrong), None, SUM, -100
                )


@pytest.mark.parametrize(
    ("pixels", "blocks"), [(0, 0), (1, 1), (1024, 1), (1025, 2), (2**20, 1024), (2**40, 1024)]
)
def test_blocks_of_pixels(pixels: int, blocks: int) -> None:
    """Sizes alone choose them, on any GPU."""
    assert launch.choose(pixels) == blocks
