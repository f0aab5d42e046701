"""One conversation as a client follows it: updates and permission requests out, the ends of its prompts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import orjson
import trio

from gateway.api.acp import rebuilt
from gateway.api.acp.peer import Peer
from gateway.api.acp.replies import failed, stop_reason
from gateway.api.requests.bodies import TooHeavy, parsed
from gateway.api.sockets.serve import relay
from supervisor.acp import RpcError
from supervisor.acp.errors import INTERNAL_ERROR
from supervisor.acp.permission_answers import REJECTING
from supervisor.conversations.history import inbox, prompt
from supervisor.conversations.state.errors import ConversationError
from supervisor.conversations.state.state import ENDED, JOINED, RUNNING, TURN, WITHDRAWN
from supervisor.fairness import Share, share
from supervisor.journal.errors import JournalError
from supervisor.journal.rows import Stored
from supervisor.reading.weight import LARGE_BYTES

if TYPE_CHECKING:
    from gateway.api.contract import Conversation
    from supervisor.conversations.state.turn import FileReader
    from supervisor.conversations.updates import AgentUpdate, UpdateReader

READ_SECONDS: Final = 2.0
"""Seconds that an editor has to read a file for the agent, from memory; after that the disk is read."""

PERMISSION: Final = b'"_ostler/permission"'
"""In the line of the journal with what an agent asked."""

OVER: Final = ("completed", "failed")
TAKES: Final = tuple(prompt.NEEDED.values())

Position = Callable[[bytes, str], bytes]
"""Adds the position after an update to its frame, for a client that comes back with it."""


@attrs.define(eq=False)
class Prompt:
    """A prompt of the client that waits for the end of its turn. `tag` is the sender of its message."""

    tag: str
    message_id: str | None = None
    cancelled: bool = False
    result: Mapping[str, Any] | None = None
    error: RpcError | None = None
    over: trio.Event = attrs.field(factory=trio.Event)

    def end(self, result: Mapping[str, Any] | None = None, error: RpcError | None = None) -> None:
        """Give the client its answer; the first one counts."""
        if not self.over.is_set():
            self.result, self.error = result, error
            self.over.set()


@attrs.define
class Call:
    """A tool call. `terminal`: it shows one, which only the server has. `status`: how it ended."""

    terminal: bool = False
    status: str | None = None


class Session:
    """A conversation that the client has open. `follow` is its task.

    Until `caught_up` it reads the past. Permission requests of the past that still wait are asked then.
    `refused`: the conversation has as many followers as it may have.
    """

    def __init__(
        self,
        peer: Peer,
        conversation: Conversation,
        reader: UpdateReader,
        with_position: Position,
        nursery: trio.Nursery,
        *,
        kept: bool = False,
    ) -> None:
        self.conversation = conversation
        self.caught_up = trio.Event()
        self._at_end = False
        self.refused = False
        self.scope = trio.CancelScope()
        self.known: dict[str, Any] = {}
        """What the states say of modes, options and commands, by the members of ACP's answers."""
        self.prompts: dict[str, Prompt] = {}
        """The client's, by tag."""
        self.reads: FileReader | None = None
        """`read`, if the client has the conversation's files."""
        self._peer = peer
        self._reader = reader
        self._with_position = with_position
        self._nursery = nursery
        self._target = conversation.log.high_water
        self._taken = self._sent = int(reader.position.partition(".")[0])
        """The newest events that were read, and that the client has all updates of."""
        self._head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b","update":' % (
            conversation.id.encode()
        )
        self._frames: list[bytes] = []
        self._ending: list[Callable[[], None]] = []
        """Ends of prompts, for after the frames that gathered before them."""
        self._kept = kept
        """Whether the agent's own updates are kept from here on."""
        self._calls: dict[str, Call] = {}
        """The calls that are open, or whose output is missing."""
        self._requests: dict[str, Mapping[str, Any]] = {}
        """What the agent sent with its permission requests, by their ids."""
        self._waiting: dict[str, Mapping[str, Any]] = {}
        """The permission requests that wait for a person."""
        self._asking: dict[str, trio.CancelScope] = {}
        self._joined: dict[str, str] = {}
        """By the messages that joined that turn, its message."""
        self._error: Mapping[str, Any] | None = None
        self._turn_failed = False

    # -- what the conversation says -------------------------------------------------------------------

    async def follow(self) -> None:
        """Send what happens, until cancelled. Raises JournalError, LogDeleted."""
        relaying = share()
        self._look_if_caught_up()
        await self._flush(relaying)
        while True:
            for item in await self._reader.next():
                if isinstance(item, Stored):
                    await self._take_event(item)
                else:
                    await self._take_update(item)
            await self._flush(relaying)

    async def _flush(self, relaying: Share) -> None:
        """Send the frames that gathered, and after them the answers to prompts."""
        frames, self._frames = self._frames, []
        taken = self._taken
        await relay(frames, relaying)
        self._sent = taken
        ending, self._ending = self._ending, []
        for end in ending:
            end()

    def _look_if_caught_up(self) -> None:
        if self._taken >= self._target and not self._at_end:
            self._at_end = True
            self._ending.append(lambda: self._nursery.start_soon(self._catch_up))

    async def _catch_up(self) -> None:
        """Ask what waits before the client knows that it has caught up: one that came back ends, then, the
        requests that have not come again."""
        while entries := [each for name, each in self._waiting.items() if name not in self._asking]:
            sent = trio.Event()
            self._nursery.start_soon(self._ask_client, entries[0], sent.set)
            await sent.wait()
        self.caught_up.set()

    def expect(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take the conversation's permission requests: some may wait since before what is read. To be called
        before `follow`."""
        self._waiting.update({each["id"]: each for each in entries if each["status"] == "waiting"})

    def _show(self, update: Mapping[str, Any] | bytes, position: str | None = None) -> None:
        body = update if isinstance(update, bytes) else orjson.dumps(update)
        frame = self._head + body + b"}}"
        self._frames.append(frame if position is None else self._with_position(frame, position))

    async def _take_update(self, item: AgentUpdate) -> None:
        self._kept = True
        body = item.body
        if PERMISSION in body[:100]:
            line = await _read(body)
            if line:
                self._requests[line["id"]] = line["request"]
            return
        if b'"tool_call' in body:
            update = await _read(body)
            if update and self._note_call(update):
                body = orjson.dumps(update)
        self._show(body, item.position)

    def _note_call(self, update: dict[str, Any]) -> bool:
        """Note whether a call is open. Returns whether the update was changed: the client does not know the
        server's terminals, so a call shows their output when it ends."""
        if update.get("sessionUpdate") not in ("tool_call", "tool_call_update"):
            return False
        call_id = str(update.get("toolCallId"))
        content = update.get("content")
        blocks = content if isinstance(content, list) else []
        kept = [each for each in blocks if not (isinstance(each, dict) and each.get("type") == "terminal")]
        shows = len(kept) < len(blocks)
        call = self._calls.setdefault(call_id, Call())
        call.terminal = call.terminal or shows
        if update.get("status") in OVER:
            call.status = update["status"]
            if not call.terminal:
                del self._calls[call_id]
        if shows:
            update["content"] = kept
        return shows

    async def _take_event(self, stored: Stored) -> None:
        kind = stored.kind
        if kind == "MessageEvent" and stored.source == "user":
            await self._take_message(stored)
        elif kind == "ConversationStateUpdateEvent":
            await self._take_state(stored)
        elif kind == "ConversationErrorEvent":
            self._error = await _read(stored.body)
        elif not self._kept:
            for update in rebuilt.updates(await _read(stored.body)):
                self._note_call(update)
                self._show(update)
        elif self._calls and kind in ("ACPToolCallEvent", "ObservationEvent"):
            self._show_output(await _read(stored.body))
        self._taken = stored.seq
        self._look_if_caught_up()

    def _show_output(self, event: Mapping[str, Any]) -> None:
        call_id = str(event.get("tool_call_id"))
        call = self._calls.get(call_id)
        if call is None or not call.terminal or call.status is None:
            return
        texts = rebuilt.output_of(event)
        if texts:  # the first event of a call has none
            del self._calls[call_id]
            self._show(rebuilt.ended(call_id, call.status, texts))

    async def _take_message(self, stored: Stored) -> None:
        event = await _read(stored.body)
        sender = event.get("sender") or ""
        own = self.prompts.get(sender)
        if own is not None:
            own.message_id = stored.id
            if own.cancelled:
                self._nursery.start_soon(self.withdraw, own)
            if self.caught_up.is_set():
                return  # the client shows what it has sent
        item = await _aside(inbox.queued, stored, size=len(stored.body))
        enclosed = await inbox.enclosed(self.conversation.log, item)
        for block in await _aside(prompt.blocks, item.message, TAKES, enclosed, size=item.size):
            self._show(rebuilt.chunk("user_message_chunk", block))

    async def _take_state(self, stored: Stored) -> None:
        body = stored.body
        if not any(key in body for key in _KEYS):
            return
        event = await _read(body)
        key, value = event.get("key"), event.get("value", {})
        if key == TURN:
            self._take_turn(value)
        elif key == WITHDRAWN:
            self._end(value.get("message_id"), {"stopReason": "cancelled"})
        elif key == "permission_request":
            self._take_permission(value)
        elif key == "execution_status":
            self._take_status(value)
        elif key == "title":
            self._show({"sessionUpdate": "session_info_update", "title": value})
        elif isinstance(key, str) and key in _OFFERED:
            self.known[_OFFERED[key]] = value
        elif key == "current_mode" and "modes" in self.known:
            self.known["modes"] = {**self.known["modes"], "currentModeId": value}

    def _take_turn(self, value: Mapping[str, Any]) -> None:
        status, message_id = value.get("status"), value.get("message_id")
        if status == RUNNING:
            self._error, self._turn_failed = None, False
        elif status == JOINED:
            self._joined[value["joined"]] = str(message_id)
        elif status == ENDED:
            for call_id, call in self._calls.items():
                if call.status is None:  # the agent did not say how it ended
                    self._show(rebuilt.ended(call_id, "failed"))
            self._calls.clear()
            self._turn_failed = value.get("stop_reason") == "failed"
            result, error = stop_reason(value, self._error)
            ended = [message_id, *(each for each, turn in self._joined.items() if turn == message_id)]
            for each in ended:
                self._joined.pop(str(each), None)
                self._end(each, result, error)

    def _end(self, message_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        for own in self.prompts.values():
            if own.message_id == message_id:
                self._ending.append(lambda own=own: own.end(result, error))  # type: ignore[misc]

    def join(self, message_id: str, turn: str) -> None:
        """Note that a message joined the turn of another one."""
        self._joined[message_id] = turn

    def end_after(
        self, own: Prompt, seq: int, result: Mapping[str, Any] | None, error: RpcError | None
    ) -> None:
        """End a prompt whose turn ended with this event, which may have been read, or not yet: after its
        updates."""
        if seq <= self._sent:
            own.end(result, error)
        elif seq <= self._taken:
            self._ending.append(lambda: own.end(result, error))
        # else the event will end it

    def _take_status(self, status: Any) -> None:
        """A run that failed takes up nothing more. Where its turn was another client's, the messages of this
        one begin another run; where no turn began, they get the error."""
        if status != "error" or not self.caught_up.is_set():
            return
        for own in self.prompts.values():
            if own.message_id is not None and not own.over.is_set():
                if self._turn_failed:
                    self._nursery.start_soon(self._run_again, own)
                else:
                    error = failed(self._error or {})
                    self._nursery.start_soon(self._give_up, own, error)

    async def _run_again(self, own: Prompt) -> None:
        await trio.lowlevel.checkpoint()
        if not own.over.is_set():
            await _or_end(own, self.conversation.run())

    async def _give_up(self, own: Prompt, error: RpcError) -> None:
        """Nothing of the message has begun: take it back, or it would be prompted with one sent again."""
        own.end(error=error)
        await self.withdraw(own)

    async def withdraw(self, own: Prompt) -> None:
        """Cancel a prompt of the client: in the queue, or in its turn."""
        own.cancelled = True
        if own.message_id is not None:
            await _or_end(own, self.conversation.withdraw(own.message_id))

    # -- permission requests --------------------------------------------------------------------------

    def _take_permission(self, entry: Mapping[str, Any]) -> None:
        request_id = entry["id"]
        if entry["status"] == "waiting":
            self._waiting[request_id] = entry
            if self.caught_up.is_set():
                self._ending.append(lambda: self._ask(entry))
            return
        self._waiting.pop(request_id, None)
        self._requests.pop(request_id, None)
        scope = self._asking.pop(request_id, None)
        if scope is not None:
            scope.cancel()

    def _ask(self, entry: Mapping[str, Any]) -> None:
        if entry["id"] in self._waiting:
            self._nursery.start_soon(self._ask_client, entry)

    async def _ask_client(self, entry: Mapping[str, Any], sent: Callable[[], None] = lambda: None) -> None:
        """Ask the client, until it answers or another one has. A client that cannot answer is no answer.
        `sent` is called once it is asked, or is not."""
        with trio.CancelScope() as scope:
            self._asking[entry["id"]] = scope
            try:
                params = {"sessionId": self.conversation.id, **self._asked(entry)}
                answer = await self._peer.ask(
                    "session/request_permission", params, f"permission-{entry['id']}", sent
                )
            except RpcError:
                return
            finally:
                sent()
            outcome = answer.get("outcome") if isinstance(answer, Mapping) else None
            if not isinstance(outcome, Mapping) or outcome.get("outcome") != "selected":
                return  # dismissed: others may answer, and a cancel of the prompt ends it
            chosen = str(outcome.get("optionId"))
            accept = not any(each["id"] == chosen and each["kind"] in REJECTING for each in entry["options"])
            try:
                await self.conversation.respond(accept, "", entry["id"], chosen)
            except (ConversationError, JournalError):
                return  # another one was first, or the turn has ended

    def _asked(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the agent asked, with the options' ids that clients see."""
        options = [
            {"optionId": each["id"], "name": each["name"], "kind": each["kind"]} for each in entry["options"]
        ]
        raw = self._requests.get(entry["id"])
        if raw is not None:
            return raw
        call = {"toolCallId": entry["tool_call_id"], "title": entry["title"], "kind": entry.get("tool_kind")}
        if entry.get("input") is not None:
            call["rawInput"] = entry["input"]
        return {"toolCall": {name: value for name, value in call.items() if value}, "options": options}

    # -- files ----------------------------------------------------------------------------------------

    async def read(self, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Read a file from the client's buffers (`state.turn.FileReader`)."""
        names = ("path", "line", "limit")
        asked = {name: params[name] for name in names if params.get(name) is not None}
        with trio.move_on_after(READ_SECONDS):
            try:
                found = await self._peer.ask(
                    "fs/read_text_file", {"sessionId": self.conversation.id, **asked}
                )
            except RpcError:
                return None
            if isinstance(found, Mapping) and isinstance(found.get("content"), str):
                return {"content": found["content"]}
        return None


_OFFERED: Final[Mapping[str, str]] = {"modes": "modes", "config_options": "configOptions"}
"""By the key of a state, the member of the answer that opens a session."""

_KEYS: Final = tuple(
    f'"key":"{key}"'.encode()
    for key in (TURN, WITHDRAWN, "permission_request", "execution_status", "title", "current_mode", *_OFFERED)
)


async def _or_end(own: Prompt, work: Awaitable[None]) -> None:
    """Do something for a prompt, which ends where that is refused."""
    try:
        await work
    except (ConversationError, JournalError) as error:
        own.end(error=RpcError(INTERNAL_ERROR, str(error)))


T = TypeVar("T")


async def _aside(work: Callable[..., T], *given: Any, size: int) -> T:
    """The result of `work`, which runs in a thread where `size` bytes are many."""
    if size <= LARGE_BYTES:
        return work(*given)
    return await trio.to_thread.run_sync(partial(work, *given), abandon_on_cancel=True)


async def _read(body: bytes) -> dict[str, Any]:
    """An object of the journal; in a thread if it is large, and empty if it has more values than the loop can
    bear: the client gets what the agent sent then, as it is."""
    try:
        found: dict[str, Any] = await parsed(body)
    except TooHeavy:
        return {}
    return found
