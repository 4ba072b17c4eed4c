"""The public names, and the modules that give them; each is imported when it is first used."""

from . import cuda as cuda
from . import distributed as distributed
from . import rules as rules
from . import testing as testing
from .distributed.check import check_ranks
from .distributed.check_verdict import RankError
from .environment import doctor as doctor
from .environment.seeding import (
    dataloader_kwargs,
    rng_state,
    seed_everything,
    seed_worker,
    set_rng_state,
)
from .mode.allow import allow
from .mode.audit import audit
from .mode.deterministic_mode import DeterminismWarning, DeterministicMode
from .mode.recheck import RecheckError
from .mode.torch_api import (
    are_deterministic_algorithms_enabled,
    get_deterministic_debug_mode,
    is_deterministic_algorithms_warn_only_enabled,
    report,
    set_deterministic_debug_mode,
    use_deterministic_algorithms,
)
from .mode.warm import warm
from .reports.report import Report
from .reports.report_row import ReportRow
from .rules import default_rules
from .runs.checkpoints import RecordedSavePlanner
from .runs.comparison import Comparison
from .runs.probe_report import ProbeReport
from .runs.probing import probe
from .runs.ranks import diff
from .runs.recording import record
from .runs.steps import end_step, run_digest
from .runs.trace_file import TraceError
from .table import conditions as conditions
from .table.outcome import GPU_TO_GPU, RUN_TO_RUN, Guarantee
from .table.rule import Allow, Native, Refuse, Rule, Substitute
from .table.rule_table import RuleTable
from .verify.certificates import certify
from .verify.certificates.certificate import Certificate

__version__: str

__all__ = [
    "GPU_TO_GPU",
    "RUN_TO_RUN",
    "Allow",
    "Certificate",
    "Comparison",
    "DeterminismWarning",
    "DeterministicMode",
    "Guarantee",
    "Native",
    "ProbeReport",
    "RankError",
    "RecheckError",
    "RecordedSavePlanner",
    "Refuse",
    "Report",
    "ReportRow",
    "Rule",
    "RuleTable",
    "Substitute",
    "TraceError",
    "allow",
    "are_deterministic_algorithms_enabled",
    "audit",
    "certify",
    "check_ranks",
    "dataloader_kwargs",
    "default_rules",
    "diff",
    "end_step",
    "get_deterministic_debug_mode",
    "is_deterministic_algorithms_warn_only_enabled",
    "probe",
    "record",
    "report",
    "rng_state",
    "run_digest",
    "seed_everything",
    "seed_worker",
    "set_deterministic_debug_mode",
    "set_rng_state",
    "use_deterministic_algorithms",
    "warm",
]
