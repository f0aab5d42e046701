"""A tool call, gathered from its updates, and the events that it becomes. Pure.

Every call gives exactly two events: one when it starts, one when it ends. They have the same ids and
places in both vocabularies; only their form differs:

    extended            ACPToolCallEvent      then  ACPToolCallEvent
    core, or confirmed  ActionEvent           then  ObservationEvent | AgentErrorEvent | UserRejectObservation

A call that waits for a person's confirmation is an ActionEvent in either vocabulary, so that the answer
can refer to it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.recording.attachments import JSON, Attachment, Original, Originals
from supervisor.conversations.recording.gather import Gathered
from supervisor.conversations.recording.risk import leads_out, risk_of
from supervisor.conversations.recording.truncation import (
    PAYLOAD_BYTES,
    Clipped,
    Packed,
    clip_payload,
    dump,
    unpacked,
)
from supervisor.credentials.masking import NOTHING, Masker, StreamMask
from supervisor.events import (
    ACPToolCallEvent,
    ActionEvent,
    AgentErrorEvent,
    Event,
    MCPToolAction,
    MCPToolObservation,
    MessageToolCall,
    ObservationEvent,
    SecurityRisk,
    TextContent,
    UserRejectObservation,
    new_event_id,
)

TITLE_CHARS: Final = 2_000
"""Longest title of a call, in characters; agents put whole commands there."""


OUTPUT_BYTES: Final = PAYLOAD_BYTES
"""Most of a shell's output in an event, bytes."""

BLOCKS_MAX: Final = 1_000
"""Blocks of content in an event: a person reads no more of one call."""

INTERRUPTED: Final = "Interrupted: this tool call did not end. What it has done so far is unknown."
"""What is said of a call that nobody closed: neither the agent before its turn ended, nor anybody before the
server died. The end of the turn has the reason."""

FOLDED_BYTES: Final = 2 * 1024
"""Bytes kept in memory of each payload of a call that has to make room.

Two thousand such calls take some sixteen megabytes.
"""


class Form(enum.Enum):
    """The kind of event a call is recorded as."""

    ACP = "acp"
    ACTION = "action"


class Ending(enum.Enum):
    """How a call ended. `INTERRUPTED`: its turn ended first, and its effects are unknown."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    INTERRUPTED = "interrupted"


PAYLOADS: Final = (("rawInput", "raw_input"), ("rawOutput", "raw_output"), ("content", "content"))
"""The members of an update that may be large, and the attribute of the call for each."""


@attrs.define(eq=False)
class ToolCallState:
    """One tool call: the latest of every field that its updates carried.

    `call_id` is unique within the conversation (agents reuse theirs across sessions), `agent_call_id` the
    agent's own. `started_id` is the id of its first event once that has been recorded, `action_id` that of
    its ActionEvent, if it has one, and `told_risk` the risk in there.

    `workspace` is the directory of the conversation; `outside` tells that the call is about a file beyond it.

    `shown` is a shell's output as the agent repeats it whole, `output` what it adds to it piece by piece.
    Payloads are looked at again only when another call has its turn (`pack`): an agent that sends the whole
    anew with each update has it measured once.
    """

    call_id: str
    agent_call_id: str
    mint: Callable[[], str] = new_event_id
    mask: Masker = NOTHING
    originals: Originals = attrs.field(factory=Originals)
    workspace: str = "/"
    outside: bool = False
    title: str = ""
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    content: Any = None
    shown: Any = None
    output: Gathered | None = None
    form: Form | None = None
    started_id: str | None = None
    action_id: str | None = None
    told_risk: SecurityRisk = SecurityRisk.UNKNOWN
    rejection: str | None = None
    closed: bool = False
    _stream: StreamMask | None = None
    _sizes: dict[str, int] = attrs.field(factory=dict)
    _unmeasured: set[str] = attrs.field(factory=set)
    _folds: int = 0
    _uid: str | None = None

    @property
    def uid(self) -> str:
        """Identifies its attachments while it is open; large calls only."""
        if self._uid is None:
            self._uid = self.mint()
        return self._uid

    def merge(self, update: Mapping[str, Any], *, asking: bool = False) -> list[Attachment]:
        """Merge a `tool_call` or `tool_call_update`; null and absent members mean unchanged.

        The status of a permission request (`asking`) does not count. Returns the attachments to write now.
        """
        title = update.get("title")
        if isinstance(title, str) and title:
            self.title = title[:TITLE_CHARS]
        for field in ("name", "kind", "status"):
            value = update.get(field)
            if isinstance(value, str) and value and not (asking and field == "status"):
                setattr(self, field, cut(value, NAME_CHARS))
        self.outside = self.outside or leads_out(update, self.workspace)
        for key, field in PAYLOADS:
            value = update.get(key)
            if value is not None and (field != "content" or isinstance(value, list)):
                self._put(field, value)
        return self._take_terminal_output(update.get("_meta"))

    def _take_terminal_output(self, meta: Any) -> list[Attachment]:
        # Two agents stream the output of their shell this way to clients that advertise it.
        attachments: list[Attachment] = []
        if not isinstance(meta, Mapping):
            return attachments
        for key in ("terminal_output", "terminal_output_delta"):
            part = meta.get(key)
            if not isinstance(part, Mapping) or not isinstance(part.get("data"), str):
                continue
            if key == "terminal_output":
                self.output = self._stream = None
                self._put("shown", part["data"])
            else:
                attachments += self._append(part["data"])
        return attachments

    def _append(self, data: str) -> list[Attachment]:
        attachments: list[Attachment] = []
        if self.output is None or self._stream is None:
            self._folds += 1
            self.output = Gathered(f"{self.uid}-output-{self._folds}", OUTPUT_BYTES, self.originals)
            self._stream = self.mask.stream()
            before = unpacked(self.shown)
            self._put("shown", None)
            if isinstance(before, str):
                attachments += self.output.add(self._stream.feed(before))
        return attachments + self.output.add(self._stream.feed(data))

    def close_output(self) -> Clipped:
        """The shell's output, whole or cut, at the end."""
        if self.output is None or self._stream is None:
            shown = unpacked(self.shown)
            if not isinstance(shown, str):
                return Clipped("")
            text = self.mask.text(shown)
            return clip_payload(text, f"{self.uid}-output", OUTPUT_BYTES, self.originals)
        attachments = self.output.add(self._stream.flush())
        closed = self.output.close()
        return Clipped(closed.value, (*attachments, *closed.attachments))

    # -- memory -------------------------------------------------------------------------------------------

    def _put(self, field: str, value: Any) -> None:
        setattr(self, field, value)
        self._sizes.pop(field, None)
        if value is None:
            self._unmeasured.discard(field)
        else:
            self._unmeasured.add(field)

    @property
    def weight(self) -> int:
        """Bytes of its payloads, without those of the last update."""
        return sum(self._sizes.values()) + (0 if self.output is None else self.output.held)

    def pack(self) -> None:
        """Measure the last payloads; large ones are kept as bytes."""
        for field in self._unmeasured:
            body = dump(getattr(self, field))
            self._sizes[field] = len(body)
            if len(body) > PAYLOAD_BYTES:
                setattr(self, field, Packed(body))
        self._unmeasured.clear()

    def fold(self) -> list[Attachment]:
        """Make room: keep the beginning and the end of each payload and set the rest aside."""
        self.pack()
        self._folds += 1
        attachments: list[Attachment] = [] if self.output is None else self.output.fold(FOLDED_BYTES)
        for field, size in self._sizes.items():
            if size > FOLDED_BYTES:
                blob_id = f"{self.uid}-{field}-{self._folds}"
                folded = clip_payload(getattr(self, field), blob_id, FOLDED_BYTES, self.originals)
                value = folded.value
                if field == "content" and not isinstance(value, list):
                    value = [{"type": "content", "content": {"type": "text", "text": value["truncated"]}}]
                setattr(self, field, value)
                self._sizes[field] = FOLDED_BYTES
                attachments += folded.attachments
        return attachments

    def blocks(self) -> tuple[list[Any] | None, int]:
        """Its content, as many blocks as an event has, and how many more there are."""
        content = unpacked(self.content)
        if not isinstance(content, list):
            return None, 0
        return content[:BLOCKS_MAX], max(0, len(content) - BLOCKS_MAX)

    @property
    def tool_name(self) -> str:
        """The tool's programmatic name where the agent gives one, else its kind."""
        return self.name or self.kind or "tool"

    @property
    def risk(self) -> SecurityRisk:
        """How risky it is, as far as the agent has described it by now."""
        return risk_of(self.kind, outside=self.outside)

    @property
    def ended(self) -> bool:
        """Whether the agent reports the call as ended."""
        return self.status in {"completed", "failed"}

    def arguments(self) -> dict[str, Any]:
        """The raw input as an object, as tool calls carry it."""
        given = unpacked(self.raw_input)
        if isinstance(given, Mapping):
            return dict(given)
        return {} if given is None else {"input": given}

    @property
    def has_output(self) -> bool:
        """Whether it has any output yet."""
        return bool(self.content or self.output or self.shown)


@attrs.frozen
class Recorded:
    """An event for the journal and the originals that were cut out of it."""

    event: Event
    attachments: tuple[Attachment, ...] = ()


def start_event(call: ToolCallState, form: Form, event_id: str, response_id: str) -> Recorded:
    """The first event of a call. Remembers in the call what it was recorded as."""
    if form is Form.ACP:
        given = clip_payload(call.raw_input, f"{event_id}-input", PAYLOAD_BYTES, call.originals)
        content = _content(call, [], event_id)
        call.form = form
        call.started_id = event_id
        return Recorded(
            ACPToolCallEvent(
                id=event_id,
                tool_call_id=call.call_id,
                title=call.title or call.kind or "tool",
                status=call.status or "pending",
                tool_kind=call.kind,
                raw_input=given.value,
                raw_output=None,
                content=content.value,
            ),
            (*given.attachments, *content.attachments),
        )
    return action_event(call, event_id, response_id)


def action_event(call: ToolCallState, event_id: str, response_id: str) -> Recorded:
    """A call as an ActionEvent: the first event in core, and whenever a person is asked about it."""
    given = clip_payload(call.arguments(), f"{event_id}-input", PAYLOAD_BYTES, call.originals)
    if call.form is None:
        call.form = Form.ACTION
        call.started_id = event_id
    call.action_id = event_id
    call.told_risk = call.risk
    return Recorded(
        ActionEvent(
            id=event_id,
            thought=(),
            action=MCPToolAction(data=given.value),
            tool_name=call.tool_name,
            tool_call_id=call.call_id,
            tool_call=MessageToolCall(
                id=call.call_id,
                name=call.tool_name,
                arguments=dump(given.value).decode(),
                origin="completion",
            ),
            llm_response_id=response_id,
            security_risk=call.risk,
            summary=call.title[:200] or None,
        ),
        given.attachments,
    )


def end_events(call: ToolCallState, ending: Ending, ids: Iterator[str]) -> list[Recorded]:
    """What closes a call, once: one event, or two for a call that was first shown as an ACP call and then
    asked a person about, since then both its first events want their answer."""
    call.closed = True
    call.content = unpacked(call.content)
    closing: list[Recorded] = []
    output = call.close_output()
    if ending is Ending.INTERRUPTED:
        return _interrupted(call, ids, output)
    if call.action_id is not None:
        closing.append(_end_of_action(call, call.action_id, ending, next(ids), output))
    if call.form is Form.ACP:
        closing.append(_end_of_acp(call, ending, next(ids), output))
    return closing


def _interrupted(call: ToolCallState, ids: Iterator[str], output: Clipped) -> list[Recorded]:
    """What closes a call that did not end, with what it gave back until then."""
    closing: list[Recorded] = []
    if call.action_id is not None:
        event_id = next(ids)
        given = _given_back(call, event_id, output)
        event = interrupted_action(event_id, call.tool_name, call.call_id, given.value)
        closing.append(Recorded(event, given.attachments))
    if call.form is Form.ACP:
        event_id = next(ids)
        raw_input, raw_output, content, attachments = _acp_payloads(call, event_id, output)
        closing.append(
            Recorded(
                interrupted_acp(
                    event_id,
                    call.call_id,
                    title=call.title or call.kind or "tool",
                    tool_kind=call.kind,
                    raw_input=raw_input,
                    raw_output=raw_output,
                    content=content,
                ),
                attachments,
            )
        )
    return closing


def interrupted_action(event_id: str, tool_name: str, call_id: str, output: str = "") -> AgentErrorEvent:
    """The end of a call that did not end, where its first event is an ActionEvent."""
    return AgentErrorEvent(
        id=event_id, tool_name=tool_name, tool_call_id=call_id, error=f"{INTERRUPTED} {output}".strip()
    )


def interrupted_acp(
    event_id: str,
    call_id: str,
    *,
    title: str,
    tool_kind: str | None,
    raw_input: Any,
    raw_output: Any = None,
    content: Sequence[Any] | None,
) -> ACPToolCallEvent:
    """The end of a call that did not end, where its first event is an ACPToolCallEvent. `content` is what it
    gave back until then, as clients read it."""
    return ACPToolCallEvent(
        id=event_id,
        tool_call_id=call_id,
        title=title,
        status="failed",
        tool_kind=tool_kind,
        raw_input=raw_input,
        raw_output=raw_output,
        content=(*(content or ()), text_block(INTERRUPTED)),
        is_error=True,
    )


def _acp_payloads(
    call: ToolCallState, event_id: str, output: Clipped
) -> tuple[Any, Any, Any, tuple[Attachment, ...]]:
    """Input, output and content of an ACP call that is over, and what was cut out of them. `output` is its
    shell's, which is content where the agent gave no other text."""
    given = clip_payload(call.raw_input, f"{event_id}-input", PAYLOAD_BYTES, call.originals)
    raw = clip_payload(call.raw_output, f"{event_id}-output", PAYLOAD_BYTES, call.originals)
    more: list[str] = []
    attachments: tuple[Attachment, ...] = ()
    if output.value and not _has_text(call.blocks()[0]):
        more, attachments = [output.value], output.attachments
    content = _content(call, more, event_id)
    attachments = (*given.attachments, *raw.attachments, *attachments, *content.attachments)
    return given.value, raw.value, content.value, attachments


def _end_of_acp(call: ToolCallState, ending: Ending, event_id: str, output: Clipped) -> Recorded:
    if ending is Ending.REJECTED:
        output = Clipped("")
    raw_input, raw_output, content, attachments = _acp_payloads(call, event_id, output)
    if ending is Ending.REJECTED:
        content = (*(content or ()), text_block(_rejection(call)))
    failed = ending is not Ending.COMPLETED
    return Recorded(
        ACPToolCallEvent(
            id=event_id,
            tool_call_id=call.call_id,
            title=call.title or call.kind or "tool",
            status="failed" if failed else "completed",
            tool_kind=call.kind,
            raw_input=raw_input,
            raw_output=raw_output,
            content=content,
            is_error=failed,
        ),
        attachments,
    )


def _content(call: ToolCallState, more: list[str], event_id: str) -> Clipped:
    """A call's content as clients read it, with texts after it that are within their bounds already."""
    given, left_out = call.blocks()
    clipped = clip_payload(snake_blocks(given), f"{event_id}-content", PAYLOAD_BYTES, call.originals)
    blocks, attachments = clipped.value, clipped.attachments
    if isinstance(blocks, Mapping):  # its shape was lost
        blocks = [text_block(str(blocks["truncated"]))]
    if left_out:
        original = Original(f"{event_id}-blocks", call.originals, JSON)
        attachments = (*attachments, *original.put(dump(unpacked(call.content))))
        more = [*more, f"[{left_out} blocks cut; {original.where()}]"]
    if more:
        blocks = [*(blocks or []), *map(text_block, more)]
    return Clipped(blocks, attachments)


def _end_of_action(
    call: ToolCallState, action_id: str, ending: Ending, event_id: str, output: Clipped
) -> Recorded:
    if ending is Ending.REJECTED:
        return Recorded(
            UserRejectObservation(
                id=event_id,
                tool_name=call.tool_name,
                tool_call_id=call.call_id,
                action_id=action_id,
                rejection_reason=_rejection(call),
            )
        )
    text = _given_back(call, event_id, output)
    if ending is Ending.COMPLETED:
        return Recorded(
            ObservationEvent(
                id=event_id,
                tool_name=call.tool_name,
                tool_call_id=call.call_id,
                action_id=action_id,
                observation=MCPToolObservation(
                    tool_name=call.tool_name,
                    content=(TextContent(text=text.value),) if text.value else (),
                ),
            ),
            text.attachments,
        )
    return Recorded(
        AgentErrorEvent(
            id=event_id,
            tool_name=call.tool_name,
            tool_call_id=call.call_id,
            error=text.value or "The tool call failed.",
        ),
        text.attachments,
    )


def _rejection(call: ToolCallState) -> str:
    return call.rejection or "User rejected the action"


def _given_back(call: ToolCallState, event_id: str, output: Clipped) -> Clipped:
    """What a call gave back, as text within its bounds: its text contents, else its shell's `output`, else
    its raw output."""
    blocks, left_out = call.blocks()
    texts = [text for block in blocks or [] if (text := _text_of(block))]
    if texts:
        said: Any = "\n".join([*texts, f"[{left_out} blocks cut]"] if left_out else texts)
    elif output.value:
        return output
    else:
        said = unpacked(call.raw_output)
    text = said if isinstance(said, str) else "" if said is None else dump(said).decode()
    return clip_payload(text, f"{event_id}-output", PAYLOAD_BYTES, call.originals)


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
    """A text in the shape that clients expect inside a call's content."""
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
