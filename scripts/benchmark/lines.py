"""Draws lines in panels as SVG, one panel below the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from attrs import frozen

from scripts.benchmark.plot import COLOURS, WIDTH

LINES = ("#2f6fb3", "#b3402e", "#2f7d4f", "#a0761a", "#7a4fa3", "#777777")
LEFT, RIGHT, PANEL_HEIGHT, TITLE, AXIS, TOP = 60, 170, 150, 34, 44, 30
"""Pixels around the lines of a panel, of its words, and above the first one."""

Points = Sequence[tuple[float, float]]


@frozen
class Panel:
    """`lines` by their words; `x` and `y` are the words of the axes. `logarithmic`: both scales are."""

    title: str
    x: str
    lines: Mapping[str, Points]
    logarithmic: bool = False

    def bounds(self) -> tuple[float, float, float, float]:
        xs, ys = zip(*(each for points in self.lines.values() for each in points), strict=True)
        return min(xs), max(xs), min(ys) if self.logarithmic else 0.0, max(ys)


def svg(title: str, panels: Sequence[Panel]) -> str:
    step = TITLE + PANEL_HEIGHT + AXIS
    height = TOP + step * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{COLOURS["text"]}" role="img" aria-label="{escape(title)}">',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += drawn(panel, TOP + step * number + TITLE)
    return "\n".join([*parts, "</svg>", ""])


def drawn(panel: Panel, top: int) -> list[str]:
    left, right, low, high = panel.bounds()
    across = scale(left, right, LEFT, WIDTH - RIGHT, logarithmic=panel.logarithmic)
    up = scale(low, high, top + PANEL_HEIGHT, top, logarithmic=panel.logarithmic)
    bottom = top + PANEL_HEIGHT
    parts = [f'<text x="12" y="{top - 12}" font-size="13">{escape(panel.title)}</text>']
    for value in ticks(low, high, panel.logarithmic):
        y = up(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{COLOURS["grid"]}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.6g}</text>')
    parts += [
        f'<text x="{across(value):.1f}" y="{bottom + 16}" text-anchor="middle">{value:,.6g}</text>'
        for value in ticks(left, right, panel.logarithmic)
    ]
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 32}" text-anchor="middle">'
        f"{escape(panel.x)}</text>"
    )
    for number, (words, points) in enumerate(panel.lines.items()):
        colour = LINES[number]
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT + 10}" y="{top + 12 + 18 * number}" fill="{colour}">'
            f"{escape(words)}</text>"
        )
    return parts


def scale(
    low: float, high: float, first: float, last: float, *, logarithmic: bool
) -> Callable[[float], float]:
    """Where a value is drawn, in pixels."""
    if logarithmic:
        return lambda value: (
            first + (last - first) * math.log(value / low) / math.log(high / low) if value > 0 else first
        )
    return lambda value: first + (last - first) * (value - low) / (high - low)


def ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Round values between these two."""
    if logarithmic:
        return [10.0**each for each in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= raw)
    return [step * each for each in range(math.ceil(low / step), math.floor(high / step) + 1)]
