"""detmode: bitwise reproducible PyTorch, by deterministic kernels where PyTorch can only raise."""

from __future__ import annotations

import logging
import os

from detmode.auditing import audit
from detmode.mode import DeterminismWarning, DeterministicMode
from detmode.regions import allow
from detmode.report import Record, Report
from detmode.rule import (
    GPU_TO_GPU,
    RUN_TO_RUN,
    Allow,
    Guarantee,
    Native,
    Refuse,
    Rule,
    Substitute,
)
from detmode.rules import default_rules
from detmode.runs import Comparison, ProbeReport, TraceError, diff, probe, record
from detmode.seeding import (
    dataloader_kwargs,
    rng_state,
    seed_everything,
    seed_worker,
    set_rng_state,
)
from detmode.switch import (
    are_deterministic_algorithms_enabled,
    get_deterministic_debug_mode,
    is_deterministic_algorithms_warn_only_enabled,
    set_deterministic_debug_mode,
    use_deterministic_algorithms,
)
from detmode.table import RuleTable

__version__ = "0.1.0"

__all__ = [
    "GPU_TO_GPU",
    "RUN_TO_RUN",
    "Allow",
    "Comparison",
    "DeterminismWarning",
    "DeterministicMode",
    "Guarantee",
    "Native",
    "ProbeReport",
    "Record",
    "Refuse",
    "Report",
    "Rule",
    "RuleTable",
    "Substitute",
    "TraceError",
    "allow",
    "are_deterministic_algorithms_enabled",
    "audit",
    "dataloader_kwargs",
    "default_rules",
    "diff",
    "get_deterministic_debug_mode",
    "is_deterministic_algorithms_warn_only_enabled",
    "probe",
    "record",
    "rng_state",
    "seed_everything",
    "seed_worker",
    "set_deterministic_debug_mode",
    "set_rng_state",
    "use_deterministic_algorithms",
]


def _configure_logging() -> None:
    logger = logging.getLogger("detmode")
    # A warning is given through Python's warnings; without a handler logging would print it again.
    logger.addHandler(logging.NullHandler())
    level = getattr(logging, os.environ.get("DETMODE_LOG", "").upper(), None)
    if isinstance(level, int):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("detmode %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


_configure_logging()
del _configure_logging
