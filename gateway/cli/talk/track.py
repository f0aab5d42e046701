"""The state of a conversation, followed by its session frames. Pure: frames in, items out.

A streamed text is reported once: the durable event that it becomes adds only what the stream lacked, however
often the connection was lost in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from gateway.cli.follow.show import Streamed

ENDED: Final = frozenset({"finished", "error", "paused", "stuck"})
"""States in which the agent does no work."""

AT_REST: Final = ENDED | {"idle", ""}
"""Statuses without a turn under way."""

WAITING: Final = "waiting_for_confirmation"

REFUSED_CODE: Final = "UsagePolicyRefusal"
"""The agent's model refused the request."""

PERMISSION: Final = "permission"
"""The member of an action's data with the agent's description of it, besides its input."""

CORE_CALLS: Final = frozenset({"ObservationEvent", "AgentErrorEvent", "UserRejectObservation"})


class Call:
    """A tool call. `status` is running, asking, completed, failed, rejected or interrupted.

    Times are those of events.
    """

    def __init__(self, call_id: str, title: str, kind: str, started: str | None) -> None:
        self.id = call_id
        self.title = title
        self.kind = kind
        self.status = "running"
        self.raw_input: Any = None
        self.content: Any = None
        self.output = ""
        self.withdrawn = False
        """Whether the agent's question about it was withdrawn: the turn was interrupted."""
        self.started = started
        self.ended: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took, None where that is not known."""
        if self.started is None or self.ended is None:
            return None
        taken = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        return max(0.0, taken.total_seconds())


class Said(NamedTuple):
    """A piece of what the agent says (`text`) or thinks (`reasoning`); with `ends` the message is whole."""

    kind: str
    text: str
    ends: bool = False


class UserSaid(NamedTuple):
    """A message of a person's, or of Ostler's own where `note` is set."""

    text: str
    note: bool = False


class Called(NamedTuple):
    """A tool call began, or is asked about (`call.status`)."""

    call: Call


class CallEnded(NamedTuple):
    """A tool call is over."""

    call: Call


class Planned(NamedTuple):
    """The agent's plan: pairs of a status and a text."""

    entries: tuple[tuple[str, str], ...]


class State(NamedTuple):
    """A state of the conversation is another one: `execution_status`, `agent_phase`, ..."""

    key: str
    value: Any


class Failed(NamedTuple):
    """Something went wrong, and why."""

    code: str
    detail: str


Item = Said | UserSaid | Called | CallEnded | Planned | State | Failed
Kind = Literal["text", "reasoning"]


class Track:
    """Follows one conversation. `seq` is the number of the last event that was seen."""

    def __init__(self) -> None:
        self.seq: int | None = None
        self.status = ""
        self.calls: dict[str, Call] = {}
        """Those that have not ended, by id."""
        self.commands: tuple[tuple[str, str], ...] = ()
        """The agent's slash commands: names and what they do."""
        self.model = ""
        """The agent's current model, where it is known."""
        self.stats: Mapping[str, Any] = {}
        """What the conversation has used, as the server has it."""
        self.needed: tuple[str, ...] = ()
        """The secrets that would help an agent without credentials."""
        self._options: list[Any] = []
        self._modes: Mapping[str, Any] = {}
        self._mode = ""
        self.answer = ""
        """The last that the agent said."""
        self.plan: tuple[tuple[str, str], ...] = ()
        self._streams: dict[str, Streamed] = {}

    @property
    def asking(self) -> list[Call]:
        """The calls that wait for a person."""
        return [call for call in self.calls.values() if call.status == "asking"]

    @property
    def modes(self) -> tuple[str, list[tuple[str, str]]]:
        """The agent's current mode, and all of them with what each means; an option goes before the older
        block."""
        for option in self._options:
            if isinstance(option, Mapping) and option.get("category") == "mode":
                return str(option.get("currentValue") or ""), _choices(option.get("options"), "value")
        offered = _choices(self._modes.get("availableModes"), "id")
        return self._mode or str(self._modes.get("currentModeId") or ""), offered

    def take(self, frame: Mapping[str, Any]) -> list[Item]:
        """The new items in a frame."""
        return list(self._take(frame))

    def recall(self, key: str, value: Any) -> None:
        """Take a state from before the frames."""
        for _ in self._state(key, value):
            pass

    def _take(self, frame: Mapping[str, Any]) -> Iterator[Item]:
        match frame:
            case {"type": "item_started", "item_id": str(item)}:
                self._streams.setdefault(item, Streamed()).begin()
            case {"type": "delta", "item_id": str(item), "kind": ("text" | "reasoning") as kind}:
                stream = self._streams.setdefault(item, Streamed())
                fresh = stream.take(kind, str(frame.get("content", "")), frame.get("order"))
                if fresh:
                    yield Said(kind, fresh)
            case {"type": "item_aborted", "item_id": str(item)}:
                if self._streams.pop(item, None) is not None:
                    yield Said("text", "", ends=True)
            case {"type": "durable", "seq": int(seq), "event": dict(event)}:
                if self.seq is not None and seq <= self.seq:
                    return
                self.seq = seq
                yield from self._event(event)
            case {"type": "transient", "event": {"key": "full_state", "value": dict(value)}}:
                if not self.status:
                    self.status = str(value.get("execution_status", ""))
                for key in ("agent_state", "stats"):
                    self._agent(key, value.get(key))
            case {"type": "error", "detail": str(detail)}:
                yield Failed(str(frame.get("code", "error")), detail)

    def _event(self, event: Mapping[str, Any]) -> Iterator[Item]:
        match event:
            case {"kind": "MessageEvent", "source": "agent", "llm_message": dict(message)}:
                text = content_text(message)
                yield from self._whole(event, message.get("reasoning_content") or "", text)
                self.answer = text or self.answer
            case {"kind": "MessageEvent", "source": source, "llm_message": dict(message)}:
                yield UserSaid(content_text(message), note=source != "user")
            case {"kind": "ActionEvent", "action": {"kind": "FinishAction", "message": str(text)}}:
                yield from self._whole(event, event.get("reasoning_content") or "", text)
                self.answer = text
            case {"kind": "ActionEvent", "action": {"kind": "ThinkAction"}}:
                yield from self._whole(event, event.get("reasoning_content") or "", "")
            case {"kind": "ActionEvent", "tool_call_id": str(call_id)}:
                if event.get("reasoning_content"):
                    yield from self._whole(event, event["reasoning_content"], "")
                yield Called(self._asked(event, call_id))
            case {"kind": "ACPToolCallEvent", "tool_call_id": str(call_id)}:
                yield from self._tool_call(event, call_id)
            case {"kind": str(kind), "tool_call_id": str(call_id)} if kind in CORE_CALLS:
                yield from self._answered(event, kind, call_id)
            case {"kind": "ConversationStateUpdateEvent", "key": str(key)}:
                yield from self._state(key, event.get("value"))
            case {"kind": "ConversationErrorEvent", "code": str(code), "detail": str(detail)}:
                self._streams.clear()
                yield Failed(code, detail)

    def _whole(self, event: Mapping[str, Any], thoughts: str, text: str) -> Iterator[Item]:
        """The part of a complete message that was not streamed."""
        stream = self._streams.pop(str(event.get("id")), None) or Streamed()
        for kind, whole in (("reasoning", thoughts), ("text", text)):
            said = stream.said[kind]
            # One that was changed while it streamed is given as a whole, below.
            rest = whole[len(said) :] if whole.startswith(said) else f"\n{whole}"
            if rest:
                yield Said(kind, rest)
        yield Said("text", "", ends=True)

    def _asked(self, event: Mapping[str, Any], call_id: str) -> Call:
        call = self.calls.get(call_id)
        if call is None:
            title = str(event.get("summary") or event.get("tool_name") or "tool")
            call = Call(call_id, title, str(event.get("tool_name") or ""), event.get("timestamp"))
            self.calls[call_id] = call
        call.status = "asking"
        action = event.get("action")
        if isinstance(action, Mapping) and isinstance(action.get("data"), Mapping):
            given = dict(action["data"])
            asked = given.pop(f"_{PERMISSION}", None) or given.pop(PERMISSION, None)
            call.raw_input = given or call.raw_input
            if isinstance(asked, Mapping):
                call.content = asked.get("content") or call.content
        return call

    def _tool_call(self, event: Mapping[str, Any], call_id: str) -> Iterator[Item]:
        call = self.calls.get(call_id)
        title, status = str(event.get("title") or "tool"), event.get("status")
        new = call is None
        if call is None:
            call = Call(call_id, title, str(event.get("tool_kind") or ""), event.get("timestamp"))
            self.calls[call_id] = call
        call.title = title
        call.raw_input = event.get("raw_input") or call.raw_input
        call.content = event.get("content") or call.content
        if new:  # even if it has already ended: another event reports that
            yield Called(call)
        elif status in ("completed", "failed"):
            call.output = block_text(call.content)
            yield from self._end(call, str(status), event)

    def _answered(self, event: Mapping[str, Any], kind: str, call_id: str) -> Iterator[Item]:
        call = self.calls.get(call_id)
        if call is None or (event.get("observation") or {}).get("kind") == "FinishObservation":
            return
        if kind == "ObservationEvent":
            status, call.output = "completed", content_text(event.get("observation") or {})
        elif kind == "UserRejectObservation":
            status, call.output = "rejected", str(event.get("rejection_reason") or "")
        elif call.withdrawn:  # its error says what it would have done
            status = "interrupted"
        else:
            status, call.output = "failed", str(event.get("error") or "")
        yield from self._end(call, status, event)

    def _end(self, call: Call, status: str, event: Mapping[str, Any]) -> Iterator[Item]:
        call.status = status
        call.ended = event.get("timestamp")
        del self.calls[call.id]
        yield CallEnded(call)

    def _agent(self, key: str, value: Any) -> None:
        if key == "current_mode":
            self._mode = str(value)
        elif not isinstance(value, Mapping):
            return
        elif key == "stats":
            self.stats = value
        elif key == "modes":
            self._modes, self._mode = value, ""
        else:
            self.model = str(value.get("acp_current_model_id") or "")
            needed = value.get("needs_credentials") or {}
            self.needed = tuple(map(str, needed.get("secrets") or ()))

    def _state(self, key: str, value: Any) -> Iterator[Item]:
        if key == "execution_status":
            self.status = str(value)
            if value != WAITING:
                for call in self.asking:
                    call.status = "running"
            if value in ENDED:
                self.calls.clear()
                self._streams.clear()
        elif key == "permission_request" and isinstance(value, Mapping):
            asked = self.calls.get(str(value.get("tool_call_id")))
            if asked is not None:
                asked.status = "asking" if value.get("status") == "waiting" else "running"
                asked.withdrawn = value.get("status") == "cancelled"
            return
        elif key == "available_commands" and isinstance(value, list):
            self.commands = tuple(
                (str(each["name"]), str(each.get("description") or ""))
                for each in value
                if isinstance(each, dict) and each.get("name")
            )
        elif key == "config_options" and isinstance(value, list):
            self._options = value
        elif key in ("agent_state", "stats", "modes", "current_mode"):
            self._agent(key, value)
        elif key == "plan" and isinstance(value, list):
            plan = tuple(
                (str(each.get("status", "")), str(each.get("content", "")))
                for each in value
                if isinstance(each, dict)
            )
            if plan != self.plan:
                self.plan = plan
                yield Planned(plan)
            return
        yield State(key, value)


def _choices(offered: object, name: str) -> list[tuple[str, str]]:
    return [
        (str(each[name]), str(each.get("description") or each.get("name") or ""))
        for each in (offered if isinstance(offered, list) else ())
        if isinstance(each, Mapping) and each.get(name)
    ]


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a message's or an observation's content."""
    parts = message.get("content") or ()
    return "".join(part.get("text") or "" for part in parts if isinstance(part, Mapping))


def block_text(blocks: object) -> str:
    """The text in the content of a tool call."""
    found = []
    for block in blocks if isinstance(blocks, list) else ():
        inner = block.get("content") if isinstance(block, Mapping) else None
        if isinstance(inner, Mapping) and isinstance(inner.get("text"), str):
            found.append(inner["text"])
    return "\n".join(found)
