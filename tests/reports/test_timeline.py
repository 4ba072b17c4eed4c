"""Timelines: the calls of a run in their order, in lanes of modules."""

import pytest
import torch

from detmode import DeterministicMode
from detmode.mode.row_counter import RECENT, ModuleCalls, _Course
from detmode.reports.timeline import NO_MODULE, timeline_of
from tests.reports.rows import record


def test_calls_of_one_place_are_counted_together() -> None:
    """A column has the calls of each group at its place, the most serious first."""
    calls = [("Net", "good", 240), ("Net", "good", 1), ("Net", "bad", 239)]
    (lane,) = timeline_of(calls, 480, ["bad", "good"], "calls").lanes
    assert list(lane.columns) == [
        (0, (("good", 240),)),
        (120, (("bad", 239), ("good", 1))),
    ]
    assert lane.counts == (("bad", 239), ("good", 241))


def test_course_of_a_long_run_is_small() -> None:
    """However many calls a run makes, none is lost, and their order stays to a 1000th of it."""
    course = _Course()
    quarters = [
        [ModuleCalls(record("native"), f"Net.{module}") for module in range(3)] for _ in range(4)
    ]
    for call in range(100_000):
        course.latest.append(quarters[call * 4 // 100_000][call % 3])
        if len(course.latest) >= RECENT:
            course.shorten()
    parts = course.parts()
    assert len(parts) < 3 * 2048 + 8192
    assert sum(count for _, count in parts) == 100_000
    place, begins = 0, {}
    for calls, count in parts:
        begins.setdefault(next(n for n, each in enumerate(quarters) if calls in each), place)
        place += count
    assert begins == pytest.approx({0: 0, 1: 25_000, 2: 50_000, 3: 75_000}, abs=100)


def test_lanes_of_deep_modules() -> None:
    """However deep modules are, their lanes are put together as deep as few enough allow."""
    deep = ".x" * 10_000
    calls = [(f"Net.{i % 9}.{i % 90}{deep}", "a", 1) for i in range(90)]
    timeline = timeline_of(calls, len(calls), "ab", "calls")
    assert [lane.name for lane in timeline.lanes] == [f"Net.{i}" for i in range(9)]
    assert timeline.calls == 90


def test_timeline_of_a_long_run_is_small() -> None:
    """Neither many calls nor many modules make it larger than can be drawn; none is lost."""
    calls = [(f"Net.block{i % 7}.layer{i % 100}", "ab"[i % 2], 1) for i in range(50_000)]
    timeline = timeline_of(calls, len(calls), "ab", "calls")
    assert timeline.calls == 50_000
    assert {lane.name for lane in timeline.lanes} == {f"Net.block{i}" for i in range(7)}
    assert sum(len(lane.columns) for lane in timeline.lanes) <= 7 * 240


def test_mode_reports_its_calls_in_order() -> None:
    """The timeline of a mode's report follows the calls, not the rows."""
    net = torch.nn.Sequential(
        *(torch.nn.Upsample(scale_factor=2, mode="bilinear") for _ in range(2))
    )
    with DeterministicMode(simulate="cuda") as mode:
        for _ in range(2):
            net(torch.ones(1, 1, 2, 2, requires_grad=True)).sum().backward()
            torch.zeros(3).index_add_(0, torch.tensor([0, 0]), torch.ones(2))
    timeline = mode.report().page().timeline
    assert timeline.calls == sum(row.count for row in mode.records) == 6
    lanes = {lane.name: [place for place, _ in lane.columns] for lane in timeline.lanes}
    assert lanes == {"Sequential.1": [0, 3], "Sequential.0": [1, 4], NO_MODULE: [2, 5]}
