"""The chart of the performance page."""

import re

import ratio_chart
from results import of_gpus, ratio
from sides import ATEN

BAR = re.compile(r'<rect x="(\d+)".* width="(\d+)"')


def test_chart() -> None:
    """Bars of faster families end at 1, those of slower ones begin there; the worst is a dot."""
    results = of_gpus()[-1]
    timed = [(row.family, value) for row in results.rows if (value := ratio(row, ATEN)) is not None]
    svg = ratio_chart.chart(results)
    first, *_, last = ((int(x), int(width)) for x, width in BAR.findall(svg))
    one = round(ratio_chart._place(1))
    assert first[0] < first[0] + first[1] == one == last[0]
    assert set(re.findall(r'text-anchor="end">(\w+)<', svg)) == {family for family, _ in timed}
    assert f'cx="{ratio_chart._place(max(value for _, value in timed)):.0f}"' in svg
