"""Conversations: create, find, change, drive, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
from quart import Response, request

from gateway import schemas
from gateway.bodies import (
    ConfirmationResponse,
    UpdateConversation,
    analyzer_body,
    json_body,
    policy_body,
    secrets_body,
)
from gateway.limits import admit
from gateway.reading import Query, dashed_uuid, path_uuid
from gateway.responses import json_response, success
from gateway.routing import Param, Route
from gateway.secret_sources import resolve_secrets
from gateway.services import Services
from gateway.start_request import read_start_request
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.journal import LogDeleted

if TYPE_CHECKING:
    from gateway.contract import Conversation


MAX_IDS: Final = 99
"""Conversations of one `?ids=` request; the wire's limit."""

SORT_ORDERS: Final = ("CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC")

STATUSES: Final = (
    "idle",
    "running",
    "paused",
    "waiting_for_confirmation",
    "finished",
    "error",
    "stuck",
    "deleting",
)

UNKNOWN: Final = {404: "No such conversation"}
AT_CAPACITY: Final = "At capacity; Retry-After has the seconds to wait"
TAG: Final = "Conversations"


def own_origins() -> frozenset[str]:
    """The address under which the client of the current request knows this server."""
    return frozenset({request.host_url.rstrip("/")})


async def find(services: Services, conversation_id: str) -> Conversation:
    """The conversation of a path. Raises Invalid (no UUID) or UnknownConversation."""
    return await services.supervisor.get(path_uuid(conversation_id, "conversation_id"))


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
        return json_response(await conversation.durable_info(), 201 if created else 200)

    async def get(self, conversation_id: str) -> Response:
        """One conversation."""
        return json_response(await (await find(self.services, conversation_id)).durable_info())

    async def batch(self) -> Response:
        """The conversations named by `ids`, in that order, null for unknown ones."""
        query = Query(request.args)
        ids = query.all("ids")
        if not ids:
            query.wrong("ids", "Field required", "missing")
        elif len(ids) > MAX_IDS:
            query.wrong("ids", f"List should have at most {MAX_IDS} items, not {len(ids)}", "too_long")
        dashed = [query.uuid("ids", text, index) for index, text in enumerate(ids)]
        query.finish()
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
        """Side by side: each may wait a moment for its state to be on the disk."""
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
        query = Query(request.args)
        most = self.services.config.max_page
        limit = query.integer("limit", most, minimum=1, maximum=most)
        status = query.choice("status", STATUSES)
        order = query.choice("sort_order", SORT_ORDERS) or "CREATED_AT_DESC"
        page_id = query.text("page_id")
        query.finish()
        page = await self.services.supervisor.search(
            status=status, order=order.lower(), page=dashed_uuid(page_id or ""), limit=limit
        )
        next_page_id = page.next_page_id.replace("-", "") if page.next_page_id else None
        return json_response({"items": page.items, "next_page_id": next_page_id})

    async def count(self) -> Response:
        """How many conversations there are."""
        query = Query(request.args)
        status = query.choice("status", STATUSES)
        query.finish()
        return json_response(await self.services.supervisor.count(status=status))

    async def update(self, conversation_id: str) -> Response:
        """Change the title, replace the tags."""
        conversation = await find(self.services, conversation_id)
        change = UpdateConversation.read(await json_body(request))
        if change.title is not None:
            await conversation.set_title(change.title)
        if change.tags is not None:
            await conversation.set_tags(change.tags)
        return success()

    async def delete(self, conversation_id: str) -> Response:
        """Stop and forget a conversation with all its events."""
        await self.services.supervisor.delete(path_uuid(conversation_id, "conversation_id"))
        return success()

    async def run(self, conversation_id: str) -> Response:
        """Run the agent; while it waits for a confirmation, this approves."""
        await (await find(self.services, conversation_id)).run()
        return success()

    async def pause(self, conversation_id: str) -> Response:
        """Let no further turn begin."""
        await (await find(self.services, conversation_id)).pause()
        return success()

    async def interrupt(self, conversation_id: str) -> Response:
        """Cancel the turn; answers when that has settled or its time is up."""
        await (await find(self.services, conversation_id)).interrupt()
        return success()

    async def respond(self, conversation_id: str) -> Response:
        """Accept or reject what waits for a confirmation."""
        conversation = await find(self.services, conversation_id)
        response = ConfirmationResponse.read(await json_body(request))
        await conversation.respond(response.accept, response.reason)
        return success()

    async def set_policy(self, conversation_id: str) -> Response:
        """Replace the confirmation policy."""
        conversation = await find(self.services, conversation_id)
        await conversation.set_confirmation_policy(policy_body(await json_body(request)))
        return success()

    async def set_analyzer(self, conversation_id: str) -> Response:
        """Replace the security analyzer, which is kept for clients to read."""
        conversation = await find(self.services, conversation_id)
        await conversation.set_security_analyzer(analyzer_body(await json_body(request)))
        return success()

    async def add_secrets(self, conversation_id: str) -> Response:
        """Give the conversation further secrets, for the agent's next start."""
        conversation = await find(self.services, conversation_id)
        given = secrets_body(await json_body(request))
        values = await resolve_secrets(given, self.services.secrets, own_origins())
        await conversation.set_secrets(values)
        return success()

    async def agent_final_response(self, conversation_id: str) -> Response:
        """The text of the agent's last answer, empty when there is none."""
        conversation = await find(self.services, conversation_id)
        return json_response({"response": await conversation.final_response()})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/conversations"
        one = f"{base}/<conversation_id>"
        status = Param("status", schemas.choice(STATUSES))
        most = self.services.config.max_page
        info, done = schemas.ref("ConversationInfo"), schemas.ref("Success")
        return (
            Route(
                method="POST",
                path=base,
                handler=self.create,
                summary="Start a conversation, or find the one with the given id",
                tag=TAG,
                body=schemas.ref("StartConversationRequest"),
                result=info,
                status=201,
                errors={
                    200: "A conversation with that id is there already",
                    404: "No such profile",
                    429: "There are as many as there may be",
                    503: AT_CAPACITY,
                },
            ),
            Route(
                method="GET",
                path=base,
                handler=self.batch,
                summary="Get conversations by id",
                tag=TAG,
                query=(Param("ids", schemas.array(schemas.UUID), required=True),),
                result=schemas.array(schemas.nullable(info)),
            ),
            Route(
                method="GET",
                path=f"{base}/search",
                handler=self.search,
                summary="List conversations page by page",
                tag=TAG,
                query=(
                    Param("page_id", schemas.STRING, description="next_page_id of the page before"),
                    Param("limit", schemas.integer(1, most, most)),
                    status,
                    Param("sort_order", schemas.choice(SORT_ORDERS, default="CREATED_AT_DESC")),
                ),
                result=schemas.ref("ConversationPage"),
            ),
            Route(
                method="GET",
                path=f"{base}/count",
                handler=self.count,
                summary="Count conversations",
                tag=TAG,
                query=(status,),
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
                body=schemas.ref("UpdateConversationRequest"),
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
                summary="Run the agent, or approve what it waits for",
                tag=TAG,
                result=done,
                errors={
                    **UNKNOWN,
                    409: "The conversation is running already",
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
                summary="Cancel the turn under way",
                tag=TAG,
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/events/respond_to_confirmation",
                handler=self.respond,
                summary="Accept or reject what waits for a confirmation",
                tag=TAG,
                body=schemas.ref("ConfirmationResponseRequest"),
                result=done,
                errors={**UNKNOWN, 503: AT_CAPACITY},
            ),
            Route(
                method="POST",
                path=f"{one}/confirmation_policy",
                handler=self.set_policy,
                summary="Replace the confirmation policy",
                tag=TAG,
                body=schemas.ref("SetConfirmationPolicyRequest"),
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/security_analyzer",
                handler=self.set_analyzer,
                summary="Replace the security analyzer",
                tag=TAG,
                body=schemas.ref("SetSecurityAnalyzerRequest"),
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="POST",
                path=f"{one}/secrets",
                handler=self.add_secrets,
                summary="Add secrets for this conversation's agent",
                tag=TAG,
                body=schemas.ref("UpdateSecretsRequest"),
                result=done,
                errors=UNKNOWN,
            ),
            Route(
                method="GET",
                path=f"{one}/agent_final_response",
                handler=self.agent_final_response,
                summary="The agent's last answer",
                tag=TAG,
                result=schemas.ref("AgentResponseResult"),
                errors=UNKNOWN,
            ),
        )
