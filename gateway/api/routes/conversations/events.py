"""Events of a conversation: send a message, read what is there."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import event_ids, event_ids_schema
from gateway.api.requests.messages import IDEMPOTENCY_KEY, SendEventRequest, check_taken
from gateway.api.requests.reading import (
    InvalidRequest,
    Moment,
    PageLimit,
    Query,
)
from gateway.api.responses import page_response
from gateway.api.routes.conversations.conversations import ONE, UNKNOWN
from gateway.api.routing import Group, Param
from gateway.api.services import Services
from supervisor.events import MessageEvent, completed
from supervisor.journal.queries import Wanted
from supervisor.reading.model import ErrorDetail, said

if TYPE_CHECKING:
    from gateway.api.contract import Conversation, View

TAG: Final = "Events"
EVENT: Final = schemas.ref("Event")

PAGE_ID: Final = (
    "next_page_id of the page before. A page may have fewer events than the limit, or none, where many had "
    "to be looked at; only one without next_page_id is the last"
)


MESSAGE: Final = MessageEvent.__name__

KEY_CHARACTERS: Final = 255
KEY_SAYS: Final = "A text of the client's for this message. Sent again with it, it is the same message"

NO_KIND: Final = "-"
"""The kind of no event."""


@attrs.frozen(kw_only=True)
class EventsQuery(Query):
    """Which events are meant."""

    kind: str | None = None
    source: str | None = None
    body: str | None = said(None, "Text that a message says, in upper or lower case")
    timestamp__gte: Moment | None = said(None, "Naive times are the server's local time")
    timestamp__lt: Moment | None = None

    def filters(self) -> Wanted:
        """The journal's."""
        # Clients may send the dotted path of their own class; its last part is the kind.
        kind = self.kind.rpartition(".")[2] if self.kind else None
        if self.body:
            # Only messages have text to search, so a search of any other kind finds nothing.
            kind = NO_KIND if kind not in (None, MESSAGE) else MESSAGE
        return {
            "kind": kind,
            "source": self.source,
            "text": self.body or None,
            "since": self.timestamp__gte,
            "before": self.timestamp__lt,
        }


@attrs.frozen(kw_only=True)
class EventPageQuery(EventsQuery):
    """A page of them."""

    page_id: str | None = said(None, PAGE_ID)
    limit: PageLimit | None = None
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP"


_one: Final = Group(TAG, ONE, UNKNOWN)


@_one(
    "POST /events",
    headers=(Param(IDEMPOTENCY_KEY, {**schemas.STRING, "maxLength": KEY_CHARACTERS}, description=KEY_SAYS),),
    body=SendEventRequest,
    example={"content": [{"type": "text", "text": "Please write a file."}], "run": True},
    errors={503: "At capacity (the message is saved), or nothing can be stored now"},
)
async def send(conversation: Conversation, body: SendEventRequest) -> None:
    """Send a message.

    The message is stored when the answer comes, and with `run` the agent takes it up. Sent twice, it is two
    messages, unless both have the same `id`, or the same `Idempotency-Key`.
    """
    message = body.message
    check_taken(conversation, message, ("body",))
    event_id = body.id or _by_key(conversation.id, request.headers.get(IDEMPOTENCY_KEY))
    await conversation.send(message, run=body.run, event_id=event_id)


def _by_key(conversation_id: str, key: str | None) -> str | None:
    """The id of the event of a message that is sent under this key: the same one each time, in this
    conversation alone. Raises InvalidRequest."""
    if not key:
        return None
    if len(key) > KEY_CHARACTERS:
        msg = f"Value should have at most {KEY_CHARACTERS} characters"
        raise InvalidRequest(ErrorDetail(("header", IDEMPOTENCY_KEY), msg, "string_too_long"))
    return str(uuid.uuid5(uuid.UUID(conversation_id), key))


@_one(
    "GET /events",
    anywhere=True,
    body=event_ids_schema,
    example=["01a20170-0000-7000-8000-000000000000"],
    result=schemas.array(schemas.nullable(EVENT)),
)
async def batch(services: Services, conversation: View, json: Any) -> bytes:
    """Get events by id.

    The body is a list of ids. The answer has the events in their order, and null for each that is unknown.
    """
    ids = event_ids(json, services.config.max_event_ids)
    # Encoded one by one, so that at most one of them is in memory as objects.
    form = partial(completed, vocabulary=conversation.vocabulary)
    found = await conversation.log.bodies(ids, form)
    return b"[" + b",".join([b"null" if each is None else each for each in found]) + b"]"


@_one("GET /events/search", query=EventPageQuery, result=schemas.ref("EventPage"), anywhere=True)
async def search(services: Services, conversation: View, query: EventPageQuery) -> Response:
    """List events page by page.

    Oldest first, unless `sort_order` says otherwise, as they are stored and without nulls. A page may have
    fewer events than the limit: only one without `next_page_id` is the last.
    """
    page = await conversation.log.listing(
        order="desc" if query.sort_order.endswith("_DESC") else "asc",
        page=query.page_id or None,
        limit=query.limit or services.config.max_page,
        **query.filters(),
    )
    return page_response(page.bodies, page.next_page_id)


@_one(
    "GET /events/count",
    anywhere=True,
    query=EventsQuery,
    result={"type": "integer"},
    errors={503: "Counting took too long"},
)
async def count(conversation: View, query: EventsQuery) -> int:
    """Count events.

    Takes the filters of the search. It is refused (503) where counting takes too long.
    """
    return await conversation.log.count(**query.filters())


@_one(
    "GET /blobs/<blob_id>",
    anywhere=True,
    result={"type": "string", "format": "binary"},
    media_type="*/*",
    errors={404: "No such conversation or blob"},
)
async def blob(conversation: View, blob_id: str) -> Response:
    """Get the full original of truncated content.

    An event that was cut names the blob with the whole. It is as the agent gave it, and sent as a download.
    """
    found = await conversation.log.get_blob(blob_id)
    if found is None:
        raise ApiError(404, f"Blob not found: {blob_id}")
    headers = {"Content-Disposition": "attachment"}
    return Response(found.data, content_type=found.media_type, headers=headers)


@_one("GET /events/<event_id>", result=EVENT, errors={404: "No such conversation or event"}, anywhere=True)
async def get(conversation: View, event_id: str) -> bytes:
    """Get one event.

    The answer is the event as it is stored. An event does not change.
    """
    form = partial(completed, vocabulary=conversation.vocabulary)
    (found,) = await conversation.log.bodies([event_id], form)
    if found is None:
        raise ApiError(404, f"Event not found: {event_id}")
    return found


GROUPS: Final = (_one,)
