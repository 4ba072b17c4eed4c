"""Plots of results; needs matplotlib, of the dependency group ``bench``."""

from __future__ import annotations

from pathlib import Path

from results import Results
from sides import ATEN
from tables import ratio


def over_aten(results: Results, path: Path) -> None:
    """Each input of each room: detmode's time over ATen's nondeterministic kernel's.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios: dict[str, list[float]] = {}
    for row in results.rows:
        found = ratio(row, ATEN)
        if found is not None:
            ratios.setdefault(row.room, []).append(found)
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(ratios) + 1.5), layout="constrained")
    for place, values in enumerate(ratios.values()):
        axes.plot(values, [place] * len(values), "o", alpha=0.5)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.set_xscale("log")
    axes.set_xlabel("detmode's time over that of ATen's nondeterministic kernel")
    axes.set_title(results.provenance["gpu"] or "host runner: no measurement of a GPU")
    figure.savefig(path)
    pyplot.close(figure)
