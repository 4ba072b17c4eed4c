"""Reports of each kind."""

import pytest

import detmode
from detmode import Report
from detmode.reports.shown import Shown
from detmode.runs.probe_report import PassedOver, ProbeReport
from tests.reports.rows import probed, record
from tests.shared.training import Fault, Training

ACTIONS = ("substitute", "error", "native", "allow", "warn")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> detmode.Comparison:
    folder = tmp_path_factory.mktemp("runs")
    fault = Fault("aten::addmm.default", 3, lambda args, result: result.view(-1)[3].add_(1e-6))
    return detmode.diff(
        Training().record(folder / "one"), Training(fault=fault).record(folder / "other")
    )


@pytest.fixture
def reports(comparison: detmode.Comparison) -> dict[str, Shown]:
    return {
        "mode": Report(map(record, ACTIONS), [(row, "Net.body", 1) for row in (0, 0, 1, 2, 3, 4)]),
        "probe": ProbeReport([probed()], 9, [PassedOver("aten::view.default", "views", 5)], 3),
        "diff": comparison,
        "empty": Report([]),
        "nothing varied": ProbeReport([], 9, [], 3),
    }
