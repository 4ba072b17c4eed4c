"""The sources that several test modules launch."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from detmode import RUN_TO_RUN, Rule, RuleTable, Substitute, default_rules
from detmode.cuda import Source, accumulator_buffers, ctype, empty_like, host, launch
from detmode.cuda.signature import kernels_of
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL, argument, on
from tests.shared.selection import PROFILE


def names(*dtypes: torch.dtype) -> tuple[str, ...]:
    """The C++ types of dtypes."""
    return tuple(map(ctype, dtypes))


class Together(Source):
    """A source of short kernels, which take no longer to compile for all dtypes than for each."""

    def together(self, entry: str) -> tuple[str, ...]:
        """Of all dtypes."""
        return self.entries


def source(file: str, **templates: Iterable[str]) -> Source:
    """All kernels of a file of this folder; each template with these arguments."""
    kernels = kernels_of((Path(__file__).parent / file).read_text(encoding="utf-8"))
    entries = [
        f"{kernel}<{given}>" if given else kernel
        for kernel in kernels
        for given in templates.get(kernel, ("",))
    ]
    return Together(__file__, file, entries)


SINGLE_AND_DOUBLE = names(torch.float32, torch.float64)
HALVES = names(torch.float16, torch.bfloat16)
REAL = names(*FLOATING, *INTEGRAL)
SUMMED = names(*FLOATING, *COMPLEX)
EITHER = ("true", "false")

KERNELS = source(
    "kernels.cu",
    scale=names(*FLOATING),
    naive_scatter=["float"],
    accumulate_keys=SUMMED,
    accumulate_sums=SUMMED,
    accumulate_finish=SUMMED,
)
FAULTS = source("faults.cu", read_shared_of=["float"])
WARP = source("warp.cu")
CROWD = source("crowd.cu")
PRIMITIVES = source(
    "primitives.cu",
    reduce_in_order=["32", "96", "1024"],
    segment_sum=["float, 8", "float, 64", "double, 64"],
    segment_runs=["float, 8", "float, 64", "double, 64"],
    from_float=HALVES,
    to_float=HALVES,
    extremes=["bool", *REAL],
    rounding=SINGLE_AND_DOUBLE,
    quotients=["int32_t", "int64_t"],
    divided_sums=SINGLE_AND_DOUBLE,
    compensated=SINGLE_AND_DOUBLE,
)
REDUCTIONS = source(
    "reductions.cu", row_product=REAL, radix_keys=REAL, extremum_observe=REAL, extremum_finish=REAL
)
EXPONENTIAL = source(
    "exponential.cu",
    exponentials=SINGLE_AND_DOUBLE,
    exponentials_nonpositive=SINGLE_AND_DOUBLE,
    logarithms=SINGLE_AND_DOUBLE,
    scaled_numbers=SINGLE_AND_DOUBLE,
)
SIGNIFICAND = source("significand.cu", powers=SINGLE_AND_DOUBLE, parts=SINGLE_AND_DOUBLE)
# Threads, rows and elements at once: tiles of 32 elements, of one warp, and of 384, of three.
SCAN_SHAPES = ((32, 1, 1), (96, 2, 2))
SCANNED = [
    f"{of}, {t}, {rows}, {vec}" for of in ("runs", "float_sums") for t, rows, vec in SCAN_SHAPES
]
SCANS = source("scan.cu", scan=SCANNED, scan_totals=SCANNED, scan_level=["runs", "float_sums"])
RACES = source(
    "races.cu",
    neighbour_in_block=EITHER,
    neighbour_twice=EITHER,
    neighbour_in_warp=EITHER,
    neighbour_in_half=EITHER,
    through_both=EITHER,
    same_element=EITHER,
    read_beside_atomics=EITHER,
    read_written=EITHER,
    flag_of_another=EITHER,
    bytes_of_a_word=["0", "1"],
    last_block=["1, 1", "1, 0", "0, 1", "0, 0"],
    element_each=[f"{name}, {n}" for name in ("bool", "int16_t", "double") for n in (1, 2)],
)

ALL = (KERNELS, FAULTS, WARP, PRIMITIVES, REDUCTIONS, EXPONENTIAL, SIGNIFICAND, SCANS, RACES)


def source_in(folder: Path, text: str, *entries: str) -> Source:
    """A source of this text; its entry is ``f`` unless others are said."""
    (folder / "text.cu").write_text(text)
    return Source(str(folder / "anchor.py"), "text.cu", entries or ("f",))


def accumulate(output: Tensor, index: Tensor, source: Tensor, headroom: int) -> Tensor:
    """A new tensor: `output` where `index` names no element, elsewhere the sums of `source`."""
    name = ctype(source.dtype)
    n, count = output.numel(), source.numel()
    keys, sums = accumulator_buffers(n, source.dtype, source.device)
    result = output.clone()
    launch(
        KERNELS, f"accumulate_keys<{name}>", count, source=source, index=index, keys=keys, n=count
    )
    launch(
        KERNELS, f"accumulate_sums<{name}>", count,
        source=source, index=index, keys=keys, sums=sums, n=count, headroom=headroom,
    )  # fmt: skip
    launch(
        KERNELS, f"accumulate_finish<{name}>", n,
        keys=keys, sums=sums, output=result, n=n, headroom=headroom,
    )  # fmt: skip
    return result


def mapped(source: Source, kernel: str, values: Tensor, **more: object) -> Tensor:
    """Apply a kernel's entry for their dtype to each of the values."""
    output, n = empty_like(values), values.numel()
    launch(source, f"{kernel}<{ctype(values.dtype)}>", n, input=values, output=output, n=n, **more)
    return output


def add_racing(result: Tensor, source: Tensor, index: Tensor) -> Tensor:
    """Add by a float atomicAdd, in the order in which the threads come, and return the result."""
    n = len(source)
    launch(KERNELS, "naive_scatter<float>", n, source=source, index=index, output=result, n=n)
    return result


def _racing_index_put(
    self: Tensor, indices: list[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """``index_put`` of rows by one index, which adds as ATen's CUDA kernel may."""
    (index,), columns = indices, torch.arange(self[0].numel())
    flat = (index.reshape(-1, 1) * len(columns) + columns).reshape(-1)
    return add_racing(self.clone(), values.reshape(-1), flat)


def with_racing_sums() -> RuleTable:
    """The default table with a false claim: its ``index_put`` adds by a float atomicAdd."""
    racing = Rule(
        op="aten::index_put",
        when=on("cuda") & argument("accumulate", True),
        action=Substitute(_racing_index_put),
        guarantee=RUN_TO_RUN,
        because="the negative control: its claim is false",
    )
    return default_rules() + [racing]


def pattern(tensor: Tensor) -> bytes:
    """The tensor's bytes, so that NaNs and signed zeros compare too."""
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


SCHEDULES = (None, *range(PROFILE.schedules))
"""Program order and shuffled schedules."""


def in_every_schedule(run: Callable[[], Tensor], seeds: Iterable[int | None] = SCHEDULES) -> Tensor:
    """The result of ``run``, whose bits are the same in every schedule."""
    results = []
    for seed in seeds:
        with host.schedule(seed):
            results.append(run())
    assert len(set(map(pattern, results))) == 1
    return results[0]
