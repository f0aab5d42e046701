"""Worker threads for large messages, shared by all connections."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import attrs
import trio

from supervisor.acp import jsonrpc
from supervisor.acp.handler import Mask, Result
from supervisor.reading.weight import LARGE_BYTES

LARGE_AT_ONCE: Final = 1
"""How many large frames of all agents are parsed at a time: each of these threads competes with the Trio
thread for the GIL."""


def masked(message: jsonrpc.Message, mask: Mask) -> jsonrpc.Message:
    """Mask notifications and answers; requests stay unchanged."""
    if isinstance(message, jsonrpc.Notification):
        return jsonrpc.Notification(message.method, mask.value(message.params))
    if isinstance(message, jsonrpc.Response):
        result = Result(message.result, message.error).masked(mask)
        return jsonrpc.Response(message.id, result.value, result.error)
    return message


async def encoded(request_id: jsonrpc.Id, result: Any) -> bytes:
    """Encode an answer as a line; in a thread if it contains a long text, such as a file's."""
    encode = partial(jsonrpc.encode_result, request_id, result)
    if isinstance(result, dict) and any(isinstance(v, str) and len(v) > LARGE_BYTES for v in result.values()):
        return await trio.to_thread.run_sync(encode, abandon_on_cancel=True, limiter=work().threads)
    return encode()


@attrs.frozen
class Work:
    """The queue and the threads for large frames, shared by all connections of a Trio run."""

    turns: trio.Lock = attrs.field(factory=trio.Lock)
    threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(LARGE_AT_ONCE))


_shared: trio.lowlevel.RunVar[Work] = trio.lowlevel.RunVar("large frames")


def work() -> Work:
    """Return the `Work` of this Trio run; create it on first use."""
    try:
        return _shared.get()
    except LookupError:
        made = Work()
        _shared.set(made)
        return made
