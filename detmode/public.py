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
from detmode.runs import Comparison, TraceError, diff, record
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
    "default_rules",
    "diff",
    "get_deterministic_debug_mode",
    "is_deterministic_algorithms_warn_only_enabled",
    "record",
    "set_deterministic_debug_mode",
    "use_deterministic_algorithms",
]
