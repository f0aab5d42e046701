"""Messages as lines that every reader accepts: not too long, not too deep, and without NaN.

What is too long is cut: long strings in their middle, long lists at their end.
"""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import Any

LINE_BYTES = 8 * 1024 * 1024
"""Bytes of one message; Ostler ends an agent whose lines are longer than 16 MiB."""

DEPTH = 100
"""Levels of nested objects and lists; deeper values come only from a model."""

SHORTEST = 256
"""Characters of a string, and entries of a list, that are kept at least."""


def line_of(message: Any, size: int = LINE_BYTES) -> bytes:
    """Return a message as a line of at most `size` bytes. Cuts are marked. Raises ValueError if that is not
    enough."""
    try:
        line = _encode(message)
    except (RecursionError, ValueError):  # too deep, or not a number
        message = shortened(message, size)
        line = _encode(message)
    chars = size // 4
    while len(line) > size:
        if chars < SHORTEST:
            raise ValueError(f"A message of {len(line)} bytes does not fit into {size}.")
        line = _encode(shortened(message, chars))
        chars //= 4
    return line


def shortened(value: Any, chars: int, depth: int = DEPTH) -> Any:
    """Return `value` with strings longer than `chars` cut in their middle, and lists and objects at their
    end.

    A long data URL is dropped as a whole: half an image is useless. What JSON cannot express is null.
    """
    if isinstance(value, str):
        return _cut(value, chars)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list) and depth == 0:
        return "[...]"
    if isinstance(value, dict):
        return {key: shortened(each, chars, depth - 1) for key, each in islice(value.items(), chars)}
    if isinstance(value, list):
        return [shortened(each, chars, depth - 1) for each in value[:chars]]
    return value


def _encode(message: Any) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace") + b"\n"


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    if text.startswith("data:"):
        return "data:,"
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
