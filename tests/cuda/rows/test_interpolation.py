"""Interpolation backward against its exact reference, on shapes and scales nobody thought of."""

import math
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.cuda.rows import interpolation as gather
from detmode.rules.upsample import RULES as INTERPOLATION
from detmode.rules.upsample.launch import LINEAR
from detmode.rules.upsample_aa import RULES as ANTIALIASED
from detmode.table.inputs import shifted
from detmode.table.rule import Substitute
from detmode.table.rule_table import resolve
from detmode.table.samples import Maker
from detmode.verify.cases import samples_of
from tests.shared import needs
from tests.shared.strategies import ANY_LAYOUT, FLOATS, SEEDS

SUBSTITUTES = {
    rule.op: rule.action.function
    for rule in (*INTERPOLATION, *ANTIALIASED)
    if isinstance(rule.action, Substitute)
}
REFERENCES = {**samples_of("upsample").references, **samples_of("upsample_aa").references}
DIMS = {op: 1 if "1d" in op else 3 if "3d" in op else 2 for op in SUBSTITUTES}
# Enough for several blocks' worth of tiles in 1-D, and for every branch of the launcher elsewhere.
LONGEST = {1: 400, 2: 40, 3: 9}


def unaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with channels last, one element into their storage."""
    return shifted(tensor.movedim(1, -1)).movedim(-1, 1)


@st.composite
def calls(draw: st.DrawFn, op: str) -> dict[str, Any]:
    """Arguments of `op` by schema name; scales as `F.interpolate` passes them, and others."""
    dims = DIMS[op]
    sizes = st.one_of(st.integers(1, 5), st.integers(1, LONGEST[dims]))
    batch = [draw(st.integers(0, 2)), draw(st.sampled_from([1, 2, 3, 5, 16, 18]))]
    size, out = [draw(sizes) for _ in range(dims)], [draw(sizes) for _ in range(dims)]
    maker = Maker(draw(FLOATS), seed=draw(SEEDS))
    layout = draw(st.one_of(ANY_LAYOUT, st.just(unaligned)))
    given = [
        # floor(i * scale) == o, as where the output's size comes from the scale.
        st.floats(o / i, math.nextafter((o + 1) / i, 0.0))
        for i, o in zip(size, out)
    ]
    ignored = st.sampled_from([None, -1.0, 0.0])
    # Antialiasing where the scale contradicts the sizes divides noise by noise.
    free = st.nothing() if "_aa" in op else st.floats(0.05, 20.0)
    scales = [draw(st.one_of(ignored, scale, free)) for scale in given]
    names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}
    return {
        "grad_output": layout(maker.normal(*batch, *out)),
        "output_size": out,
        "input_size": [*batch, *size],
        "align_corners": draw(st.booleans()),
        **dict(zip(names[dims], scales)),
    }


def allowed(call: dict[str, Any], truth: torch.Tensor) -> torch.Tensor:
    """One rounding of the result, and positions and sums in the opmath type."""
    grad = call["grad_output"].double()
    limit = torch.finfo(grad.dtype if call["grad_output"].dtype is torch.float64 else torch.float32)
    longest = max(*call["input_size"], *call["output_size"])
    sums = grad.abs().flatten(2).sum(2).reshape(*grad.shape[:2], *[1] * (grad.dim() - 2))
    dtype = torch.finfo(call["grad_output"].dtype)
    return 0.51 * dtype.eps * truth.abs() + 4 * limit.eps * (longest + 16) * sums + dtype.tiny


@pytest.mark.thorough
@needs.compiler
@pytest.mark.parametrize("op", SUBSTITUTES)
@given(data=st.data())
def test_no_wrong_result_and_no_crash(op: str, data: st.DataObject) -> None:
    """Every shape, stride, dtype and scale gives the reference's values in ATen's form."""
    call = data.draw(calls(op))
    seed = data.draw(st.one_of(st.none(), st.integers(0, 99)), label="schedule seed")
    # Tables in global or in shared memory, or for strips of rows; one group of rows a block, or one
    # after the other; several channels or rows a thread, or one; a thread, a warp or a block for
    # what an element meets along the last dimension.
    limits = {
        "MAX_READS": data.draw(st.sampled_from([1, gather.MAX_READS]), label="reads"),
        "MANY_READS": data.draw(st.sampled_from([8, gather.MANY_READS]), label="many reads"),
        "SHARED": data.draw(st.sampled_from([0, gather.SHARED]), label="shared"),
        "LONG": data.draw(st.sampled_from([1, gather.LONG]), label="long"),
        "MAX_GROUPS": data.draw(st.sampled_from([1, gather.MAX_GROUPS]), label="groups"),
        "SEVERAL": data.draw(st.sampled_from([0, 2**62]), label="several"),
    }
    with host.schedule(seed), mock.patch.multiple(gather, **limits):
        result = SUBSTITUTES[op](**call)
    truth = REFERENCES[op](**{**call, "grad_output": call["grad_output"].double()})
    grad = call["grad_output"]
    like = torch.empty_strided(grad.shape, grad.stride(), dtype=grad.dtype, device="meta")
    form = resolve(op)(**{**call, "grad_output": like})
    assert (result.dtype, result.shape, result.stride()) == (form.dtype, form.shape, form.stride())
    error = (result.double() - truth).abs()
    assert not (error > allowed(call, truth)).any(), f"error {error.max():.3g}"


@needs.compiler
@pytest.mark.parametrize(("start", "packed"), [(0, "true"), (1, "false")])
def test_only_aligned_channels_are_read_at_once(start: int, packed: str) -> None:
    """A gradient that starts between two 16-byte boundaries takes single loads, with equal bits."""
    backward = SUBSTITUTES["aten::upsample_bilinear2d_backward"]
    storage = torch.randn(start + 6 * 6 * 16, generator=torch.Generator().manual_seed(0))
    grad = storage[start:].view(1, 6, 6, 16).movedim(-1, 1)
    with (
        mock.patch.multiple(gather, SEVERAL=0, SHARED=0, STRIP=0),
        mock.patch.object(gather, "launch", wraps=gather.launch) as launched,
    ):
        result = backward(grad, [6, 6], [1, 16, 3, 3], False)
    assert launched.call_args.args[1].endswith(f", {packed}>")
    assert torch.equal(result, backward(grad, [6, 6], [1, 16, 3, 3], False))


@needs.compiler
def test_few_elements_take_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number of elements, of reads and of bytes of tables; the bits are those of tables."""
    entries: list[str] = []
    launched = host.launch_blocks

    def noted(source: Any, entry: str, *given: Any) -> None:
        entries.append(entry.partition("<")[0])
        launched(source, entry, *given)

    monkeypatch.setattr(host, "launch_blocks", noted)
    backward = SUBSTITUTES["aten::upsample_bilinear2d_backward"]

    def launches(
        channels: int, size: list[int], out: list[int], *scales: float | None
    ) -> list[str]:
        grad = torch.arange(channels * math.prod(out) * 1.0).view(1, channels, *out).sin()
        entries.clear()
        result = backward(grad, out, [1, channels, *size], False, *scales)
        found = [*entries]
        with mock.patch.multiple(gather, SHARED=0, STRIP=0):
            again = backward(grad, out, [1, channels, *size], False, *scales)
        assert torch.equal(result, again)
        return found

    tabled = ["upsample_tables", "upsample_gather_rows"]
    # 2,047 of 2,048 elements of tables, and 2,050; elements of grad_input below MANY, and MANY.
    assert launches(1, [4, 250], [8, 505]) == ["upsample_small"]
    assert launches(1, [4, 250], [8, 506]) == ["upsample_strips"]
    # Strips of rows that are long enough, and of a scale of which 256 positions have 32 KiB; two
    # rows, and nearly 65,535 elements.
    assert launches(1, [250, 4], [506, 8]) == tabled
    assert launches(1, [1, 5000], [1, 41000]) == ["upsample_strips"]
    assert launches(1, [1, 5000], [1, 55000]) == tabled
    assert launches(2, [1, 1000], [2, 2000]) == ["upsample_strips"]
    assert launches(64, [1, 1023], [1, 2046]) == ["upsample_strips"]
    assert launches(64, [1, 1024], [1, 2048]) == tabled
    # By this scale all but 30 of the output positions read the last one of a row.
    assert launches(1, [1, 300], [1, 4500], None, 0.1) == tabled
    assert launches((1 << 12) - 1, [4, 4], [8, 8]) == ["upsample_small"]
    assert launches(1 << 12, [4, 4], [8, 8]) == tabled
    # Of each element 4 * 16 reads, and 5 * 16.
    assert launches(1, [4, 4], [8, 32]) == ["upsample_small"]
    assert launches(1, [4, 4], [9, 32])[0] == "upsample_tables"


@pytest.mark.parametrize(
    ("out", "lanes"), [(64, 1), (96, 1), (97, 32), (6144, 32), (6145, 256), (2**31 - 1, 256)]
)
def test_reads_of_the_last_axis_choose_lanes(out: int, lanes: int) -> None:
    """More than 64 positions that read one are added by a warp, more than 4,096 by a block."""
    ((axis,), _) = gather.axes_of(LINEAR, torch.float32, False, [3], [out], [None])
    assert gather.lanes_of(axis) == lanes


def added_by_lanes(weighted: torch.Tensor, lanes: int) -> torch.Tensor:
    """The sum of a row's products: each lane's in turn, then neighbours in pairs."""
    missing = -len(weighted) % lanes
    turns = torch.cat([weighted, weighted.new_zeros(missing)]).view(-1, lanes)
    sums = torch.zeros(lanes)
    for turn in turns:
        sums = sums + turn
    while len(sums) > 1:
        sums = sums[::2] + sums[1::2]
    return sums[0]


@needs.compiler
@pytest.mark.parametrize(("factor", "lanes"), [(32, 1), (200, 32), (3000, 256)])
@pytest.mark.parametrize("rows", [1, 7])
def test_long_factors_are_added_in_the_order_that_is_documented(
    factor: int, lanes: int, rows: int
) -> None:
    """Whatever the grid, the rows of a thread and the schedule: the bits of a sum by lanes.

    With gradients that are powers of two, products are exact, and only the order rounds.
    """
    backward = SUBSTITUTES["aten::upsample_linear1d_backward"]
    size, out = 3, 3 * factor
    generator = torch.Generator().manual_seed(rows)
    grad = torch.exp2(torch.randint(-9, 9, (1, rows, out), generator=generator))
    grad *= torch.randint(0, 2, grad.shape, generator=generator) * 2 - 1
    # As a fused multiply-add, it rounds once: float64 holds the product.
    ratio = torch.tensor(size / out, dtype=torch.float32).item()
    position = (ratio * (torch.arange(out).double() + 0.5) - 0.5).float().clamp(min=0)
    # An output position reads the pixel before it and the next one, if only with a weight of 0. Of
    # the last pixel it may read both taps, so that is left out.
    before = position.long()
    after = position - before
    weights = torch.stack([torch.where(before == at, 1 - after, after) for at in range(size - 1)])
    expected = torch.empty(1, rows, size - 1)
    for row, at in product(range(rows), range(size - 1)):
        reads = (before == at) | (before == at - 1)
        expected[0, row, at] = added_by_lanes((grad[0, row] * weights[at])[reads], lanes)
    for several, groups, seed in product((0, 2**62), (1, 65535), (None, 3)):
        with host.schedule(seed), mock.patch.multiple(gather, SEVERAL=several, MAX_GROUPS=groups):
            got = backward(grad, [out], [1, rows, size], False)
        assert torch.equal(got[..., :-1], expected)


@needs.compiler
def test_a_very_long_factor_has_a_smaller_error_than_atens() -> None:
    """The sums of 50,000 positions, which ATen adds one after the other."""
    grad = torch.rand(1, 4, 100_000, generator=torch.Generator().manual_seed(0))
    call = ([100_000], [1, 4, 2], False)
    aten = torch.ops.aten.upsample_linear1d_backward
    ours, exact = (
        SUBSTITUTES["aten::upsample_linear1d_backward"](grad, *call),
        aten(grad.double(), *call),
    )
    errors = [(each.double() - exact).abs().max() for each in (ours, aten(grad, *call))]
    assert 10 * errors[0] < errors[1]


@needs.compiler
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_that_grow_along_their_rows(mode: str) -> None:
    """A program's gradient where each element meets 100 positions of a row has ATen's values."""
    image = torch.randn(1, 16, 8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = torch.autograd.grad(grown(image, mode).square().sum(), image)[0]
    with (
        mock.patch.object(gather, "MANY", 1),
        mock.patch.object(gather, "launch_blocks", wraps=gather.launch_blocks) as launched,
        DeterministicMode(simulate="cuda"),
    ):
        got = torch.autograd.grad(grown(image, mode).square().sum(), image)[0]
    assert launched.call_args.args[1].startswith("upsample_gather_lanes<float, float, 32, ")
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-4)


def grown(image: torch.Tensor, mode: str) -> torch.Tensor:
    """The image, twice as high and fifty times as wide."""
    return torch.nn.functional.interpolate(image, scale_factor=(2, 50), mode=mode)


@pytest.mark.parametrize(
    ("sizes", "out", "outer", "inner", "way"),
    [
        ([64], [128], 1, 1, "small"),
        ([1000], [2000], 2, 1, "strips"),
        ([1000], [2000], 1, 2, "whole"),
        ([64, 1024], [128, 2048], 1, 1, "whole"),
        # Of each element 64 reads, and 128.
        ([4, 4], [16, 16], 1, 1 << 12, "whole"),
        ([4, 4], [16, 32], 1, 1 << 12, "last apart"),
        ([4, 4], [16, 32], 1 << 11, 1, "last apart"),
        ([4, 4], [16, 32], 1 << 12, 1, "whole"),
        # Along the last axis of each element 64 reads, and 66.
        ([4, 4], [16, 128], 1 << 12, 1, "whole"),
        ([4, 4], [16, 129], 1 << 12, 1, "last apart"),
        ([4], [129], 1 << 14, 1, "whole"),
    ],
)
def test_the_way_to_gather(
    sizes: list[int], out: list[int], outer: int, inner: int, way: gather.GatherWay
) -> None:
    """Sizes choose whether tables are in memory, and whether the last axis is apart."""
    axes, length = gather.axes_of(LINEAR, torch.float32, False, sizes, out, [None] * len(sizes))
    numel = outer * math.prod(sizes) * inner
    assert gather.choose(axes, length, torch.float32, numel, inner) == way


@pytest.mark.parametrize("op", SUBSTITUTES)
@given(data=st.data())
def test_reference_is_atens_float64(op: str, data: st.DataObject) -> None:
    """The reference agrees with ATen on the CPU, except where ATen's CUDA kernels differ from it.

    The CPU leaves a dimension alone whose size does not change; CUDA resamples it with a given
    scale, and copies where no size changes.
    """
    call = data.draw(calls(op))
    call["grad_output"] = call["grad_output"].double()
    scales = [name for name in call if name.startswith("scales")]
    for name, size, out in zip(scales, call["input_size"][2:], call["output_size"]):
        call[name] = None if size == out else call[name]
    truth = REFERENCES[op](**call)
    aten = resolve(op)(**call)
    assert not ((aten - truth).abs() > allowed(call, truth)).any()
