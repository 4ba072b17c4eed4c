"""``detmode verify``: every claim of every family on this machine, as a matrix.

It may import :mod:`detmode.runs` and what is below. It knows no operator by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from detmode import cuda
from detmode.process.spelling import did_you_mean
from detmode.reports.progress import progress
from detmode.rules import families
from detmode.verify.cases import Case, cases, name_of
from detmode.verify.claims import NotCheckedError, check_bits, check_races, check_truth
from detmode.verify.special_values import check_special_values, values_for


@dataclass(frozen=True)
class _Outcome:
    """One line of the matrix: the results of a family in one dtype.

    ``skipped`` lists what this machine could not check, with reasons; it counts as neither a pass
    nor a failure.
    """

    family: str
    dtype: str
    samples: int
    repeats: int
    error_over_aten: float | None
    guarantee: str
    failures: tuple[str, ...]
    skipped: tuple[str, ...]

    def as_text(self) -> dict[str, Any]:
        """Return the columns by name; numbers stay numbers."""
        ratio = self.error_over_aten
        return {
            "family": self.family,
            "dtype": self.dtype,
            "samples": self.samples,
            "repeats": self.repeats,
            "error_over_aten": None if ratio is None else float(f"{ratio:.3g}"),
            "guarantee": self.guarantee,
            "verdict": "failed" if self.failures else "holds",
            "failures": list(self.failures),
            "skipped": list(self.skipped),
        }


def default_device() -> str:
    """Return ``"cuda"`` if kernels can be launched on a GPU, else ``"host"``."""
    return "cuda" if torch.cuda.is_available() and cuda.unavailable("cuda") is None else "host"


def refusal(device: str, family: str | None) -> str | None:
    """Return why :func:`verify` has nothing to run, with the remedy; ``None`` if it has."""
    reason = cuda.unavailable("cpu" if device == "host" else "cuda")
    if reason is not None:
        return f"cannot verify on {device}: {reason}"
    if family is not None and family not in families():
        known = did_you_mean(family, families()) or f"; families are {', '.join(families())}"
        return f"there is no family {family!r}{known}"
    return None


def verify(*, device: str, family: str | None = None, repeats: int = 20) -> tuple[_Outcome, ...]:
    """Run every case of a family, or of all families, and return the outcomes.

    Args:
        device: ``"cuda"`` or ``"host"``.
        family: check only this family.
        repeats: the number of runs of each sample.
    """
    groups: dict[tuple[str, torch.dtype], list[Case]] = {}
    for case in cases(family):
        groups.setdefault((case.family, case.dtype), []).append(case)
    return tuple(
        _outcome(name, dtype, group, device, repeats)
        for (name, dtype), group in progress(groups.items(), "verifying", "families and dtypes")
    )


def _outcome(
    family: str, dtype: torch.dtype, group: Sequence[Case], device: str, repeats: int
) -> _Outcome:
    failures: list[str] = []
    skipped: Counter[str] = Counter()
    special = 0
    worst: float | None = None
    for case in group:
        try:
            if device == "host":
                check_races(case)
            check_bits(case, device, repeats)
            ratio = check_truth(case, device).ratio
            if ratio is not None and (worst is None or ratio > worst):
                worst = ratio
            for value in values_for(dtype):
                special += 1
                try:
                    check_special_values(case, value, device)
                except NotCheckedError as reason:
                    skipped[str(reason)] += 1
        except AssertionError as error:
            failures.append(str(error))
        except Exception as error:
            text = str(error).partition("\n")[0]
            failures.append(f"{case}: {type(error).__name__}: {text}")
    guarantees = {str(case.guarantee) for case in group}
    return _Outcome(
        family,
        name_of(dtype),
        len(group),
        repeats,
        worst,
        ", ".join(sorted(guarantees)),
        tuple(failures),
        tuple(f"{n} of {special} checks of special values: {why}" for why, n in skipped.items()),
    )
