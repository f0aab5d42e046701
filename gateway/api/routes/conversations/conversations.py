"""Conversations: create, find, change, drive, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.deletion import delete
from gateway.api.requests.bodies import (
    ConfirmationResponseRequest,
    SetConfirmationPolicyRequest,
    SetSecurityAnalyzerRequest,
    UpdateConversationRequest,
    UpdateSecretsRequest,
    json_body,
)
from gateway.api.requests.limits import admit
from gateway.api.requests.reading import (
    PAGE_LIMIT,
    AnyUuid,
    PageLimit,
    Query,
    attempt_body,
    dashed_uuid,
    page_limit,
    path_uuid,
    read_body,
    read_query,
    refuse,
)
from gateway.api.requests.secret_sources import resolve_secrets
from gateway.api.requests.start_request import StartConversationRequest, read_start_request
from gateway.api.requests.unhidden import warn
from gateway.api.responses import json_response, page_response, success
from gateway.api.routing import Route, params_of
from gateway.api.services import Services
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.journal.errors import LogDeleted
from supervisor.reading.model import Errors, described
from supervisor.reading.rules import Items
from supervisor.reading.shapes import as_json

if TYPE_CHECKING:
    from gateway.api.contract import Conversation


MAX_IDS: Final = 99
"""Conversations of one `?ids=` request; the wire's limit."""

Status = Literal[
    "idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting"
]

UNKNOWN: Final = {404: "No such conversation"}
AT_CAPACITY: Final = "At capacity; Retry-After gives the seconds to wait"
TAG: Final = "Conversations"


def own_origins() -> frozenset[str]:
    """The origins under which the current client knows this server; a proxy may terminate TLS."""
    return frozenset(f"{scheme}://{request.host}" for scheme in ("http", "https"))


async def find(services: Services, conversation_id: str) -> Conversation:
    """The conversation of a path. Raises Invalid (no UUID) or UnknownConversation."""
    return await services.supervisor.get(path_uuid(conversation_id, "conversation_id"))


@attrs.frozen(kw_only=True)
class ConversationBatchQuery(Query):
    """Which conversations are meant, by id."""

    ids: Annotated[tuple[AnyUuid, ...], Items(max_length=MAX_IDS)]


@attrs.frozen(kw_only=True)
class ConversationsQuery(Query):
    """Which conversations are meant, by status."""

    status: Status | None = None


@attrs.frozen(kw_only=True)
class ConversationPageQuery(ConversationsQuery):
    """A page of them."""

    page_id: str | None = attrs.field(default=None, metadata=described("next_page_id of the page before"))
    limit: PageLimit | None = None
    sort_order: Literal["CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC"] = "CREATED_AT_DESC"


@attrs.frozen
class ConversationRoutes:
    """Handlers of `/api/conversations`, except for events."""

    services: Services

    async def create(self) -> Response:
        """201 for a new conversation, 200 for one that is there already under the given id."""
        body = await json_body(request)
        start = await read_start_request(body, self.services, own_origins())
        await admit(self.services, start.conversation_id)
        conversation, created = await self.services.supervisor.create(start)
        info = await conversation.durable_info()
        if created and self.services.webhooks is not None:
            self.services.webhooks.tell(info)
        return warn(json_response(info, 201 if created else 200), start.secrets)

    async def _tell(self, conversation: Conversation) -> None:
        """Send the state of a conversation that a client has changed to the webhooks."""
        if self.services.webhooks is not None:
            self.services.webhooks.tell(await conversation.durable_info())

    async def get(self, conversation_id: str) -> Response:
        """One conversation."""
        return json_response(await (await find(self.services, conversation_id)).durable_info())

    async def batch(self) -> Response:
        """The conversations named by `ids`, in that order, null for unknown ones."""
        dashed = read_query(ConversationBatchQuery, request.args).ids
        found: dict[str, dict[str, Any] | Exception | None] = {}
        async with trio.open_nursery() as nursery:
            for each in set(dashed):
                nursery.start_soon(self._look_up, each, found)
        failed = next((value for value in found.values() if isinstance(value, Exception)), None)
        if failed is not None:
            raise failed
        return json_response([found[each] for each in dashed])

    async def _look_up(
        self, conversation_id: str, found: dict[str, dict[str, Any] | Exception | None]
    ) -> None:
        """Concurrently: each may wait a moment until its state is durable."""
        try:
            found[conversation_id] = await (
                await self.services.supervisor.get(conversation_id)
            ).durable_info()
        except (UnknownConversation, LogDeleted):
            found[conversation_id] = None
        except Exception as error:  # noqa: BLE001 - raised by who asked for it
            found[conversation_id] = error

    async def search(self) -> Response:
        """A page of conversations. The cursor is inclusive; an unknown one starts from the beginning."""
        most = self.services.config.max_page
        query = read_query(ConversationPageQuery, request.args, page_limit(most))
        page = await self.services.supervisor.listing(
            status=query.status,
            order=query.sort_order.lower(),
            page=dashed_uuid(query.page_id or ""),
            limit=query.limit or most,
        )
        next_page_id = page.next_page_id.replace("-", "") if page.next_page_id else None
        return page_response(page.bodies, next_page_id)

    async def count(self) -> Response:
        """How many conversations there are."""
        status = read_query(ConversationsQuery, request.args).status
        return json_response(await self.services.supervisor.count(status=status))

    async def update(self, conversation_id: str) -> Response:
        """Change the title, replace the tags."""
        conversation = await find(self.services, conversation_id)
        change = read_body(UpdateConversationRequest, await json_body(request))
        if change.title is not None:
            await conversation.changes.set_title(change.title)
        if change.tags is not None:
            await conversation.changes.set_tags(dict(change.tags))
        await self._tell(conversation)
        return success()

    async def delete(self, conversation_id: str) -> Response:
        """Stop and forget a conversation with all its events."""
        await delete(self.services, path_uuid(conversation_id, "conversation_id"))
        return success()

    async def run(self, conversation_id: str) -> Response:
        """Run the agent; while it waits for a confirmation, this approves."""
        await (await find(self.services, conversation_id)).run()
        return success()

    async def pause(self, conversation_id: str) -> Response:
        """Let no further turn begin."""
        conversation = await find(self.services, conversation_id)
        await conversation.pause()
        await self._tell(conversation)
        return success()

    async def interrupt(self, conversation_id: str) -> Response:
        """Cancel the turn; answers when that has settled or its time is up."""
        conversation = await find(self.services, conversation_id)
        await conversation.interrupt()
        await self._tell(conversation)
        return success()

    async def respond(self, conversation_id: str) -> Response:
        """Accept or reject what waits for a confirmation."""
        conversation = await find(self.services, conversation_id)
        response = read_body(ConfirmationResponseRequest, await json_body(request))
        await conversation.respond(response.accept, response.reason, response.request_id, response.option_id)
        return success()

    async def set_policy(self, conversation_id: str) -> Response:
        """Replace the confirmation policy."""
        conversation = await find(self.services, conversation_id)
        change = read_body(SetConfirmationPolicyRequest, await json_body(request))
        await conversation.changes.set_confirmation_policy(as_json(change.policy))
        return success()

    async def set_analyzer(self, conversation_id: str) -> Response:
        """Replace the security analyzer, which is kept for clients to read."""
        conversation = await find(self.services, conversation_id)
        change = read_body(SetSecurityAnalyzerRequest, await json_body(request))
        analyzer = change.security_analyzer
        await conversation.changes.set_security_analyzer(None if analyzer is None else dict(analyzer))
        return success()

    async def add_secrets(self, conversation_id: str) -> Response:
        """Give the conversation further secrets, for the agent's next start."""
        conversation = await find(self.services, conversation_id)
        errors = Errors()
        found = attempt_body(UpdateSecretsRequest, await json_body(request), errors)
        given = {} if found is None else found.secrets
        values = await resolve_secrets(
            given, self.services.secrets, own_origins(), errors, self.services.launcher.lookups
        )
        refuse(errors)
        await conversation.changes.set_secrets(values)
        return warn(success(), values)

    async def agent_final_response(self, conversation_id: str) -> Response:
        """The text of the agent's last answer, empty when there is none."""
        conversation = await find(self.services, conversation_id)
        return json_response({"response": await conversation.final_response()})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/conversations"
        one = f"{base}/<conversation_id>"
        most = self.services.config.max_page
        limit = {PAGE_LIMIT: schemas.integer(1, most, most)}
        info, done = schemas.ref("ConversationInfo"), schemas.ref("Success")
        return (
            Route(
                method="POST",
                path=base,
                handler=self.create,
                summary="Start a conversation, or find the one with the given id",
                tag=TAG,
                body=StartConversationRequest,
                result=info,
                status=201,
                errors={
                    200: "A conversation with this id exists already",
                    404: "No such profile",
                    429: "Too many conversations",
                    503: AT_CAPACITY,
                },
            ),
            Route(
                method="GET",
                path=base,
                handler=self.batch,
                summary="Get conversations by id",
                tag=TAG,
                query=params_of(ConversationBatchQuery),
                result=schemas.array(schemas.nullable(info)),
            ),
            Route(
                method="GET",
                path=f"{base}/search",
                handler=self.search,
                summary="List conversations page by page",
                tag=TAG,
                query=params_of(ConversationPageQuery, limit),
                result=schemas.ref("ConversationPage"),
            ),
            Route(
                method="GET",
                path=f"{base}/count",
                handler=self.count,
                summary="Count conversations",
                tag=TAG,
                query=params_of(ConversationsQuery),
                result={"type": "integer"},
            ),
            Route(
                method="GET",
                path=one,
                handler=self.get,
                summary="Get one conversation",
                tag=TAG,
                result=info,
                errors=UNKNOWN,
            ),
            Route(
                method="PATCH",
                path=one,
                handler=self.update,
                summary="Change title or tags",
                tag=TAG,
                body=UpdateConversationRequest,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.delete,
                summary="Delete a conversation with all its events",
                tag=TAG,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/run",
                handler=self.run,
                summary="Run the agent, or approve the actions that it waits for",
                tag=TAG,
                result=done,
                errors={
                    **UNKNOWN,
                    409: "The conversation is already running",
                    503: AT_CAPACITY,
                },
            ),
            Route(
                method="POST",
                path=f"{one}/pause",
                handler=self.pause,
                summary="Pause before the next step",
                tag=TAG,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/interrupt",
                handler=self.interrupt,
                summary="Cancel the running turn",
                tag=TAG,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/events/respond_to_confirmation",
                handler=self.respond,
                summary="Accept or reject the actions that wait for confirmation, or one of them",
                tag=TAG,
                body=ConfirmationResponseRequest,
                result=done,
                errors={
                    **UNKNOWN,
                    400: "The request has no such option",
                    409: "No request of this id waits",
                    503: AT_CAPACITY,
                },
            ),
            Route(
                method="POST",
                path=f"{one}/confirmation_policy",
                handler=self.set_policy,
                summary="Replace the confirmation policy",
                tag=TAG,
                body=SetConfirmationPolicyRequest,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/security_analyzer",
                handler=self.set_analyzer,
                summary="Replace the security analyzer",
                tag=TAG,
                body=SetSecurityAnalyzerRequest,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/secrets",
                handler=self.add_secrets,
                summary="Add secrets for this conversation's agent",
                tag=TAG,
                body=UpdateSecretsRequest,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="GET",
                path=f"{one}/agent_final_response",
                handler=self.agent_final_response,
                summary="Get the agent's last answer",
                tag=TAG,
                result=schemas.ref("AgentResponseResult"),
                errors=UNKNOWN,
            ),
        )
