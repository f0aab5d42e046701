"""Frames that clients send on a socket: messages for the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from gateway.api.errors import DETAIL_CHARACTERS, problem_of
from gateway.api.requests.bodies import TooHeavy, parsed
from gateway.api.requests.messages import SocketMessage, check_taken
from gateway.api.requests.reading import InvalidRequest
from gateway.api.sockets.connection import is_auth_frame
from supervisor.acp.schema import cut
from supervisor.reading.decode import decode
from supervisor.reading.model import Invalid

if TYPE_CHECKING:
    from gateway.api.contract import Conversation


class Rejected(Exception):
    """A frame is refused. `code` and `detail` are for the sender alone."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


async def take(conversation: Conversation, frame: str | bytes | None) -> None:
    """Send one inbound frame to the conversation, always running the agent on it.

    Raises Rejected for an invalid message, and for one that the conversation refuses; unexpected errors
    propagate. Authentication frames are ignored.
    """
    try:
        obj = await parsed(frame if frame is not None else b"")
    except (orjson.JSONDecodeError, TooHeavy) as error:
        raise Rejected(type(error).__name__, str(error)) from None
    if is_auth_frame(obj):
        return
    if isinstance(obj, dict) and obj.get("role") not in (None, "user"):
        raise Rejected("AssertionError", "Only user messages are allowed to be sent to the agent.")
    try:
        message = decode(SocketMessage, obj).message
        check_taken(conversation, message, ())
    except Invalid as error:
        raise Rejected("ValidationError", str(InvalidRequest(*error.errors))) from None
    except InvalidRequest as error:
        raise Rejected("ValidationError", str(error)) from None
    try:
        await conversation.send(message, run=True)
    except Exception as error:
        found = problem_of(error)
        if found is None:
            raise
        raise Rejected(type(error).__name__, cut(str(error), DETAIL_CHARACTERS)) from error
