"""Messages that clients send to an agent, on either way."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import attrs
import orjson

from gateway.api.requests.reading import AnyUuid, InvalidRequest, Request
from supervisor.acp.schema import NAME_CHARS
from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES
from supervisor.events import Enclosed, ImageContent, Message, Role, TextContent
from supervisor.events.encode import encode
from supervisor.reading.model import ErrorDetail, Flaw, said, wire_name
from supervisor.reading.rules import Form, Limit

if TYPE_CHECKING:
    from gateway.api.contract import Conversation

MAX_URI_CHARACTERS: Final = 8_192
"""Longest URI or name of an attachment: the message's event includes it."""

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""The header by which a message that is sent again is known."""

DIGITS: Final = f"{string.ascii_letters}{string.digits}+/".encode()
"""The alphabet of base64."""


def _user_alone(role: str) -> str:
    if role != "user":
        raise ValueError("only user messages are allowed to be sent to the agent")
    return role


def _base64(data: str) -> str:
    # Decoding takes 15 ms per megabyte; this check takes one.
    digits = data.rstrip("=")
    if len(data) % 4 or len(data) - len(digits) > 2 or digits.encode().translate(None, DIGITS):
        raise ValueError("this is not base64")
    return data


UserRole = Annotated[Role, Form(_user_alone, {"const": "user"})]

Base64 = Annotated[
    str, Limit(min_length=1, max_length=BLOB_BYTES), Form(_base64, {"contentEncoding": "base64"})
]

Uri = Annotated[str, Limit(min_length=1, max_length=MAX_URI_CHARACTERS)]

MediaType = Annotated[str, Limit(min_length=1, max_length=NAME_CHARS)]


class _Block(Request):
    """An ACP content block, sent to the agent unchanged. The message's event has a text in its place."""

    __slots__ = ()
    TAG: ClassVar[str | None] = "type"
    NULL_IS_ABSENT: ClassVar[bool] = True

    @property
    def block(self) -> dict[str, Any]:
        """The block as sent to the agent."""
        return encode(self)

    @property
    def stand_in(self) -> str:
        """A description for people, which stands for it in the event."""
        raise NotImplementedError

    def judge(self) -> Iterable[Flaw]:
        """Not too large."""
        if len(orjson.dumps(self.block)) > BLOB_BYTES:
            yield (), "too_long", f"Input should have at most {BLOB_BYTES} bytes of JSON"


@attrs.frozen(kw_only=True)
class AudioContent(_Block):
    """A sound, for agents with the prompt capability `audio`."""

    type: ClassVar[str] = "audio"

    data: Base64
    mime_type: MediaType = attrs.field(metadata=wire_name("mimeType"))

    @property
    def stand_in(self) -> str:
        """Its type."""
        return f"audio {self.mime_type}"


@attrs.frozen(kw_only=True)
class ResourceLinkContent(_Block):
    """A reference to something that the agent can fetch itself. `size` in bytes."""

    type: ClassVar[str] = "resource_link"

    uri: Uri
    name: Uri
    title: str | None = None
    description: str | None = None
    mime_type: MediaType | None = attrs.field(default=None, metadata=wire_name("mimeType"))
    size: Annotated[int, Limit(ge=0)] | None = None

    @property
    def stand_in(self) -> str:
        """Its name and address."""
        return f"resource_link {self.name} {self.uri}"


@attrs.frozen(kw_only=True)
class EmbeddedResource(Request):
    """Contents: `text`, or `blob` in base64."""

    NULL_IS_ABSENT: ClassVar[bool] = True

    uri: Uri
    mime_type: MediaType | None = attrs.field(default=None, metadata=wire_name("mimeType"))
    text: str | None = None
    blob: Base64 | None = None

    def judge(self) -> Iterable[Flaw]:
        """One of both."""
        if (self.text is None) == (self.blob is None):
            yield (), "value_error", "Value error, give either text or blob"


@attrs.frozen(kw_only=True)
class ResourceContent(_Block):
    """Contents that are sent along, for agents with the prompt capability `embeddedContext`."""

    type: ClassVar[str] = "resource"

    resource: EmbeddedResource

    @property
    def stand_in(self) -> str:
        """Its address."""
        return f"resource {self.resource.uri}"


@attrs.frozen(kw_only=True)
class SendMessageRequest(Request):
    """A user's message and whether the agent is to be run on it."""

    role: UserRole = "user"
    content: tuple[
        TextContent | ImageContent | AudioContent | ResourceLinkContent | ResourceContent, ...
    ] = ()
    run: bool = False

    @property
    def message(self) -> Message:
        """The message."""
        content = [
            Enclosed(text=part.stand_in, block=part.block) if isinstance(part, _Block) else part
            for part in self.content
        ]
        return Message(role=self.role, content=tuple(content))


@attrs.frozen(kw_only=True)
class SendEventRequest(SendMessageRequest):
    """The same for a conversation that is there. Its event has the `id`, if there is one: sent again, it is
    the same message."""

    id: AnyUuid | None = said(None, "Of the message's event. Sent again, it is the same message")


def check_taken(conversation: Conversation, message: Message, where: tuple[str, ...]) -> None:
    """Refuse what the conversation's agent is known not to take. Raises InvalidRequest."""
    errors = [
        ErrorDetail(
            (*where, "content", index),
            "Value error, the agent of this conversation does not take this: it does not declare the prompt "
            f"capability {capability}. Send a text or a link",
            "value_error",
        )
        for index, capability in conversation.not_taken(message)
    ]
    if errors:
        raise InvalidRequest(*errors)


@attrs.frozen(kw_only=True)
class SocketMessage(SendEventRequest):
    """The same on a socket, where it says whose message it is."""

    role: UserRole
