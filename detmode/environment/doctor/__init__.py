"""Settings of this environment that can break or slow reproducibility, with remedies.

Every state is read from the setting itself, and nothing is changed: no CUDA context is made, and
what takes long to import (inductor, and CuPy where there is no GPU) is not imported.
"""

from __future__ import annotations

from detmode.environment.doctor import distributed_runs, numerics, processes, software
from detmode.environment.doctor.finding import SEVERITIES, Finding

__all__ = ["SEVERITIES", "Finding", "findings"]


def __dir__() -> list[str]:
    return __all__


def findings() -> tuple[Finding, ...]:
    """Everything that is looked at, whether or not there is something to do; errors first.

    The settings are those of this moment: called in a program, those that the program made.

    >>> from detmode.doctor import findings
    >>> [finding.remedy for finding in findings() if finding.severity == "error"]
    []
    """
    looks = (*software.LOOKS, *numerics.LOOKS, *processes.LOOKS, *distributed_runs.LOOKS)
    unsorted = (finding for look in looks for finding in look())
    return tuple(sorted(unsorted, key=lambda finding: SEVERITIES.index(finding.severity)))
