"""The public names: what ``detmode`` gives of itself when it is asked for one."""

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
from detmode.runs.diff import Comparison, diff
from detmode.runs.probe_report import ProbeReport
from detmode.runs.probing import probe
from detmode.runs.recording import record
from detmode.runs.trace_file import TraceError
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
