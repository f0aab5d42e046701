"""A tool call of an agent, gathered from its updates, and the events it becomes. Pure.

Every call gives exactly two events: one when it starts, one when it ends. They have the same ids and
places in both vocabularies; only their form differs:

    extended            ACPToolCallEvent      then  ACPToolCallEvent
    core, or confirmed  ActionEvent           then  ObservationEvent | AgentErrorEvent | UserRejectObservation

A call that waits for a person's confirmation is an ActionEvent in either vocabulary, so that the answer
can refer to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import orjson

from supervisor.events import (
    ACPToolCallEvent,
    ActionEvent,
    AgentErrorEvent,
    Event,
    MCPToolAction,
    MCPToolObservation,
    MessageToolCall,
    ObservationEvent,
    TextContent,
    UserRejectObservation,
)

from .clip import Spill, clip_payload

TITLE_CHARS: Final = 2_000
"""Longest title of a card; agents put whole commands there."""


class Form(enum.Enum):
    """The kind of event a call is recorded as."""

    ACP = "acp"
    ACTION = "action"


class Ending(enum.Enum):
    """How a call ended. `INTERRUPTED`: its turn ended first, and nobody knows how far it came."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    INTERRUPTED = "interrupted"


@attrs.define
class Card:
    """One tool call: the latest of every field that its updates carried.

    `call_id` is unique within the conversation (agents reuse theirs across sessions), `agent_call_id` the
    agent's own. `started_id` is the id of its first event once that has been recorded.
    """

    call_id: str
    agent_call_id: str
    title: str = ""
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    content: list[Any] | None = None
    locations: list[Any] | None = None
    output: str = ""
    form: Form | None = None
    started_id: str | None = None
    action_id: str | None = None
    rejection: str | None = None
    closed: bool = False

    def merge(self, update: Mapping[str, Any]) -> None:
        """Take over what a `tool_call` or `tool_call_update` says; null and absent mean unchanged."""
        title = update.get("title")
        if isinstance(title, str) and title:
            self.title = title[:TITLE_CHARS]
        for field in ("name", "kind", "status"):
            value = update.get(field)
            if isinstance(value, str) and value:
                setattr(self, field, value)
        if update.get("rawInput") is not None:
            self.raw_input = update["rawInput"]
        if update.get("rawOutput") is not None:
            self.raw_output = update["rawOutput"]
        for field in ("content", "locations"):
            value = update.get(field)
            if isinstance(value, list):
                setattr(self, field, value)
        self._take_terminal_output(update.get("_meta"))

    def _take_terminal_output(self, meta: Any) -> None:
        # Two agents stream the output of their shell this way to clients that advertise it.
        if not isinstance(meta, Mapping):
            return
        for key in ("terminal_output", "terminal_output_delta"):
            part = meta.get(key)
            if isinstance(part, Mapping) and isinstance(part.get("data"), str):
                self.output = part["data"] if key == "terminal_output" else self.output + part["data"]

    @property
    def tool_name(self) -> str:
        """The tool's programmatic name where the agent gives one, else its kind."""
        return self.name or self.kind or "tool"

    @property
    def ended(self) -> bool:
        """Whether the agent says that the call is over."""
        return self.status in {"completed", "failed"}

    def arguments(self) -> dict[str, Any]:
        """The raw input as an object, as tool calls carry it."""
        if isinstance(self.raw_input, Mapping):
            return dict(self.raw_input)
        return {} if self.raw_input is None else {"input": self.raw_input}


@attrs.frozen
class Recorded:
    """An event for the journal and the originals that were cut out of it."""

    event: Event
    spills: tuple[Spill, ...] = ()


def start_event(card: Card, form: Form, event_id: str, response_id: str) -> Recorded:
    """The first event of a call. Remembers in the card what it was recorded as."""
    if form is Form.ACP:
        given = clip_payload(card.raw_input, f"{event_id}-input")
        content = clip_payload(snake_blocks(card.content), f"{event_id}-content")
        card.form = form
        card.started_id = event_id
        return Recorded(
            ACPToolCallEvent(
                id=event_id,
                tool_call_id=card.call_id,
                title=card.title or card.kind or "tool",
                status=card.status or "pending",
                tool_kind=card.kind,
                raw_input=given.value,
                raw_output=None,
                content=content.value,
            ),
            _spills(given.spill, content.spill),
        )
    return action_event(card, event_id, response_id)


def action_event(card: Card, event_id: str, response_id: str) -> Recorded:
    """A call as an ActionEvent: the first event in core, and whenever a person is asked about it."""
    given = clip_payload(card.arguments(), f"{event_id}-input")
    if card.form is None:
        card.form = Form.ACTION
        card.started_id = event_id
    card.action_id = event_id
    return Recorded(
        ActionEvent(
            id=event_id,
            thought=(),
            action=MCPToolAction(data=given.value),
            tool_name=card.tool_name,
            tool_call_id=card.call_id,
            tool_call=MessageToolCall(
                id=card.call_id,
                name=card.tool_name,
                arguments=orjson.dumps(given.value, option=orjson.OPT_NON_STR_KEYS).decode(),
                origin="completion",
            ),
            llm_response_id=response_id,
            summary=card.title[:200] or None,
        ),
        _spills(given.spill),
    )


def end_events(card: Card, ending: Ending, ids: Iterable[str]) -> list[Recorded]:
    """What closes a call, once: one event, or two for a call that was first shown as an ACP card and then
    asked a person about, since then both its first events want their answer."""
    card.closed = True
    names = iter(ids)
    closing: list[Recorded] = []
    if card.action_id is not None:
        closing.append(_end_of_action(card, card.action_id, ending, next(names)))
    if card.form is Form.ACP:
        closing.append(_end_of_acp(card, ending, next(names)))
    return closing


def _end_of_acp(card: Card, ending: Ending, event_id: str) -> Recorded:
    given = clip_payload(card.raw_input, f"{event_id}-input")
    output = clip_payload(card.raw_output, f"{event_id}-output")
    blocks = snake_blocks(card.content)
    said = _words_for(card, ending)
    if said is not None:
        blocks = [*(blocks or []), text_block(said)]
    elif card.output and not _has_text(blocks):
        blocks = [*(blocks or []), text_block(card.output)]
    content = clip_payload(blocks, f"{event_id}-content")
    failed = ending is not Ending.COMPLETED
    return Recorded(
        ACPToolCallEvent(
            id=event_id,
            tool_call_id=card.call_id,
            title=card.title or card.kind or "tool",
            status="failed" if failed else "completed",
            tool_kind=card.kind,
            raw_input=given.value,
            raw_output=output.value,
            content=content.value,
            is_error=failed,
        ),
        _spills(given.spill, output.spill, content.spill),
    )


def _end_of_action(card: Card, action_id: str, ending: Ending, event_id: str) -> Recorded:
    if ending is Ending.REJECTED:
        return Recorded(
            UserRejectObservation(
                id=event_id,
                tool_name=card.tool_name,
                tool_call_id=card.call_id,
                action_id=action_id,
                rejection_reason=card.rejection or "User rejected the action",
            )
        )
    text = clip_payload(output_text(card), f"{event_id}-output")
    if ending is Ending.COMPLETED:
        return Recorded(
            ObservationEvent(
                id=event_id,
                tool_name=card.tool_name,
                tool_call_id=card.call_id,
                action_id=action_id,
                observation=MCPToolObservation(
                    tool_name=card.tool_name,
                    content=(TextContent(text=text.value),) if text.value else (),
                ),
            ),
            _spills(text.spill),
        )
    said = _words_for(card, ending)
    return Recorded(
        AgentErrorEvent(
            id=event_id,
            tool_name=card.tool_name,
            tool_call_id=card.call_id,
            error=f"{said} {text.value}".strip() if said else (text.value or "The tool call failed."),
        ),
        _spills(text.spill),
    )


def _words_for(card: Card, ending: Ending) -> str | None:
    if ending is Ending.INTERRUPTED:
        return "Interrupted: the turn ended before this tool call did; what it has done so far is not known."
    if ending is Ending.REJECTED:
        return card.rejection or "User rejected the action"
    return None


def output_text(card: Card) -> str:
    """What a call gave back, as text: its text contents, else its shell output, else its raw output."""
    texts = [text for block in card.content or [] if (text := _text_of(block))]
    if texts:
        return "\n".join(texts)
    if card.output:
        return card.output
    raw = card.raw_output
    if raw is None:
        return ""
    return raw if isinstance(raw, str) else orjson.dumps(raw, option=orjson.OPT_NON_STR_KEYS).decode()


def _text_of(block: Any) -> str:
    if not isinstance(block, Mapping):
        return ""
    if block.get("type") == "diff":
        old = block.get("oldText")
        what = "new file" if old is None else "changed"
        return f"{block.get('path', '')} ({what})"
    inner = block.get("content") if block.get("type") == "content" else block
    if isinstance(inner, Mapping) and isinstance(inner.get("text"), str):
        return str(inner["text"])
    return ""


def _has_text(blocks: list[Any] | None) -> bool:
    return any(block.get("type") == "content" for block in blocks or [] if isinstance(block, Mapping))


def text_block(text: str) -> dict[str, Any]:
    """A text in the shape that clients expect inside a card's content."""
    return {
        "type": "content",
        "content": {"type": "text", "text": text, "annotations": None, "field_meta": None},
        "field_meta": None,
    }


def snake_blocks(blocks: list[Any] | None) -> list[Any] | None:
    """Tool content as clients read it: snake_case keys, nulls kept, bare content blocks wrapped."""
    if blocks is None:
        return None
    return [_snake_block(block) for block in blocks]


def _snake_block(block: Any) -> Any:
    if not isinstance(block, Mapping):
        return block
    kind = block.get("type")
    if kind == "diff":
        return {
            "type": "diff",
            "path": block.get("path"),
            "old_text": block.get("oldText"),
            "new_text": block.get("newText"),
            "field_meta": block.get("_meta"),
        }
    if kind == "terminal":
        return {"type": "terminal", "terminal_id": block.get("terminalId"), "field_meta": block.get("_meta")}
    inner = block.get("content") if kind == "content" else block
    return {
        "type": "content",
        "content": _snake_content(inner),
        "field_meta": block.get("_meta") if kind == "content" else None,
    }


_SNAKE: Final = {"mimeType": "mime_type", "_meta": "field_meta"}


def _snake_content(inner: Any) -> Any:
    if not isinstance(inner, Mapping):
        return inner
    out: dict[str, Any] = {_SNAKE.get(str(key), str(key)): value for key, value in inner.items()}
    out.setdefault("annotations", None)
    out.setdefault("field_meta", None)
    if isinstance(out.get("resource"), Mapping):
        out["resource"] = {_SNAKE.get(str(key), str(key)): value for key, value in out["resource"].items()}
    return out


def _spills(*spills: Spill | None) -> tuple[Spill, ...]:
    return tuple(spill for spill in spills if spill is not None)
