"""Faults that were found, reported, and not mended yet. Whoever mends one takes its line out of here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

FAILURES: Final[Mapping[str, re.Pattern[str]]] = {
    # A content block's `type` or a tool call's `status` that is an array or an object: no set can be asked.
    "updates": re.compile(r"TypeError: unhashable type.*translate\.py:\d+ (_describe|_opens_again)"),
    # A request target without a slash at its beginning: 500 by Quart, before any route of ours.
    "http-bytes": re.compile(r"AssertionError: b'HTTP/1\.1 500 "),
}
"""By target: what the failure says."""

LOGGED: Final[tuple[re.Pattern[str], ...]] = (
    re.compile(r"TypeError: unhashable type"),  # as in FAILURES; the update is left out, the turn goes on
    re.compile(r"IndexError: string index out of range"),  # a target without a slash
    re.compile(r"UnicodeError: .*(label empty or too long|idna)"),  # a Host of many dots
    # Bytes behind the request for a WebSocket, before it is accepted.
    re.compile(
        r"LocalProtocolError: (Can't send data when our state is ERROR|Received server _SWITCH_UPGRADE)"
    ),
    # A chunked body that is wrong or ends too early, or one by HTTP/1.0; bytes behind a request.
    re.compile(r"h11\._util\.RemoteProtocolError"),
    re.compile(r"LocalProtocolError: can't handle event type Response when role=SERVER"),
    re.compile(r"BusyResourceError: another task is currently sending data"),
)
"""Exceptions in the server's log; all but the first are of malformed requests."""
