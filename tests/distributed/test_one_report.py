"""One report of several ranks: its rows, and who gives it. Here all ranks are this process."""

import json
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from detmode.distributed.one_report import ALONE, DIED, ELSEWHERE, LATE, OneReport
from detmode.process.rank import Rank, has_group, named, rank_and_size, rank_of
from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow

ROW = ReportRow("aten::put_.default", "put", "warn", None, "put_", 3, "train.py:7", "Net.head")
FIRST = Rank(0, 3, range(3), 0, 0, 1, "a run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def give(rank: Rank, *rows: ReportRow, failed: bool = False) -> Report | None:
    return OneReport(rank).give(Report(rows), failed=failed, patience=0)


def test_rows_of_all(folder: Path) -> None:
    """Rows of one line are one row; each names its ranks, and the first rank gives the report."""
    other = replace(ROW, site="train.py:9")
    second = OneReport(replace(FIRST, number=1))
    assert second.give(Report([ROW]), failed=False, patience=0) is None
    assert not second.is_left_to_others
    assert not second.starts_again
    assert give(replace(FIRST, number=2), other, ROW) is None
    report = give(FIRST, ROW)
    assert report is not None
    assert [(row.count, row.ranks) for row in report.records] == [(9, [0, 1, 2]), (3, [2])]
    assert report.records[0].modules == {"Net.head": 9}
    assert report.verdict == "may vary: 12 calls at 2 lines"
    assert not any(folder.iterdir())
    again = Report.from_json(report.to_json())
    assert (again.to_json(), again.missing) == (report.to_json(), {})
    (line,) = (text for text in report.text().splitlines() if text.split()[:1] == ["9"])
    assert line.endswith("  ranks 0-2")
    assert re.search(r"<td[^>]*>0-2", report.to_html())


def test_ranks_without_rows(folder: Path) -> None:
    """The report names them with the reason; who comes too late gives a report of its own."""
    late = OneReport(replace(FIRST, number=1))
    late._folder.path.joinpath("rank1.lock").unlink()  # of one that has not started
    OneReport(replace(FIRST, number=2))  # a lock that this process holds is free for itself
    report = give(FIRST, ROW)
    assert report is not None
    assert report.missing == {LATE: [1], DIED: [2]}
    assert report.verdict.endswith("(without ranks 1-2)")
    assert f"rank 1: {LATE}" in report.to_html()
    own = late.give(Report([ROW]), failed=False, patience=0)
    assert own is not None
    assert own.missing == {ALONE: [0, 2]}
    assert not any(folder.iterdir())


def test_attempts(folder: Path) -> None:
    """A failed attempt leaves its rows for the next one, whose report has them all."""
    ranks = [replace(FIRST, number=number, attempts=2) for number in (2, 1, 0)]
    for rank in ranks[:2]:
        give(rank, ROW)
    first = OneReport(ranks[2])
    assert first.give(Report([ROW]), failed=True, patience=0) is not None
    assert first.starts_again
    for rank in ranks[:2]:
        give(replace(rank, attempt=1), ROW)
    last = OneReport(replace(ranks[2], attempt=1))
    report = last.give(Report([ROW]), failed=False, patience=0)
    assert report is not None
    assert not last.starts_again
    assert [(row.count, row.ranks) for row in report.records] == [(18, [0, 1, 2])]
    assert not any(folder.iterdir())


def test_folder_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not used: each rank then gives its own report."""
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    report = give(FIRST, ROW)
    assert report is not None
    assert report.missing == {ALONE: [1, 2]}


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_a_folder_that_others_have_prepared(
    trap: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written through a link, or where others may write; the error says what to do."""
    expected = OneReport(FIRST)._folder
    expected.remove()
    ours = folder / "ours"
    ours.mkdir(mode=0o700)
    (ours / "rank0.json").write_text("precious")
    if trap == "link":
        expected.path.symlink_to(ours)
    elif trap == "open":
        expected.path.mkdir()
        expected.path.chmod(0o777)
    else:
        expected.path.touch()
    report = give(FIRST, ROW)
    assert report is not None
    assert report.missing == {ALONE: [1, 2]}
    assert (ours / "rank0.json").read_text() == "precious"
    assert [path.name for path in ours.iterdir()] == ["rank0.json"]
    assert trap != "open" or not any(expected.path.iterdir())
    assert "remove it, or set TMPDIR to a folder of this user" in caplog.text
    assert str(expected.path) in caplog.text


def test_nodes(run_command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each node reports its ranks, to files of its own, and names the others."""
    environment = {"RANK": 5, "WORLD_SIZE": 6, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    for name, value in {**environment, "GROUP_RANK": 5}.items():
        monkeypatch.setenv(name, str(value))
    done = run_command("run", "--report", "report.json", "-c", "import torch; torch.ones(2)")
    assert done.returncode == 0
    whole = json.loads((tmp_path / "report.node5.json").read_text())
    assert whole["missing"] == {ELSEWHERE: [0, 1, 2, 3, 4]}
    assert whole["world_size"] == 6
    assert whole["verdict"] in done.stderr
    assert whole["verdict"].endswith("(without ranks 0-4)")
    assert f"detmode: note: ranks 0-4: {ELSEWHERE}" in done.stderr.splitlines()


def test_probe_of_a_rank(run_command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Probes are not joined: each rank has a heading and files of its own."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run_command("probe", "--report", "probe.json", "-c", "import torch; torch.ones(2).neg()")
    assert done.returncode == 0
    assert "rank 1" in done.stderr.splitlines()
    assert [path.name for path in tmp_path.glob("probe*")] == ["probe.rank1.json"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_processes_that_are_not_recorded(run_command, tmp_path: Path) -> None:
    """The end says how many there were."""
    program = (
        "from torch.multiprocessing import start_processes\n"
        "start_processes(print, nprocs=2, start_method='fork')"
    )
    done = run_command("record", "-o", "run", "-c", program)
    assert done.returncode == 0
    assert "note: not recorded: 2 processes" in done.stderr


def test_a_rank_by_its_environment() -> None:
    """Launchers tell it; what is left out is taken to be one node, and the first attempt."""
    assert rank_of({}) is None
    alone = rank_of({"RANK": "1", "WORLD_SIZE": "3"})
    assert alone is not None
    assert (alone.node, alone.name, alone.is_last_attempt) == (range(3), "rank1", True)
    elastic = {
        **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
        **{"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "2"},
    }
    one = rank_of({**elastic, "TORCHELASTIC_ERROR_FILE": "/logs/a/attempt_0/1/error.json"})
    other = rank_of({**elastic, "TORCHELASTIC_ERROR_FILE": "/logs/a/attempt_1/0/error.json"})
    assert one is not None
    assert other is not None
    assert (one.node, one.node_number, one.name) == (range(4, 8), 1, "rank5.attempt1")
    assert not one.is_last_attempt
    assert one.run == other.run != alone.run
    assert named([2]) == "rank 2"
    assert named([6, 0, 1, 2, 3]) == "ranks 0-3, 6"


def test_a_rank_by_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's process group counts, and what the launcher says until there is one."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert rank_and_size() == (None, None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not has_group()
    assert rank_and_size() == (1, 2)
    distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    try:
        assert has_group()
        assert rank_and_size() == (3, 8)
    finally:
        distributed.destroy_process_group()
    assert rank_and_size() == (1, 2)
