"""Draws the figures of a run as SVG: how many times better Ostler is than the peer's server."""

from __future__ import annotations

import math
from html import escape

from scripts.benchmark.results import Results, Row, number

WIDTH, ROW_HEIGHT, TOP, BOTTOM = 960, 20, 64, 28
LABELS, VALUES = 340, 190
"""Pixels for the words on the left, and for the figures on the right of the longest bar."""
COLOURS = {"better": "#2f7d4f", "worse": "#b3402e", "grid": "#8888", "text": "#555"}


def svg(results: Results) -> str:
    """One bar for each figure that both have, on a logarithmic scale from 1."""
    rows = [(row, ratio) for row in results.rows if (ratio := row.ratio()) is not None]
    height = TOP + ROW_HEIGHT * len(rows) + BOTTOM
    most = max([10.0, *(ratio for _, ratio in rows)])
    decades = math.ceil(math.log10(most))
    scale = (WIDTH - LABELS - VALUES) / decades
    machine = results.machine
    about = f"{machine['date']}, {machine['processors']} x {machine['processor']}, Python {machine['python']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{COLOURS["text"]}" role="img" aria-label="Ostler compared with the peer">',
        '<text x="12" y="22" font-size="15">How many times better Ostler is than the server of the peer '
        "(logarithmic; figures: Ostler / peer)</text>",
        f'<text x="12" y="40" font-size="11">{escape(about)}</text>',
    ]
    for decade in range(decades + 1):
        x = LABELS + scale * decade
        bottom = height - BOTTOM + 4
        parts.append(f'<path d="M{x:.0f} {TOP - 8}V{bottom}" stroke="{COLOURS["grid"]}" stroke-width="1"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 8}" text-anchor="middle">{10**decade:,}</text>')
    parts += [bar(row, ratio, TOP + ROW_HEIGHT * number_, scale) for number_, (row, ratio) in enumerate(rows)]
    return "\n".join([*parts, "</svg>", ""])


def bar(row: Row, ratio: float, y: int, scale: float) -> str:
    length = max(2.0, scale * math.log10(max(1.0, ratio)))
    colour = COLOURS["better" if ratio >= 1 else "worse"]
    values = f"{number(row.values['ostler'])} / {number(row.values['peer'])} {row.figure.unit}"
    return (
        f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(row.figure.words)}</text>'
        f'<rect x="{LABELS}" y="{y + 2}" width="{length:.1f}" height="{ROW_HEIGHT - 6}" fill="{colour}"/>'
        f'<text x="{LABELS + length + 6:.0f}" y="{y + 13}">x {number(ratio)} ({escape(values)})</text>'
    )
