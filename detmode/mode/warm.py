"""``warm``: compile and load kernels before the calls that launch them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch._ops import OpOverload, OpOverloadPacket

from detmode import cuda
from detmode.cuda import Source, native
from detmode.cuda.dtypes import CTYPES
from detmode.mode.options import logger_for, operator_names, rows_of
from detmode.reports.progress import progress
from detmode.rules import default_rules
from detmode.table.names import Operator
from detmode.table.rule import Substitute
from detmode.table.rule_table import TORCH_VERSION, Row, RuleTable


@dataclass(frozen=True)
class Warmed:
    """The kernels that :func:`detmode.warm` made ready. Prints as one line.

    Args:
        device: the device that runs them.
        compiled: the kernels that this process compiled, such as
            ``"rows/integer_sums.cu: index_add_observe<float, 1>"``.
        found: those that it found: loaded, in the cache, beside the package, or compiled by another
            process meanwhile.
        seconds: the time that it took.
    """

    device: torch.device
    compiled: tuple[str, ...]
    found: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return (
            f"kernels ready on {self.device}: {len(self.compiled)} compiled, "
            f"{len(self.found)} found, in {self.seconds:.1f} s"
        )


def warm(
    operators: RuleTable | Operator | Iterable[Operator] | None = None,
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.float16, torch.bfloat16),
    device: torch.device | str = "cuda",
) -> Warmed:
    """Compile and load every kernel that substitutes may launch, so that no later call has to.

    These are all kernels that any sizes may lead to: a CUDA graph can be captured afterwards,
    without a first call of the same sizes. Where several processes share the cache, as the ranks of
    a node do, each kernel is compiled by one of them, while the others take the next ones or wait.
    With ``DETMODE_NATIVE=1`` the player in C++ is built and loaded, too.

    >>> warmed = detmode.warm("aten::index_add", dtypes=[torch.float32], device="cpu")

    Args:
        operators: operators or overloads, by name or as objects of ``torch.ops``, or globs
            (``"aten::upsample_*"``); a backward operator is named itself. Or a table, of which
            all rows are meant; :func:`~detmode.default_rules` if not given. An operator without
            substitute needs no kernel.
        dtypes: the dtypes of the results.
        device: ``"cuda"``, the current GPU, or one such as ``"cuda:1"``; ``"cpu"`` for the host
            runner (``simulate="cuda"``), whose libraries have all kernels of a file for a dtype.

    Raises:
        TypeError: an operator or a dtype is of another type.
        ValueError: no library or row has the operator, no kernel has the dtype, or there is no such
            device.
        RuntimeError: kernels cannot run on the device, with the remedy; or a CUDA graph is being
            captured.
        detmode.cuda.CompileError: a kernel does not compile.
    """
    start = time.perf_counter()
    wanted = kernels(_rows(operators), _checked_dtypes(dtypes))
    place = _checked_device(device)
    jobs = [
        (source, part)
        for source, entries in wanted.items()
        for part in dict.fromkeys(
            source.together(entry) if place.type == "cpu" else (entry,) for entry in entries
        )
    ]
    # In an order of its own, so that processes that start together rarely wait for one another.
    random.Random(os.getpid()).shuffle(jobs)
    unit = "libraries" if place.type == "cpu" else "kernels"
    compiled: list[str] = []
    cached: list[str] = []
    for source, entries in progress(jobs, "compiling", unit):
        new = cuda.load(source, entries, place)
        for entry in entries:
            (compiled if entry in new else cached).append(f"{source.name}: {entry}")
    if native.is_wanted() and (is_new := native.prepare()) is not None:
        (compiled if is_new else cached).append("the player in C++")
    warmed = Warmed(
        place, tuple(sorted(compiled)), tuple(sorted(cached)), time.perf_counter() - start
    )
    logger_for(None).info("%s", warmed)
    return warmed


def kernels(
    rows: Iterable[Row], dtypes: Iterable[torch.dtype] | None = None
) -> dict[Source, tuple[str, ...]]:
    """Return the entries that substitutes of rows may launch for dtypes, or for any, by source."""
    actions = [row.rule.action for row in rows]
    sources = dict.fromkeys(
        source
        for action in actions
        if isinstance(action, Substitute) and action.launches
        for source in cuda.sources_of(action.function)
    )
    if dtypes is None:
        return {source: source.entries for source in sources}
    return {
        source: tuple(
            dict.fromkeys(entry for dtype in dtypes for entry in source.entries_for(dtype))
        )
        for source in sources
    }


def _rows(operators: RuleTable | Operator | Iterable[Operator] | None) -> list[Row]:
    if operators is None:
        operators = default_rules()
    if isinstance(operators, RuleTable):
        rows = list(operators)
    else:
        if isinstance(operators, (str, OpOverload, OpOverloadPacket)):
            operators = (operators,)
        if not isinstance(operators, Iterable):
            raise TypeError(
                f"warm() takes operators or a RuleTable, got {type(operators).__name__}"
            )
        named = operator_names("warm()", operators)
        rows = [row for name in named for row in rows_of(name, default_rules())]
    return [row for row in rows if row.rule.holds_for(TORCH_VERSION)]


def _checked_dtypes(dtypes: Iterable[torch.dtype]) -> tuple[torch.dtype, ...]:
    if not isinstance(dtypes, Iterable):
        raise TypeError(
            f"warm(): dtypes must be several torch.dtype, such as [torch.float32], not {dtypes!r}"
        )
    checked = tuple(dtypes)
    for dtype in checked:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"warm(): dtypes must be torch.dtype such as torch.float32, got {dtype!r}"
            )
        if dtype not in CTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in CTYPES)
            raise ValueError(f"warm(): no kernel is made for {dtype}; dtypes are {known}")
    return checked


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = None
    if place is None or place.type not in ("cuda", "cpu"):
        raise ValueError(
            "warm(): device must be 'cuda', a GPU such as 'cuda:1', or 'cpu' for the host runner, "
            f"got {str(device)!r}"
        )
    reason = cuda.unavailable(place.type)
    if reason is not None:
        raise RuntimeError(f"warm(): no kernel can run on {place.type}. {reason}")
    if place.type == "cpu":
        return place
    if place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(
            f"warm(): there is no {place}; PyTorch sees {torch.cuda.device_count()} GPUs"
        )
    return torch.device("cuda", torch.cuda.current_device() if place.index is None else place.index)
