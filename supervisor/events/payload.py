"""JSON of untyped payloads: an agent's tool inputs, contents, state values."""

from __future__ import annotations

from typing import Any, Final

import orjson

from supervisor.tight import tight

MAX_DEPTH: Final = 200
"""Levels of a payload that are kept when it is too deep to be written; orjson writes no more than 254."""
MAX_INTEGER_BITS: Final = 1000
"""Size of an integer that still fits into a double."""
CUT: Final = "..."
"""What stands where something could not be written."""


def dumps(obj: Any) -> bytes:
    """JSON of `obj` on one line.

    What the encoder refuses is tamed first: lone surrogates become `?`, integers beyond 64 bits doubles,
    keys strings, and what is nested too deeply is cut. Agents send such things, and an event must not be
    lost over them. Raises TypeError for what is not a JSON value at all.
    """
    try:
        return tight(orjson.dumps(obj))
    except orjson.JSONEncodeError:
        return tight(orjson.dumps(_tame(obj, MAX_DEPTH)))


def _tame(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if value.bit_length() <= MAX_INTEGER_BITS else CUT
    if isinstance(value, dict):
        inner = depth - 1
        return {_tame(str(key), inner): _tame(each, inner) for key, each in value.items()} if depth else CUT
    if isinstance(value, (list, tuple)):
        return [_tame(each, depth - 1) for each in value] if depth else CUT
    return value
