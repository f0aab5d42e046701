"""Conversations: create, find, change, drive, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import (
    ConfirmationResponseRequest,
    SetConfirmationPolicyRequest,
    SetSecurityAnalyzerRequest,
    UpdateConversationRequest,
    UpdateSecretsRequest,
)
from gateway.api.requests.reading import (
    AnyUuid,
    PageLimit,
    Query,
    attempt_body,
    dashed_uuid,
    path_uuid,
    refuse,
)
from gateway.api.requests.secret_sources import resolve_secrets
from gateway.api.requests.start_request import StartConversationRequest, read_start_request
from gateway.api.requests.timestamps import iso
from gateway.api.requests.unhidden import warn
from gateway.api.responses import SUCCESS, json_response, page_response, success
from gateway.api.routing import EXAMPLE_DIR, Group
from gateway.api.services import Services
from supervisor.conversations.deletion import UNDO_SECONDS_MAX
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.journal.errors import LogDeleted
from supervisor.reading.model import Errors, said
from supervisor.reading.rules import Items, Limit
from supervisor.reading.shapes import as_json

if TYPE_CHECKING:
    from gateway.api.contract import Conversation, View


MAX_IDS: Final = 99
"""Conversations of one `?ids=` request; the wire's limit."""

Status = Literal[
    "idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting"
]

UNKNOWN: Final = {404: "No such conversation"}
AT_CAPACITY: Final = "At capacity; Retry-After gives the seconds to wait"
TAG: Final = "Conversations"
INFO: Final = schemas.ref("ConversationInfo")

DELETED: Final = schemas.obj(
    {"success!": schemas.BOOLEAN, "undo_until": {**schemas.STRING, "description": "Until when, in UTC"}}
)


def own_origins() -> frozenset[str]:
    """The origins under which the current client knows this server; a proxy may terminate TLS."""
    return frozenset(f"{scheme}://{request.host}" for scheme in ("http", "https"))


async def admit(services: Services, conversation_id: str | None) -> None:
    """Admit a start request while the limit of conversations is not reached. Raises ApiError(429) otherwise.

    A request for an existing conversation is always admitted. Concurrent requests are not counted, so they
    may exceed the limit by a few.
    """
    limit = services.config.max_conversations
    if await services.supervisor.count() < limit:
        return
    if conversation_id is not None:
        try:
            await services.supervisor.get(conversation_id)
        except UnknownConversation:
            pass
        else:
            return
    raise ApiError(429, f"There are {limit} conversations. Delete some, or raise OSTLER_MAX_CONVERSATIONS.")


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

    page_id: str | None = said(None, "next_page_id of the page before")
    limit: PageLimit | None = None
    sort_order: Literal["CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC"] = "CREATED_AT_DESC"


ALL: Final = Group(TAG, "/api/conversations")
ONE: Final = "/api/conversations/<conversation_id>"
_one: Final = Group(TAG, ONE, UNKNOWN)


@ALL(
    "POST",
    body=StartConversationRequest,
    example={
        "workspace": {"working_dir": EXAMPLE_DIR},
        "agent_settings": {"agent_kind": "acp", "acp_server": "demo"},
        "initial_message": {"content": [{"type": "text", "text": "Hello! Who are you?"}]},
    },
    result=INFO,
    status=201,
    errors={
        200: "A conversation with this id exists already",
        404: "No such profile",
        429: "Too many conversations",
        503: AT_CAPACITY,
    },
)
async def create(services: Services, json: Any) -> Response:
    """Start a conversation, or find the one with the given id.

    The agent is that of the settings unless the request names another, and begins at once with
    `initial_message`. Send a `conversation_id` of your own to be able to repeat the request: where there is
    that conversation, the answer is 200 and nothing starts.
    """
    start = await read_start_request(json, services, own_origins())
    await admit(services, start.conversation_id)
    conversation, created = await services.supervisor.create(start)
    info = await conversation.durable_info()
    if created:
        services.tell(info)
    return warn(json_response(info, 201 if created else 200), start.secrets)


@ALL("GET", query=ConversationBatchQuery, result=schemas.array(schemas.nullable(INFO)))
async def batch(services: Services, query: ConversationBatchQuery) -> Any:
    """Get conversations by id.

    The query has up to 99 `ids`. The answer has the conversations in the order of the ids, and null for each
    that is unknown.
    """
    found: dict[str, dict[str, Any] | Exception | None] = {}

    async def look_up(conversation_id: str) -> None:
        """Concurrently: each may wait a moment until its state is durable."""
        try:
            found[conversation_id] = await (await services.supervisor.view(conversation_id)).durable_info()
        except (UnknownConversation, LogDeleted):
            found[conversation_id] = None
        except Exception as error:  # noqa: BLE001 - raised below
            found[conversation_id] = error

    async with trio.open_nursery() as nursery:
        for each in set(query.ids):
            nursery.start_soon(look_up, each)
    for value in found.values():
        if isinstance(value, Exception):
            raise value
    return [found[each] for each in query.ids]


@ALL("GET /search", query=ConversationPageQuery, result=schemas.ref("ConversationPage"))
async def search(services: Services, query: ConversationPageQuery) -> Response:
    """List conversations page by page.

    Newest first, unless `sort_order` says otherwise. Send `next_page_id` as `page_id` for the next page; an
    unknown one starts from the beginning.
    """
    page = await services.supervisor.listing(
        status=query.status,
        order=query.sort_order.lower(),
        page=dashed_uuid(query.page_id or ""),
        limit=query.limit or services.config.max_page,
    )
    next_page_id = page.next_page_id.replace("-", "") if page.next_page_id else None
    return page_response(page.bodies, next_page_id)


@ALL("GET /count", query=ConversationsQuery, result={"type": "integer"})
async def count(services: Services, query: ConversationsQuery) -> int:
    """Count conversations.

    Counts all conversations, or those with the `status` of the query. The answer is a number.
    """
    return await services.supervisor.count(status=query.status)


@_one("GET", result=INFO, anywhere=True)
async def get(conversation: View) -> Any:
    """Get one conversation.

    The answer has the execution status, the agent and its state, title, tags and usage. Nothing in it is
    ahead of what is stored.
    """
    return await conversation.durable_info()


@_one("PATCH", body=UpdateConversationRequest, example={"title": "An example", "tags": {"team": "docs"}})
async def update(services: Services, conversation: Conversation, body: UpdateConversationRequest) -> None:
    """Change title or tags.

    Only what is in the body changes, and null leaves a value as it is. Other properties of a conversation
    have requests of their own, or are fixed at its start.
    """
    if body.title is not None:
        await conversation.changes.set_title(body.title)
    if body.tags is not None:
        await conversation.changes.set_tags(dict(body.tags))
    await _tell(services, conversation)


@attrs.frozen(kw_only=True)
class DeleteQuery(Query):
    """How a conversation is deleted."""

    undo_seconds: Annotated[int, Limit(ge=1, le=UNDO_SECONDS_MAX)] | None = said(
        None, "Hide it, and delete it after this time; restore undoes that"
    )


@_one("DELETE", query=DeleteQuery, result=DELETED)
async def delete(services: Services, conversation_id: str, query: DeleteQuery) -> Any:
    """Delete a conversation with all its events.

    Ends its agent and its commands, and removes its events. What the agent wrote into the workspace stays.
    With `undo_seconds` that happens after this time, also over a restart of the server: until then the
    conversation is hidden from listings and refuses work, and `POST .../restore` brings it back.

    Cancellation (the client disconnects) leaves the conversation or deletes it, and never leaves commands of
    a deleted one.
    """
    conversation_id = path_uuid(conversation_id, "conversation_id")
    if query.undo_seconds is None:
        await remove(services, conversation_id)
        return SUCCESS
    moment = await services.supervisor.delete_later(conversation_id, query.undo_seconds)
    return {**SUCCESS, "undo_until": iso(moment)}


@_one("POST /restore", errors={409: "It is not being deleted"})
async def restore(services: Services, conversation_id: str) -> None:
    """Undo a deletion with `undo_seconds`, while its time is not over.

    The conversation is listed again. The next message starts its agent.
    """
    conversation = await services.supervisor.restore(path_uuid(conversation_id, "conversation_id"))
    await _tell(services, conversation)


async def remove(services: Services, conversation_id: str) -> None:
    """Delete a conversation, and the gateway's own state for it: its commands, of which none is left when
    this returns, and its webhook cursors. Raises UnknownConversation, JournalError; it then still exists.
    """
    conversation = await services.supervisor.get(conversation_id)
    webhooks = services.webhooks

    async def closed() -> None:
        if webhooks is not None:
            await webhooks.deleting(conversation.log, await conversation.durable_info())

    try:
        await services.supervisor.delete(conversation_id, closed)
    finally:
        if conversation.log.deleted:
            with trio.CancelScope(shield=True):
                if services.bash is not None:
                    await services.bash.forget(conversation_id)  # bounded by its STOP_SECONDS
                if webhooks is not None:
                    await webhooks.deleted(conversation_id)


@_one("POST /run", errors={409: "The conversation is already running", 503: AT_CAPACITY})
async def run(conversation: Conversation) -> None:
    """Run the agent, or approve the actions that it waits for.

    Resumes after a pause or a failure, with the messages that wait. Where actions wait for confirmation, they
    are accepted.
    """
    await conversation.run()


@_one("POST /pause")
async def pause(services: Services, conversation: Conversation) -> None:
    """Pause before the next step.

    The turn under way comes to its end, and no other begins. Messages wait until `run`.
    """
    await conversation.pause()
    await _tell(services, conversation)


@_one("POST /interrupt")
async def interrupt(services: Services, conversation: Conversation) -> None:
    """Cancel the running turn.

    Answers when the turn has settled, or its time is up. Messages that wait stay, until `run` or the next
    message.
    """
    await conversation.interrupt()
    await _tell(services, conversation)


@_one(
    "POST /events/respond_to_confirmation",
    body=ConfirmationResponseRequest,
    example={"accept": True},
    errors={400: "The request has no such option", 409: "No request of this id waits", 503: AT_CAPACITY},
)
async def respond(conversation: Conversation, body: ConfirmationResponseRequest) -> None:
    """Accept or reject the actions that wait for confirmation, or one of them.

    Without `request_id` the answer is for every request that waits. To accept where none waits is a 409; to
    reject is not.
    """
    await conversation.respond(body.accept, body.reason, body.request_id, body.option_id)


@_one(
    "POST /confirmation_policy",
    body=SetConfirmationPolicyRequest,
    example={"policy": {"kind": "AlwaysConfirm"}},
)
async def set_policy(conversation: Conversation, body: SetConfirmationPolicyRequest) -> None:
    """Replace the confirmation policy.

    `NeverConfirm` asks a person for nothing, `AlwaysConfirm` for each call that asks, and `ConfirmRisky` from
    a `threshold` on. It counts from the agent's next request on.
    """
    await conversation.changes.set_confirmation_policy(as_json(body.policy))


@_one(
    "POST /security_analyzer",
    body=SetSecurityAnalyzerRequest,
    example={"security_analyzer": {"kind": "LLMSecurityAnalyzer"}},
)
async def set_analyzer(conversation: Conversation, body: SetSecurityAnalyzerRequest) -> None:
    """Replace the security analyzer.

    It is kept for clients to read, and not run for external agents. Null removes it.
    """
    analyzer = body.security_analyzer
    await conversation.changes.set_security_analyzer(None if analyzer is None else dict(analyzer))


@_one(
    "POST /secrets",
    body=UpdateSecretsRequest,
    example={"secrets": {"EXAMPLE_TOKEN": "the value of a token"}},
    errors={409: "The secrets of the conversation take too much room together"},
)
async def add_secrets(services: Services, conversation: Conversation, json: Any) -> Response:
    """Add secrets for this conversation's agent.

    The agent gets them as variables of these names, from its next start on. A value is a text, or a source
    that is looked up at each start.
    """
    errors = Errors()
    found = attempt_body(UpdateSecretsRequest, json, errors)
    given = {} if found is None else found.secrets
    values = await resolve_secrets(given, services.secrets, own_origins(), errors, services.launcher.lookups)
    refuse(errors)
    await conversation.changes.set_secrets(values)
    return warn(success(), values)


@_one("GET /agent_final_response", result=schemas.ref("AgentResponseResult"), anywhere=True)
async def agent_final_response(conversation: View) -> Any:
    """Get the agent's last answer.

    The text at the end of the last turn; it is empty before there is one. Everything else that the agent said
    is in the events.
    """
    return {"response": await conversation.final_response()}


GROUPS: Final = (ALL, _one)


async def _tell(services: Services, conversation: Conversation) -> None:
    """Send the state of a conversation that a client has changed to the webhooks. Without any, nothing waits
    until the state is durable."""
    if services.webhooks is not None:
        services.webhooks.tell(await conversation.durable_info())
