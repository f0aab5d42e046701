"""Text for a terminal: tables, times, sizes. Control sequences in an agent's output are neutralised."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x1b\\|\x07|$)|[ -/]*[0-~])|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
"""Escape sequences (colours, titles, ...) and control characters, but for tab and line feed."""

CODES: Final = re.compile(r"(?:\[Errno -?\d+\]|^\[\d{1,6}\]|\[-\d{1,6}\]) (?:Internal error: )?")
"""Numbers of errors, of the system and of JSON-RPC, and the words of theirs that say nothing."""

ELLIPSIS: Final = "…"
GAP: Final = "  "

LEAST_COLUMNS: Final = 24
"""Columns of a table's last column, a title, that other columns make room for: some words."""

FOLD_COLUMNS: Final = 80
"""Columns of a terminal that does not say how many it has."""

SHORT_ID: Final = 8

CENT = PERCENT = 0.01

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


def clean(text: str) -> str:
    """The text without anything that a terminal would obey."""
    return ESCAPES.sub("", text)


def one_line(text: str) -> str:
    """The text, cleaned, on one line."""
    return " ".join(clean(text).split())


def plain(value: Any, *, inside: bool = False) -> str:
    """A JSON value for people, in one line: members as `name: value`, and of lists below these the length."""
    if isinstance(value, str) and not inside:
        return value
    if isinstance(value, Mapping) and value:
        shown = (f"{key}: {plain(each, inside=True)}" for key, each in value.items() if each not in ([], {}))
        return ", ".join(shown)
    if isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        if inside:
            return "1 entry" if len(value) == 1 else f"{len(value)} entries"
        return "; ".join(plain(each, inside=True) for each in value)
    if isinstance(value, str):
        return value
    text: str = json.dumps(value, ensure_ascii=False)
    return text


def without_codes(text: str) -> str:
    """An error for a person: what it says, without the code of the system or the protocol."""
    return CODES.sub("", text)


def width_of(text: str) -> int:
    """The columns that it takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def cut(text: str, width: int | None) -> str:
    """The text in at most so many columns; None means as many as it takes."""
    if width is None or width_of(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while width_of(kept) > width - 1:
        kept = kept[:-1]
    return kept + ELLIPSIS


def folded(text: str, stream: TextIO) -> str:
    """A line for this stream: on a terminal it is folded at words."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return text
    return textwrap.fill(text, width or FOLD_COLUMNS, break_long_words=False, break_on_hyphens=False)


def terminal_width() -> int | None:
    """The terminal's columns; None if standard output is not a terminal, so that nothing is cut off."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    right: frozenset[str] = frozenset(),
    dropped: Sequence[str] = (),
) -> list[str]:
    """Lines with aligned columns, cut to the width. Columns named in `right` are aligned there.

    Those in `dropped` go, in that order, while the last column would have less than LEAST_COLUMNS.
    """
    cells = [list(header), *([one_line(cell) for cell in row] for row in rows)]
    widths = {name: max(width_of(row[column]) for row in cells) for column, name in enumerate(header)}
    least = {**widths, header[-1]: min(widths[header[-1]], LEAST_COLUMNS)}
    for name in dropped:
        if width is None or sum(least.values()) + len(GAP) * (len(least) - 1) <= width:
            break
        del least[name]
    lines = []
    for row in cells:
        parts = []
        for name, cell in zip(header, row, strict=True):
            if name in least:
                padding = " " * (widths[name] - width_of(cell))
                parts.append(padding + cell if name in right else cell + padding)
        lines.append(cut(GAP.join(parts).rstrip(), width))
    return lines


def pairs(found: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """A line for each pair of a name and a text, the texts aligned and cut to the width."""
    column = max(len(name) for name, _ in found) + 2
    return [cut(f"{name + ':':<{column}}{one_line(text)}", width) for name, text in found]


def distinct_length(ids: Sequence[str]) -> int:
    """How many characters of each id are shown: SHORT_ID, or more where two would look the same."""
    length = SHORT_ID
    while len({each[:length] for each in ids}) < len(ids):
        length += 1
    return length


def duration(seconds: float | None) -> str:
    """Two figures at the most: `7s`, `3m12s`, `5h03m`, `12d4h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR}h"


def size(count: int | None) -> str:
    """Bytes in powers of 1024 with three figures: `812K`, `1.4M`, `2.0G`; `-` for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "K", "M", "G"):
        if value < 1000 or unit == "G":
            break
        value /= 1024
    return f"{value:.1f}{unit}" if value < 10 and unit != "B" else f"{value:.0f}{unit}"


def number(value: int | None) -> str:
    """A count or an id, to its last figure; `-` for None."""
    return "-" if value is None else str(value)


def amount(count: int) -> str:
    """A large count in thousands: `950`, `12k`, `3.4M`."""
    if count < 1000:
        return str(count)
    value, unit = (count / 1e3, "k") if count < 999_500 else (count / 1e6, "M")
    return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"


def money(costs: Mapping[str, float]) -> str:
    """What was paid, by currency: `$0.42`, `$0.42 + 1.00 EUR`; `-` for nothing."""
    return " + ".join(_price(cost, name) for name, cost in costs.items()) or "-"


def used(stats: Mapping[str, Any]) -> str:
    """What a conversation has used: `12,034 tokens, 8% of the context, $0.31`; empty where nothing is known.

    `stats` is as the server has it, with the figures of each model.
    """
    tokens, context = 0, ""
    cost, currency = 0.0, "USD"
    for each in (stats.get("usage_to_metrics") or {}).values():
        figures = each.get("accumulated_token_usage") or {}
        tokens += int(figures.get("prompt_tokens") or 0) + int(figures.get("completion_tokens") or 0)
        cost += float(each.get("accumulated_cost") or 0)
        currency = str(each.get("cost_currency") or currency)
        part = int(figures.get("per_turn_token") or 0) / (figures.get("context_window") or 1)
        context = (
            f"{part:.0%} of the context" if figures.get("context_window") and part >= PERCENT else context
        )
    price = _price(cost, currency) if cost else ""
    return ", ".join(filter(None, (f"{tokens:,} tokens" if tokens else "", context, price)))


def _price(cost: float, currency: str) -> str:
    figure = f"{cost:.{2 if cost >= CENT else 4}f}"
    return f"${figure}" if currency == "USD" else f"{figure} {one_line(currency)}"
