"""What an ACP client can ask: sessions are conversations, and a session's id is its conversation's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson
import trio

from gateway.api.acp.offer import initialized
from gateway.api.acp.parameters import (
    ListSessions,
    NewSession,
    OpenSession,
    SessionNamed,
    SetMode,
    SetModel,
    SetOption,
    message,
    servers,
)
from gateway.api.acp.peer import Id, Peer
from gateway.api.acp.replies import listed, with_modes
from gateway.api.acp.session import Position, Prompt, Session
from gateway.api.requests.reading import InvalidRequest, Request, dashed_uuid, read_body, refuse
from gateway.api.requests.start_request import read_start_request
from gateway.api.routes.conversations.conversations import admit
from gateway.api.services import Services
from supervisor.acp import RpcError
from supervisor.acp.errors import INTERNAL_ERROR, INVALID_PARAMS
from supervisor.conversations.state.errors import ConversationError, UnknownConversation
from supervisor.journal.errors import JournalError, LogDeleted
from supervisor.reading.model import ErrorDetail, Errors
from supervisor.settings.agent import OPENHANDS

if TYPE_CHECKING:
    from gateway.api.contract import Conversation

SESSIONS_MAX: Final = 100
"""The most sessions that one client has open: each is a task that follows its conversation."""

LISTED: Final = 50
"""Conversations in a page of `session/list`."""

LISTED_PAGES: Final = 20
"""Pages that are looked through for conversations of a directory, for one page of the answer."""

SENT_SEARCHED: Final = 100
"""The newest messages among which that of a prompt is looked for that is sent again."""

ASK: Final = {"kind": "AlwaysConfirm"}
"""The confirmation policy of a session: an editor asks its user all that the agent asks."""


@attrs.frozen(kw_only=True)
class Choice:
    """What the handshake of a client says: an id that it keeps when it comes back, and the agent of its new
    sessions (None: that of the settings)."""

    client: str
    agent: str | None = None
    model: str | None = None


class AcpMethods:
    """The methods of one client, `peer.Methods`. Its sessions' tasks run in `nursery`. It sets `unreadable`
    when the journal of one of them cannot be read."""

    def __init__(
        self,
        services: Services,
        peer: Peer,
        choice: Choice,
        with_position: Position,
        nursery: trio.Nursery,
        unreadable: trio.Event,
    ) -> None:
        self._services = services
        self._unreadable = unreadable
        self._peer = peer
        self._choice = choice
        self._with_position = with_position
        self._nursery = nursery
        self._sessions: dict[str, Session] = {}
        self._returned: set[str] = set()
        """Sessions that the client had on an earlier connection."""
        self._reads = False
        """Whether the client reads files."""
        self._by_name: Mapping[str, Callable[[Id, Mapping[str, Any]], Awaitable[Any]]] = {
            "initialize": self._initialize,
            "authenticate": self._nothing,
            "session/new": self._new,
            "session/load": partial(self._open, "load"),
            "session/resume": partial(self._open, "resume"),
            "_ostler/attach": partial(self._open, "attach"),
            "session/list": self._list,
            "session/close": self._close,
            "session/delete": self._delete,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
            "session/set_model": self._set_model,
            "session/set_config_option": self._set_option,
        }

    @property
    def has_sessions(self) -> bool:
        """Whether the client has a session open."""
        return bool(self._sessions)

    async def request(self, request_id: Id, method: str, params: Mapping[str, Any]) -> Any:
        """See `peer.Methods`."""
        found = self._by_name.get(method)
        if found is None:
            raise RpcError.method_not_found(method)
        return await found(request_id, params)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """See `peer.Methods`."""
        if method == "session/cancel":
            session = self._sessions.get(_uuid(params.get("sessionId")) or "")
            for own in () if session is None else list(session.prompts.values()):
                self._nursery.start_soon(session.withdraw, own)  # type: ignore[union-attr]
        elif method == "$/cancel_request":
            tag = self._tag(params.get("requestId"))
            for session in self._sessions.values():
                if tag in session.prompts:
                    self._nursery.start_soon(session.withdraw, session.prompts[tag])

    async def _nothing(self, _: Id, __: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    async def _initialize(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        capabilities = params.get("clientCapabilities")
        fs = capabilities.get("fs") if isinstance(capabilities, Mapping) else None
        self._reads = isinstance(fs, Mapping) and fs.get("readTextFile") is True
        return initialized()

    # -- sessions -------------------------------------------------------------------------------------

    async def _new(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = read(NewSession, params)
        body: dict[str, Any] = {
            "workspace": {"kind": "LocalWorkspace", "working_dir": asked.cwd},
            "confirmation_policy": ASK,
            "event_vocabulary": "extended",
        }
        body |= await self._agent()
        given = servers(asked.mcp_servers)
        errors = Errors()
        for name, entry in given.items():
            errors.note(self._services.settings.rules.check_server(entry, ("mcpServers", name)))
        refuse(errors)
        start = await read_start_request(body, self._services, ())
        start = attrs.evolve(start, mcp_servers=given)
        await admit(self._services, None)
        conversation, _created = await self._services.supervisor.create(start)
        session = await self._attach(conversation, asked.cwd, "")
        try:
            await conversation.start_agent()
        except ConversationError:
            # It is empty, and the client does not know it.
            self._detach(conversation.id)
            await self._services.supervisor.delete(conversation.id)
            raise
        self._refuse_crowd(session)
        self._services.tell(await conversation.durable_info())
        return {"sessionId": conversation.id, **self._offered(session)}

    async def _agent(self) -> dict[str, Any]:
        """The part of a start request that names the agent; empty for that of the settings."""
        agent, model = self._choice.agent, self._choice.model
        if agent is None and model is None:
            return {}
        settings = (await self._services.settings.get()).agent_settings
        if agent == OPENHANDS and model is None:
            own = settings.get("agent_kind") == OPENHANDS
            return {} if own else {"agent_settings": {"agent_kind": OPENHANDS}}
        named = {"acp_server": agent or settings.get("acp_server"), "acp_model": model}
        return {"agent_settings": {"agent_kind": "acp", **{k: v for k, v in named.items() if v}}}

    async def _open(self, how: str, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = read(OpenSession, params)
        conversation = await self._services.supervisor.get(asked.session_id)
        after = {"load": "", "resume": None, "attach": asked.position}[how]
        if how == "attach":
            self._returned.add(conversation.id)
        try:
            session = await self._attach(conversation, asked.cwd, after)
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, f"position: {error}") from None
        if how != "resume":
            await session.caught_up.wait()
        self._refuse_crowd(session)
        return self._offered(session)

    async def _attach(self, conversation: Conversation, cwd: str | None, after: str | None) -> Session:
        reader = conversation.follow_updates(after)
        # After the reader, which has what happens meanwhile.
        info = await conversation.durable_info()
        self._detach(conversation.id)
        if len(self._sessions) >= SESSIONS_MAX:
            detail = f"{SESSIONS_MAX} sessions are open on this connection. Close one (session/close)."
            raise RpcError(INTERNAL_ERROR, detail)
        session = Session(
            self._peer,
            conversation,
            reader,
            self._with_position,
            self._nursery,
            kept=bool(after),  # a position behind some of the agent's own updates
        )
        session.expect(info.get("agent_state", {}).get("permissions", ()))
        if self._reads and cwd == info["workspace"]["working_dir"]:
            session.reads = session.read
        self._sessions[conversation.id] = session
        self._nursery.start_soon(self._follow, session)
        return session

    async def _follow(self, session: Session) -> None:
        conversation_id = session.conversation.id
        with session.scope, self._services.subscribers.joined(conversation_id) as joined:
            if not joined:
                session.refused = True
            try:
                if joined:
                    await session.follow()
            except LogDeleted:
                gone = RpcError(INTERNAL_ERROR, "The conversation was deleted.")
                for own in session.prompts.values():
                    own.end(error=gone)
            except JournalError:
                self._unreadable.set()
            finally:
                session.caught_up.set()
                if self._sessions.get(conversation_id) is session:
                    del self._sessions[conversation_id]

    def _refuse_crowd(self, session: Session) -> None:
        if session.refused:
            detail = "The conversation has as many clients as OSTLER_MAX_SUBSCRIBERS allows. Close one."
            raise RpcError(INTERNAL_ERROR, detail)

    def _detach(self, conversation_id: str) -> None:
        session = self._sessions.pop(conversation_id, None)
        if session is not None:
            session.scope.cancel()
            for own in session.prompts.values():
                own.end(error=RpcError(INTERNAL_ERROR, "The session was closed; its turn continues."))

    def _offered(self, session: Session) -> dict[str, Any]:
        # Without a session of the agent, from the states that it left.
        return session.conversation.offered() or with_modes(session.known)

    async def _list(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = read(ListSessions, params)
        rows: list[dict[str, Any]] = []
        page = dashed_uuid(asked.cursor or "")
        for _page in range(LISTED_PAGES):
            found = await self._services.supervisor.listing(
                status=None, order="updated_at_desc", page=page, limit=LISTED
            )
            rows += listed(orjson.loads(b"[%b]" % found.bodies), asked.cwd)
            page = found.next_page_id
            if page is None or len(rows) >= LISTED:
                break
        return {"sessions": rows, **({"nextCursor": page} if page else {})}

    async def _close(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        """Detach: the turn continues, and other clients see it."""
        self._detach(read(SessionNamed, params).session_id)
        return {}

    async def _delete(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        session_id = read(SessionNamed, params).session_id
        self._detach(session_id)
        with suppress(UnknownConversation):  # ACP: that is no error
            await self._services.supervisor.delete(session_id)
        return {}

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            detail = "The session is not open on this connection. Load it first (session/load)."
            raise RpcError(INVALID_PARAMS, detail, {"sessionId": session_id})
        return session

    # -- prompts, and choices ---------------------------------------------------------------------------

    def _tag(self, request_id: Any) -> str:
        return f"acp:{self._choice.client}:{request_id}"

    async def _prompt(self, request_id: Id, params: Mapping[str, Any]) -> Mapping[str, Any]:
        session = self._session(read(SessionNamed, params).session_id)
        conversation = session.conversation
        tag = self._tag(request_id)
        own = session.prompts[tag] = Prompt(tag)
        try:
            if not await self._sent_before(session, own) and own.message_id is None:
                made = message(conversation, params.get("prompt"))
                own.message_id = await conversation.send(made, run=True, sender=tag, reads=session.reads)
                if own.cancelled:
                    self._nursery.start_soon(session.withdraw, own)
            await own.over.wait()
        finally:
            del session.prompts[tag]
        if own.error is not None:
            raise own.error
        return own.result or {}

    async def _sent_before(self, session: Session, own: Prompt) -> bool:
        """Whether the client sent a prompt on an earlier connection, which did not live to answer it. It is
        answered, then, as if it had been sent on this one."""
        if session.conversation.id not in self._returned:
            return False
        from gateway.api.acp.earlier import message_of, outcome_of

        log = session.conversation.log
        found = await message_of(log, own.tag, SENT_SEARCHED)
        if found is None:
            return False
        own.message_id = found.id
        outcome = await outcome_of(log, found, partial(session.join, found.id))
        if outcome is not None:
            session.end_after(own, outcome.seq, outcome.result, outcome.error)
        return True

    async def _set_mode(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = read(SetMode, params)
        await self._session(asked.session_id).conversation.changes.choose_mode(asked.mode_id)
        return {}

    async def _set_model(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = read(SetModel, params)
        await self._session(asked.session_id).conversation.changes.switch_model(asked.model_id)
        return {}

    async def _set_option(self, _: Id, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = read(SetOption, params)
        session = self._session(asked.session_id)
        await session.conversation.changes.choose_option(asked.config_id, asked.value)
        return {"configOptions": self._offered(session).get("configOptions", [])}


def read(model: type[Request], params: Mapping[str, Any]) -> Any:
    """Parameters as a `model`. Raises InvalidRequest, with the members' names."""
    try:
        return read_body(model, params)
    except InvalidRequest as error:
        raise InvalidRequest(
            *(ErrorDetail(each.loc[1:], each.msg, each.type) for each in error.errors)
        ) from None


def _uuid(value: Any) -> str | None:
    return dashed_uuid(value) if isinstance(value, str) else None
