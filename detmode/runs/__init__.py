"""Recording runs, and finding where two of them part."""

from detmode.runs.diff import Comparison, Parting, diff
from detmode.runs.recording import record
from detmode.runs.trace_file import TraceError

__all__ = ["Comparison", "Parting", "TraceError", "diff", "record"]
