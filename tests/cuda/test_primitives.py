"""The headers of detmode/cuda/include: conversions, positions, fixed-order reductions, owners."""

import functools
import itertools
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detmode.cuda import ctype, empty, launch, launch_blocks, magic_number
from tests.shared.cuda_sources import CROWD, FLOATING, PRIMITIVES, in_every_schedule


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_value_widens_exactly(dtype: torch.dtype) -> None:
    """All 65,536 patterns give the float that PyTorch gives; a NaN stays NaN."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    output = empty((65536,), torch.float32, "cpu")
    launch(PRIMITIVES, f"to_float<{ctype(dtype)}>", 65536, input=values, output=output, n=65536)
    expected = values.float()
    assert torch.equal(output.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(output[numbers].view(torch.int32), expected[numbers].view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrowing_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    """Around every 16-bit value and every midpoint, and for random floats, PyTorch's rounding."""
    patterns = torch.arange(0, 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    exact = patterns[patterns.isfinite()].view(torch.int32)
    middle = (exact[:-1].long() + exact[1:].long()).div(2, rounding_mode="floor").to(torch.int32)
    near = torch.cat([base + offset for base in (exact, middle) for offset in (-1, 0, 1)])
    near = near[near >= 0]
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (100000,), generator=generator).to(torch.int32)
    values = torch.cat([near, near | -(2**31), anything]).view(torch.float32)
    n = values.numel()
    output = empty((n,), dtype, "cpu")
    launch(PRIMITIVES, f"from_float<{ctype(dtype)}>", n, input=values, output=output, n=n)
    numbers = ~values.isnan()
    expected = values.to(dtype)
    assert torch.equal(output[numbers].view(torch.int16), expected[numbers].view(torch.int16))
    assert (output[~numbers].view(torch.int16) == 0x7FFF).all()


def test_shifts_round_to_even() -> None:
    """By every number of bits, up to all 64 and beyond; a half goes to the even neighbour."""
    shifts = range(1, 67)
    values = sorted(
        {
            value % 2**64
            for shift in shifts
            for half in (2 ** (shift - 1), 3 * 2 ** (shift - 1))
            for value in (half - 1, half, half + 1, 2**64 - 1)
        }
    )
    pairs = list(itertools.product(values, shifts))
    of_values, of_shifts = torch.tensor(
        [(value - 2**64 if value >= 2**63 else value, shift) for value, shift in pairs]
    ).T.contiguous()
    output, n = torch.zeros(len(pairs), dtype=torch.int64), len(pairs)
    launch(PRIMITIVES, "shifted_right", n, values=of_values, shifts=of_shifts, output=output, n=n)
    expected = [round(Fraction(value, 2**shift)) for value, shift in pairs]
    assert [value % 2**64 for value in output.tolist()] == expected


def divided(kernel: str, values: list[int], divisor: int) -> list[int]:
    output, n = torch.zeros(len(values), dtype=torch.int64), len(values)
    given = torch.tensor(values)
    launch(PRIMITIVES, kernel, 1, values=given, output=output, n=n, divisor=divisor)
    return output.tolist()


@given(st.lists(st.integers(0, 2**40), min_size=4, max_size=8), st.integers(1, 2**33))
@example([2**31 - 1, 2**31, 2**32 - 1, 2**32, 3 * 2**31 + 5], 2**16 + 1)
@example([2**31 - 1, 2**31, 2**32 - 1, 2**32, 3 * 2**31 + 5], 2**31)
def test_quick_divisions(values: list[int], divisor: int) -> None:
    """Quotients of positions are right beyond 2^31 and 2^32 elements."""
    expected = [value // divisor for value in values]
    assert divided("quick_divisions", values, divisor) == expected


@settings(max_examples=30, database=None)
@given(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=8),
    st.one_of(st.integers(1, 9), st.integers(1, 2**62)),
)
def test_divisions(values: list[int], divisor: int) -> None:
    """ceil_div is Python's -(-a // b)."""
    assert divided("divisions", values, divisor) == [-(-value // divisor) for value in values]


def test_limits() -> None:
    """limits<T> gives the infinities, or the ends of an integer's range."""
    for dtype in (*FLOATING, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        output = torch.zeros(2, dtype=dtype)
        launch(PRIMITIVES, f"extremes<{ctype(dtype)}>", 1, output=output)
        if dtype.is_floating_point:
            expected = [-float("inf"), float("inf")]
        else:
            expected = [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
        assert output.tolist() == expected
    flags = torch.zeros(2, dtype=torch.bool)
    launch(PRIMITIVES, "extremes<bool>", 1, output=flags)
    assert flags.tolist() == [False, True]


EDGES = [2**k + offset for k in range(32) for offset in (-1, 0, 1)]


def check_quotients(index: str, pairs: list[tuple[int, int]]) -> None:
    values, divisors = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    magic = torch.tensor([magic_number(divisor) for divisor in divisors.tolist()])
    output = empty((len(pairs),), torch.int64, "cpu")
    n, tensors = len(pairs), {"values": values, "divisors": divisors, "magic": magic}
    launch(PRIMITIVES, f"quotients<{index}>", n, output=output, n=n, **tensors)
    assert torch.equal(output, values // divisors)


def test_quotients_by_magic_numbers() -> None:
    """Numbers of 31 bits: around powers of two, around multiples, and at random."""
    generator = random.Random(0)
    numbers = [n for n in EDGES if 0 <= n < 2**31]
    anything = [generator.randrange(2 ** generator.randint(1, 31)) for _ in range(20_000)]
    pairs = list(itertools.product(numbers, [d for d in numbers if d > 0]))
    for divisor in (max(d, 1) for d in (*numbers, *anything)):
        # The last numbers with a quotient are where a wrong one shows.
        times = [2**31 // divisor, generator.randrange(2**31 // divisor + 1)]
        multiples = [divisor * k for k in times]
        pairs += [(n, divisor) for m in multiples for n in (m - 1, m) if 0 <= n < 2**31]
    pairs += [(n, d) for n, d in zip(anything, reversed(anything), strict=True) if d > 0]
    check_quotients("int32_t", pairs)
    check_quotients("int64_t", [*pairs, (2**40 + 3, 7), (2**40, 2**33 + 1), (5, 2**62)])
    assert magic_number(0) == magic_number(1)  # an empty size, by which nothing is divided


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rounding(dtype: torch.dtype) -> None:
    """mul_rn then add_rn rounds twice, fma_rn once, div_rn is correctly rounded."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(300, 3, dtype=dtype, generator=generator)
    output = torch.empty_like(values)
    launch(PRIMITIVES, f"rounding<{ctype(dtype)}>", 300, input=values, output=output, n=300)
    a, b, c = values.unbind(1)
    assert torch.equal(output[:, 0], a * b + c)
    assert torch.equal(output[:, 2], (a - b) / c)
    for i in range(300):
        fused = Fraction(a[i].item()) * Fraction(b[i].item()) + Fraction(c[i].item())
        spacing = Fraction(torch.finfo(dtype).eps) * abs(fused)
        assert abs(Fraction(output[i, 1].item()) - fused) <= spacing / 2


@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_block_reduce_keeps_the_order(threads: int) -> None:
    """The operation sees its operands in the order of the threads."""
    output = torch.zeros(1, dtype=torch.int64)
    launch_blocks(PRIMITIVES, f"reduce_in_order<{threads}>", 1, threads, output=output)
    assert output.item() == threads - 1


def segment_sum(
    keys: torch.Tensor, values: torch.Tensor, segments: int, piece: int
) -> torch.Tensor:
    types = f"<{ctype(values.dtype)}, {piece}>"
    n, columns = values.shape
    entry, threads = f"segment_sum{types}", -(-n // piece) * columns
    output = torch.zeros(segments, columns, dtype=values.dtype)
    while n > 0:
        pieces = -(-n // piece)
        carry_keys = torch.zeros(2 * pieces, dtype=torch.int64)
        carries = empty((2 * pieces, columns), values.dtype, "cpu")
        launch(
            PRIMITIVES, entry, threads,
            keys=keys, values=values, carry_keys=carry_keys, carry_values=carries, output=output,
            n=n, columns=columns,
        )  # fmt: skip
        if n <= piece:
            break
        keys, values, n = carry_keys, carries, 2 * pieces
        entry, threads = f"segment_runs{types}", n * columns
    return output


@pytest.mark.parametrize("run", [1, 5, 40, 64, 65, 71, 73, 130, 1000])
@pytest.mark.parametrize("first", [0, 1, 57, 63])
def test_segment_sums_have_a_fixed_order(run: int, first: int) -> None:
    """The bits are those of parts summed in order and joined in order, whoever sums them."""
    keys = (torch.arange(1000) + -first % run).div(run, rounding_mode="floor")
    values = torch.randn(1000, 1, generator=torch.Generator().manual_seed(run))
    expected = torch.zeros(int(keys[-1]) + 1, 1)
    for key in keys.unique().tolist():
        places = (keys == key).nonzero().flatten().tolist()
        parts = [
            [values[place, 0] for place in places if place // 64 == piece]
            for piece in range(places[0] // 64, places[-1] // 64 + 1)
        ]
        expected[key] = functools.reduce(
            torch.add, (functools.reduce(torch.add, part) for part in parts)
        )
    assert torch.equal(segment_sum(keys, values, len(expected), 64), expected)


def test_segment_sums_keep_negative_zero() -> None:
    """A run of -0.0 over several pieces stays -0.0: the padding is the identity of addition."""
    keys = torch.zeros(100, dtype=torch.int64)
    output = segment_sum(keys, torch.full((100, 1), -0.0), 1, 8)
    assert output.signbit().all()


def crowds() -> torch.Tensor:
    """Targets of 70 warps: k threads at one place for each k, runs, halves, and at random."""
    generator = torch.Generator().manual_seed(4)
    lanes = torch.arange(32)
    warps = [torch.where(lanes.roll(k // 2) < k, 40, lanes) for k in range(33)]
    warps += [lanes // length for length in range(1, 33)]
    warps += [lanes % 2, lanes % 3, lanes % 4, lanes % 5]
    warps += [torch.randint(0, 4, (32,), generator=generator)]
    return torch.cat(warps)


@pytest.mark.parametrize("together", [False, True])
def test_sums_in_warps(together: bool) -> None:
    """Sums are exact wherever threads of a warp meet, in any schedule."""
    targets = crowds()
    n, generator = targets.numel(), torch.Generator().manual_seed(5)
    pairs = torch.randint(-(2**50), 2**50, (n, 2), generator=generator)

    def sums() -> torch.Tensor:
        output = torch.zeros(41, 2, dtype=torch.int64)
        launch(
            PRIMITIVES, "sums_in_warps", n,
            targets=targets, pairs=pairs, sums=output, n=n, together=together,
        )  # fmt: skip
        return output

    expected = torch.zeros(41, 2, dtype=torch.int64).index_add(0, targets, pairs)
    assert torch.equal(in_every_schedule(sums), expected)


@pytest.mark.parametrize(
    ("targets", "atomics"),
    [
        ([0] * 32, [1]),
        ([0, 1] * 16, [1, 1]),
        ([0, 1, 2, 3] * 8, [1] * 4),
        ([0] * 8 + [1] * 7 + [2] * 17, [1, 7, 17]),  # the crowd behind the seven is not found
        ([0] * 8 + [1] * 17 + [2] * 7, [1, 1, 7]),
        ([0, 1, 2, 3, 4] * 6 + [0, 1], [7, 7, 6, 6, 6]),
        (list(range(32)), [1] * 32),
    ],
    ids=["one", "halves", "quarters", "short", "long", "fifths", "none"],
)
def test_a_crowd_makes_one_atomic(targets: list[int], atomics: list[int]) -> None:
    """From eight threads of a warp at one address on, one of them adds for all."""
    sums = torch.zeros(len(atomics), 2, dtype=torch.int64)
    values, n = torch.arange(1, 33), 32
    launch(CROWD, "counted_sums", n, targets=torch.tensor(targets), values=values, sums=sums, n=n)
    expected = torch.zeros(len(atomics), dtype=torch.int64)
    expected = expected.index_add(0, torch.tensor(targets), values)
    assert sums.tolist() == list(map(list, zip(expected.tolist(), atomics, strict=True)))
