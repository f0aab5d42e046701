"""Response bodies. JSON is written once, by orjson, or spliced together from bytes that are JSON already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from quart import Response

if TYPE_CHECKING:
    from gateway.api.requests.timestamps import Clock
    from supervisor.acp import TraceLine

JSON = "application/json"

SUCCESS = {"success": True}
"""The answer of operations without a result."""


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON response of plain values."""
    return Response(orjson.dumps(value), status=status, content_type=JSON)


def raw_json_response(body: bytes) -> Response:
    """A response whose body is JSON already."""
    return Response(body, content_type=JSON)


def trace_line(clock: Clock, line: TraceLine) -> dict[str, Any]:
    """A frame between server and agent, as clients read it."""
    return {
        "direction": line.direction,
        "timestamp": clock.date(line.time),
        "size": line.size,
        "text": line.text,
        "process": line.process,
    }


def bare(status: int, headers: Mapping[str, str]) -> Response:
    """A response without a body, and without what describes one."""
    response = Response(b"", status=status, headers=dict(headers))
    del response.headers["Content-Type"]
    if status == 304:  # its length would be that of what is not sent (RFC 9110, 8.6)
        del response.headers["Content-Length"]
    return response


def success() -> Response:
    """`{"success": true}`."""
    return json_response(SUCCESS)


def page_response(bodies: bytes, next_page_id: str | None) -> Response:
    """A page of items that are JSON already, with commas between them, unchanged from the journal."""
    return raw_json_response(
        b"".join((b'{"items":[', bodies, b'],"next_page_id":', orjson.dumps(next_page_id), b"}"))
    )
