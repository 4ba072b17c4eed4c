"""The picture of the performance page: a bar for each family, beside ATen's time."""

import math
from collections.abc import Mapping

from results import Results, geometric_mean, ratio
from sides import ATEN

LEFT, RIGHT, HEAD, LINE = 160, 600, 40, 20
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
FASTER, SLOWER, GRID = "#0969da", "#bc4c00", "#d0d7de"


def chart(results: Results) -> str:
    """Return an SVG of detmode's time over ATen's: a bar for the mean, a dot for the worst."""
    ratios: dict[str, list[float]] = {}
    for row in results.rows:
        value = ratio(row, ATEN)
        if value is not None:
            ratios.setdefault(row.family, []).append(value)
    means = {name: geometric_mean(values) or 1.0 for name, values in ratios.items()}
    height = HEAD + LINE * len(means) + 12
    about = f"detmode's time over ATen's nondeterministic kernel, {results.provenance['gpu']}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" width="640" '
            f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12" '
            'fill="#1b1f24">',
            f"<title>{about}</title>",
            f'<rect width="640" height="{height}" rx="8" fill="#fff"/>',
            f'<text x="12" y="16">{about} (dot: worst input)</text>',
            *(_tick(value, height) for value in TICKS),
            *_bars(means, {name: max(values) for name, values in ratios.items()}),
            "</svg>\n",
        ]
    )


def _place(value: float) -> float:
    low, high = math.log(TICKS[0]), math.log(TICKS[-1])
    return LEFT + (RIGHT - LEFT) * (math.log(max(value, TICKS[0])) - low) / (high - low)


def _tick(value: float, height: int) -> str:
    x, width = _place(value), 2 if value == 1 else 1
    return (
        f'<path d="M{x:.0f} {HEAD} V{height - 8}" stroke="{GRID}" stroke-width="{width}"/>'
        f'<text x="{x:.0f}" y="{HEAD - 6}" text-anchor="middle">{value:g}</text>'
    )


def _bars(means: Mapping[str, float], worst: Mapping[str, float]) -> list[str]:
    lines = []
    for number, name in enumerate(sorted(means, key=lambda name: means[name])):
        y, mean = HEAD + LINE * number, means[name]
        begin, end = sorted((_place(1), _place(mean)))
        color = FASTER if mean <= 1 else SLOWER
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{name}</text>',
            f'<rect x="{begin:.0f}" y="{y + 4}" width="{end - begin:.0f}" height="12" '
            f'fill="{color}"/>',
            f'<circle cx="{_place(worst[name]):.0f}" cy="{y + 10}" r="3"/>',
        ]
    return lines
