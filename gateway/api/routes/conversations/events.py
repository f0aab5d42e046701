"""Events of a conversation: send a message, read what is there."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import event_ids, json_body
from gateway.api.requests.messages import SendMessageRequest, check_taken
from gateway.api.requests.reading import (
    PAGE_LIMIT,
    Moment,
    PageLimit,
    Query,
    page_limit,
    read_body,
    read_query,
)
from gateway.api.responses import json_response, page_response, raw_json_response, success
from gateway.api.routes.conversations.conversations import UNKNOWN, find
from gateway.api.routing import Route, params_of
from gateway.api.services import Services
from supervisor.events import MessageEvent, completed
from supervisor.journal.queries import Wanted
from supervisor.reading.model import described

TAG: Final = "Events"

PAGE_ID: Final = (
    "next_page_id of the page before. A page may have fewer events than the limit, or none, where many had "
    "to be looked at; only one without next_page_id is the last"
)


MESSAGE: Final = MessageEvent.__name__

NO_KIND: Final = "-"
"""The kind of no event."""


@attrs.frozen(kw_only=True)
class EventsQuery(Query):
    """Which events are meant."""

    kind: str | None = None
    source: str | None = None
    body: str | None = attrs.field(
        default=None, metadata=described("Text that a message says, in upper or lower case")
    )
    timestamp__gte: Moment | None = attrs.field(
        default=None, metadata=described("Naive times are the server's local time")
    )
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

    page_id: str | None = attrs.field(default=None, metadata=described(PAGE_ID))
    limit: PageLimit | None = None
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP"


@attrs.frozen
class EventRoutes:
    """Handlers of `/api/conversations/<id>/events`."""

    services: Services

    async def send(self, conversation_id: str) -> Response:
        """Append a user's message; durable when answered. `run` also runs the agent on it."""
        conversation = await find(self.services, conversation_id)
        sent = read_body(SendMessageRequest, await json_body(request))
        message = sent.message
        check_taken(conversation, message, ("body",))
        await conversation.send(message, run=sent.run)
        return success()

    async def batch(self, conversation_id: str) -> Response:
        """The events of the ids in the body, in that order, null for unknown ones."""
        conversation = await find(self.services, conversation_id)
        ids = event_ids(await json_body(request), self.services.config.max_event_ids)
        # Encoded one by one, so that at most one of them is in memory as objects.
        form = partial(completed, vocabulary=conversation.vocabulary)
        found = await conversation.log.bodies(ids, form)
        return raw_json_response(
            b"[" + b",".join([b"null" if each is None else each for each in found]) + b"]"
        )

    async def get(self, conversation_id: str, event_id: str) -> Response:
        """One event."""
        conversation = await find(self.services, conversation_id)
        form = partial(completed, vocabulary=conversation.vocabulary)
        (found,) = await conversation.log.bodies([event_id], form)
        if found is None:
            raise ApiError(404, f"Event not found: {event_id}")
        return raw_json_response(found)

    async def search(self, conversation_id: str) -> Response:
        """A page of events as they are stored, nulls omitted."""
        conversation = await find(self.services, conversation_id)
        most = self.services.config.max_page
        query = read_query(EventPageQuery, request.args, page_limit(most))
        page = await conversation.log.listing(
            order="desc" if query.sort_order.endswith("_DESC") else "asc",
            page=query.page_id or None,
            limit=query.limit or most,
            **query.filters(),
        )
        return page_response(page.bodies, page.next_page_id)

    async def count(self, conversation_id: str) -> Response:
        """How many events there are."""
        conversation = await find(self.services, conversation_id)
        query = read_query(EventsQuery, request.args)
        return json_response(await conversation.log.count(**query.filters()))

    async def blob(self, conversation_id: str, blob_id: str) -> Response:
        """The uncut form of something large, as the agent gave it: never rendered, always downloaded."""
        conversation = await find(self.services, conversation_id)
        found = await conversation.log.get_blob(blob_id)
        if found is None:
            raise ApiError(404, f"Blob not found: {blob_id}")
        response = Response(found.data, content_type=found.media_type)
        response.headers["Content-Disposition"] = "attachment"
        return response

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/conversations/<conversation_id>/events"
        event = schemas.ref("Event")
        config = self.services.config
        limit = {PAGE_LIMIT: schemas.integer(1, config.max_page, config.max_page)}
        return (
            Route(
                method="POST",
                path=base,
                handler=self.send,
                summary="Send a message",
                tag=TAG,
                body=SendMessageRequest,
                result=schemas.ref("Success"),
                errors={**UNKNOWN, 503: "At capacity (the message is saved), or nothing can be stored now"},
            ),
            Route(
                method="GET",
                path=base,
                handler=self.batch,
                summary="Get events by id",
                tag=TAG,
                body=schemas.array(schemas.STRING, maxItems=config.max_event_ids),
                result=schemas.array(schemas.nullable(event)),
                errors=UNKNOWN,
            ),
            Route(
                method="GET",
                path=f"{base}/search",
                handler=self.search,
                summary="List events page by page",
                tag=TAG,
                query=params_of(EventPageQuery, limit),
                result=schemas.ref("EventPage"),
                errors=UNKNOWN,
            ),
            Route(
                method="GET",
                path=f"{base}/count",
                handler=self.count,
                summary="Count events",
                tag=TAG,
                query=params_of(EventsQuery),
                result={"type": "integer"},
                errors={**UNKNOWN, 503: "Counting took too long"},
            ),
            Route(
                method="GET",
                path="/api/conversations/<conversation_id>/blobs/<blob_id>",
                handler=self.blob,
                summary="Get the full original of truncated content",
                tag=TAG,
                result={"type": "string", "format": "binary"},
                media_type="*/*",
                errors={404: "No such conversation or blob"},
            ),
            Route(
                method="GET",
                path=f"{base}/<event_id>",
                handler=self.get,
                summary="Get one event",
                tag=TAG,
                result=event,
                errors={404: "No such conversation or event"},
            ),
        )
