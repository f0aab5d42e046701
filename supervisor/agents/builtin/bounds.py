"""Messages that are too large for a line: their long strings are cut in the middle, until they fit."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

LINE_BYTES = 8 * 1024 * 1024
"""Of one message; Ostler ends an agent whose lines are longer than 16 MiB."""

SHORTEST = 256
"""Characters that are left of a string at least, and entries of a list."""


def encode(message: Any) -> bytes:
    """A message as a line."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


def line_of(message: Any, size: int = LINE_BYTES) -> bytes:
    """A message as a line of at most `size` bytes. What is cut says so; ValueError if that is not enough."""
    line = encode(message)
    chars = size // 4
    while len(line) > size:
        if chars < SHORTEST:
            raise ValueError(f"A message of {len(line)} bytes does not fit into {size}.")
        line = encode(shortened(message, chars))
        chars //= 4
    return line


def shortened(value: Any, chars: int) -> Any:
    """`value` with every string that is longer than `chars` cut in its middle, every list and object at its end.

    Data URLs go as a whole: half an image is none.
    """
    if isinstance(value, str):
        if len(value) <= chars:
            return value
        if value.startswith("data:"):
            return "data:,"
        half = chars // 2
        return f"{value[:half]}\n[... {len(value) - 2 * half} characters cut ...]\n{value[-half:]}"
    if isinstance(value, dict):
        return {key: shortened(each, chars) for key, each in islice(value.items(), chars)}
    if isinstance(value, list):
        return [shortened(each, chars) for each in value[:chars]]
    return value
