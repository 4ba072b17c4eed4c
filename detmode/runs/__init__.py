"""Recording runs, finding where two of them part, and probing one for what varies."""

from detmode.runs.diff import Comparison, Parting, diff
from detmode.runs.probe_report import PassedOver, ProbeReport, ProbeRow
from detmode.runs.probing import Probe, probe
from detmode.runs.recording import record
from detmode.runs.trace_file import TraceError

__all__ = [
    "Comparison",
    "Parting",
    "PassedOver",
    "Probe",
    "ProbeReport",
    "ProbeRow",
    "TraceError",
    "diff",
    "probe",
    "record",
]
