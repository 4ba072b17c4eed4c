"""Pictures of results; needs matplotlib, of the dependency group ``bench``.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; markers and lines
differ too.
"""

import math
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import matplotlib
from contention import KINDS
from results import Results, ratio, share
from sides import ATEN, NATIVE, OURS, Row
from timing import Spread

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
GREY, PALE = "#666666", "#dddddd"
SIDES = {OURS: (BLUE, "o"), ATEN: (ORANGE, "s"), NATIVE: (GREEN, "^")}
GOALS = (1.0, 0.6)
"""Shares of the copy's bandwidth that are drawn as lines."""


def draw(results: Results, folder: Path) -> list[Path]:
    """Write every picture into the folder; each of what was timed, without what failed.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in results.rows if row.failure is None]
    pictures: dict[str, Callable[[list[Row]], Figure]] = {
        "over_aten": over_aten,
        "roofline": roofline,
        "contention": contended,
    }
    found = []
    with matplotlib.rc_context({"svg.hashsalt": "detmode", "font.size": 9}):
        for name, make in pictures.items():
            figure = make(rows)
            figure.suptitle(results.provenance["gpu"] or "host runner: no measurement of a GPU")
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            pyplot.close(figure)
            found.append(path)
    return found


def _by_family(rows: list[Row]) -> dict[str, list[Row]]:
    family = attrgetter("family")
    return {name: list(own) for name, own in groupby(sorted(rows, key=family), family)}


def over_aten(rows: list[Row]) -> Figure:
    """Each input of each family: detmode's time over ATen's nondeterministic kernel's."""
    groups = _by_family([row for row in rows if ratio(row, ATEN) is not None])
    figure, axes = pyplot.subplots(figsize=(8, 0.28 * len(groups) + 1.5), layout="constrained")
    for place, group in enumerate(groups.values()):
        for own, colour, marker in ((True, BLUE, "o"), (False, ORANGE, "x")):
            ratios = [ratio(row, ATEN) for row in group if (not row.contention) is own]
            axes.plot(ratios, [place] * len(ratios), marker, color=colour, alpha=0.7, markersize=5)
    axes.plot([], [], "o", color=BLUE, label="the sample's own indices")
    axes.plot([], [], "x", color=ORANGE, label="other contention")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.grid(color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("detmode's time over that of ATen's nondeterministic kernel; left is faster")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def roofline(rows: list[Row]) -> Figure:
    """Each input: the share of a copy's bandwidth that is reached, over the bytes that it moves."""
    groups = _by_family([row for row in rows if share(row) is not None and not row.contention])
    figure, panels = _panels(len(groups), 5, sharex=True, sharey=True)
    for axes, (family, group) in zip(panels, groups.items()):
        axes.plot(
            [row.n_bytes for row in group],
            [share(row) for row in group],
            "o",
            color=BLUE,
            markersize=4,
            alpha=0.7,
        )
        for goal, line in zip(GOALS, ("-", "--")):
            axes.axhline(goal, color=GREY, linewidth=0.9, linestyle=line, zorder=1)
        axes.set_title(family, fontsize=8)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    figure.supxlabel("bytes: inputs read once and outputs written once")
    figure.supylabel("share of a copy's bandwidth; lines at 100 % and 60 %")
    return figure


def contended(rows: list[Row]) -> Figure:
    """Each input with varied contention: ours beside ATen's and PyTorch's deterministic path."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row.contention in KINDS:
            groups.setdefault((row.op, row.sample), {})[row.contention] = row
    figure, panels = _panels(len(groups), 5, sharex=True)
    for axes, ((op, sample), own) in zip(panels, groups.items()):
        _contended(axes, own)
        axes.set_title(f"{op.removeprefix('aten::')}\n{sample}", fontsize=7)
    lines = [
        Line2D([], [], color=colour, marker=marker, label=side)
        for side, (colour, marker) in SIDES.items()
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=3)
    figure.supylabel("microseconds")
    return figure


def _contended(axes: Axes, own: dict[str, Row]) -> None:
    for side, (colour, marker) in SIDES.items():
        times = [(kind, own[kind].times.get(side)) for kind in KINDS if kind in own]
        found = [
            (KINDS.index(kind), time.median * 1e6)
            for kind, time in times
            if isinstance(time, Spread)
        ]
        if found:
            axes.plot(*zip(*found), f"{marker}-", color=colour, markersize=4, linewidth=1.2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Whole decades: else the only labels are those of other axes.
    axes.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
    axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(range(len(KINDS)), KINDS)
    axes.set_xlim(-0.3, len(KINDS) - 0.7)


def _panels(number: int, columns: int, **shared: bool) -> tuple[Figure, list[Axes]]:
    """A picture of so many panels."""
    height = max(1, -(-number // columns))
    size = (2.2 * columns, 1.7 * height + 1)
    figure, grid = pyplot.subplots(
        height, columns, figsize=size, layout="constrained", squeeze=False, **shared
    )
    panels = list(grid.flat)
    for axes in panels[:number]:
        axes.tick_params(labelsize=7)
        axes.grid(color=PALE, linewidth=0.5)
        axes.set_axisbelow(True)
    for axes in panels[number:]:
        axes.set_visible(False)
    return figure, panels[:number]
