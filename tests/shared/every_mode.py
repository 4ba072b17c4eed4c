"""Every mode of detmode by name, made for a folder in which it may write."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from detmode import DeterministicMode, record
from detmode.mode.audit import Audit
from detmode.mode.filled_memory import FilledMemory
from detmode.runs.probing import Probe
from detmode.testing.suite import SuiteMode

OBSERVERS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "record": lambda folder: record(folder / "run"),
    "probe": lambda folder: Probe(1),
    "audit": lambda folder: Audit(),
    "filled memory": lambda folder: FilledMemory(0xFF),
    "suite": lambda folder: SuiteMode(lambda overload, site: True),
}
MODES = {
    "mode": lambda folder: DeterministicMode(),
    "simulated": lambda folder: DeterministicMode(simulate="cuda"),
    "listed": lambda folder: DeterministicMode(simulate="cuda", intercept="listed"),
    "recheck": lambda folder: DeterministicMode(simulate="cuda", recheck=1.0),
} | OBSERVERS
