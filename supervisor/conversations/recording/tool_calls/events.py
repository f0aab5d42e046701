"""The events of a tool call: what starts it, and what ends it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from supervisor.conversations.recording.bounds.attachments import (
    INLINE_CHARS,
    JSON,
    Attachment,
    Original,
    is_picture,
    picture,
    set_aside,
)
from supervisor.conversations.recording.bounds.truncation import (
    PAYLOAD_BYTES,
    Clipped,
    clip_payload,
    clip_text,
    dump,
    unpacked,
    write_payload,
)
from supervisor.conversations.recording.effects import ACP_CALL, UNDATED, Recorded
from supervisor.conversations.recording.tool_calls.asked import PERMISSION, SUMMARY_CHARS, Asked
from supervisor.conversations.recording.tool_calls.blocks import (
    describe,
    diffs_of,
    has_text,
    inner_of,
    snake_blocks,
    text_block,
    text_of,
)
from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState
from supervisor.events import (
    ActionEvent,
    AgentErrorEvent,
    ImageContent,
    MCPToolAction,
    MCPToolObservation,
    Message,
    MessageEvent,
    MessageToolCall,
    ObservationEvent,
    TextContent,
    UserRejectObservation,
    new_event_id,
)

UNCLAIMED: Final = "Allowed. The agent reported nothing more of it."
"""The result of a call that the agent reported nothing of after it was allowed."""

UNANSWERED: Final = "Not answered before the turn ended. Nothing of it is known to have begun."
"""The result of a question that was not answered, about a call that is not known otherwise."""

NOT_BEGUN: Final = "Interrupted: this tool call waited for an answer. Nothing of it has begun."
INTERRUPTED: Final = "Interrupted: this tool call did not end. What it has done so far is unknown."
"""The result of a call that was not closed before its turn ended or the server died. The end of the turn has
the reason."""

DETAILS: Final = "tool_call_details"
"""The key of the state with what an agent says of a call that the call's events have no place for."""

SAID_MAX: Final = 8
"""The most strings of a raw output that are looked for in the text that a call returned."""

_DONE: Final = (Ending.COMPLETED, Ending.UNANSWERED)

_UNTRIED: Final = (Ending.REJECTED, Ending.UNANSWERED)

_NOTHING: Final = Clipped(None)
_NOTHING_SHOWN: Final = Clipped("")


def start_action(call: ToolCallState, event_id: str, response_id: str) -> Recorded:
    """The first event of a call, as an ActionEvent. `response_id`: of the model's response."""
    # Some agents never send a call's input, and describe in its content what it will do.
    shown = None if call.raw_input or call.ended else call.question()
    return action_event(call, event_id, response_id, shown)


def start_acp(call: ToolCallState, event_id: str) -> Recorded:
    """The first event of a call, as an ACPToolCallEvent."""
    given = content = _NOTHING
    if call.raw_input is not None:
        given = _written_input(call, event_id)
    if call.content is not None:
        content = _content(call, [], event_id)
    call.acp = True
    call.started_id = event_id
    body = _acp_event(call, event_id, call.status or "pending", given.value, None, content.value)
    return Recorded(None, (*given.attachments, *content.attachments), body)


def _acp_event(
    call: ToolCallState,
    event_id: str,
    status: str,
    raw_input: Any,
    raw_output: Any,
    content: Any,
    *,
    failed: bool = False,
) -> dict[str, Any]:
    """An ACPToolCallEvent as `dump_event` writes it."""
    kind = call.kind
    body: dict[str, Any] = {
        "id": event_id,
        "timestamp": UNDATED,
        "source": "agent",
        "tool_call_id": call.call_id,
        "title": call.title or kind or "tool",
        "status": status,
    }
    if kind is not None:
        body["tool_kind"] = kind
    if raw_input is not None:
        body["raw_input"] = raw_input
    if raw_output is not None:
        body["raw_output"] = raw_output
    if content is not None:
        body["content"] = content
    body["is_error"] = failed
    body["kind"] = ACP_CALL
    return body


def _written_input(call: ToolCallState, event_id: str) -> Clipped:
    given = call.raw_input
    body = call.input_body() if type(given) is dict else None
    return write_payload(given, f"{event_id}-input", PAYLOAD_BYTES, call.originals, body)


def action_event(
    call: ToolCallState, event_id: str, response_id: str, question: Asked | None = None
) -> Recorded:
    """A call as an ActionEvent: the first event in core, and whenever a person is asked about it.

    `question`: what that person gets to see of it besides its input.
    """
    given = clip_payload(call.arguments(), f"{event_id}-input", PAYLOAD_BYTES, call.originals)
    data, attachments, words = given.value, given.attachments, ""
    if question is not None and question.content:
        shown = question.data(f"{event_id}-asked", call.originals)
        data = {**data, (f"_{PERMISSION}" if PERMISSION in data else PERMISSION): shown.value}
        attachments, words = (*attachments, *shown.attachments), question.words()
    call.started_id = call.started_id or event_id
    call.action_id = event_id
    risk = call.recorded_risk = call.risk
    title = call.recorded_title = call.title
    call.input_recorded = True
    call.inputs_recorded = 1 if call.raw_input else 0
    name = call.tool_name
    return Recorded(
        ActionEvent(
            id=event_id,
            timestamp=UNDATED,
            thought=(TextContent(text=words),) if words else (),
            action=MCPToolAction(data=data),
            tool_name=name,
            tool_call_id=call.call_id,
            tool_call=MessageToolCall(
                id=call.call_id,
                name=name,
                arguments=dump(given.value).decode(),
                origin="completion",
            ),
            llm_response_id=response_id,
            security_risk=risk,
            summary=title[:SUMMARY_CHARS] or None,
        ),
        attachments,
    )


def late_input(call: ToolCallState, *, last: bool) -> dict[str, Any] | None:
    """The state for an input that came, or changed, after the call's ActionEvent was written: when the call
    runs, and at its end (`last`). None: the log has it."""
    if call.action_id is None or call.input_recorded:
        return None
    if not last and (call.inputs_recorded or call.status != "in_progress"):
        return None
    call.input_recorded = True
    call.inputs_recorded += 1
    return {"action_id": call.action_id, "tool_call_id": call.call_id, "input": call.arguments()}


def question_event(event_id: str, response_id: str, question: Asked) -> Recorded:
    """What a person is asked about calls whose events are written already: a message of the agent's."""
    words = f"May I? {question.title}".rstrip()
    text = f"{words}\n\n{question.words()}".rstrip()
    return Recorded(
        MessageEvent(
            id=event_id,
            source="agent",
            llm_message=Message(role="assistant", content=(TextContent(text=text),)),
            llm_response_id=response_id,
        )
    )


def end_events(call: ToolCallState, ending: Ending, mint: Callable[[], str]) -> list[Recorded]:
    """What closes a call, once: one event, or two for a call that was first shown as an ACP call and then
    asked a person about, since then both its first events want their answer."""
    call.closed = True
    call.content = unpacked(call.content)
    output = _NOTHING_SHOWN if call.output is None and call.shown is None else call.close_output()
    closing: list[Recorded] = []
    if call.action_id is not None:
        closing.append(_end_of_action(call, call.action_id, ending, mint(), output))
    if call.acp:
        closing.append(_end_of_acp(call, ending, mint(), output))
    return closing


def interruption(*, begun: bool) -> str:
    """The result of a call that did not end. `begun`: whether it may have done anything; not while a person
    was asked whether it may."""
    return INTERRUPTED if begun else NOT_BEGUN


def interrupted_action(tool_name: str, call_id: str, *, begun: bool) -> AgentErrorEvent:
    """The end of a call that did not end, where its first event is an ActionEvent."""
    error = interruption(begun=begun)
    return AgentErrorEvent(id=new_event_id(), tool_name=tool_name, tool_call_id=call_id, error=error)


def _end_of_acp(call: ToolCallState, ending: Ending, event_id: str, output: Clipped) -> Recorded:
    failed = ending not in _DONE
    given = raw = content = _NOTHING
    if call.raw_input is not None:
        given = _written_input(call, event_id)
    if call.raw_output is not None:
        raw = write_payload(call.raw_output, f"{event_id}-output", PAYLOAD_BYTES, call.originals)
    more: list[Any] = []
    attachments: tuple[Attachment, ...] = ()
    if output.value and ending not in _UNTRIED and _output_is_missing(call, output.value):
        more, attachments = [text_block(output.value)], output.attachments
    words = _ending_text(call, ending)
    last = text_block(words) if words else None
    if more or last is not None or call.content is not None or call.diffs is not None:
        content = _content(call, more, event_id, last=last, done=not failed)
    body = _acp_event(
        call,
        event_id,
        "failed" if failed else "completed",
        given.value,
        raw.value,
        content.value,
        failed=failed,
    )
    attachments = (*given.attachments, *raw.attachments, *attachments, *content.attachments)
    return Recorded(None, attachments, body)


def _output_is_missing(call: ToolCallState, output: str) -> bool:
    """Whether the output of a call's shell is missing in its content."""
    blocks = call.blocks()[0]
    if not call.terminals:
        return not has_text(blocks)
    # It names the terminal in place of the output; not every agent means that by it.
    return not any(output.strip() in text_of(block) for block in blocks or ())


def _content(
    call: ToolCallState,
    more: list[Any],
    event_id: str,
    *,
    last: Any = None,
    done: bool = False,
) -> Clipped:
    """A call's content as clients read it, with blocks after it that are within their bounds already: `more`
    of what it returned, and a `last` one."""
    given, left_out = call.blocks(done=done)
    clip = clip_payload if more or left_out or last is not None else write_payload
    clipped = clip(snake_blocks(given), f"{event_id}-content", PAYLOAD_BYTES, call.originals)
    blocks, attachments = clipped.value, clipped.attachments
    if isinstance(blocks, dict):  # its shape was lost
        blocks = [text_block(str(blocks["truncated"]))]
    if left_out:
        original = Original(f"{event_id}-blocks", call.originals, JSON)
        attachments = (*attachments, *original.put(dump(unpacked(call.content))))
        more = [*more, text_block(f"[{left_out} blocks cut; {original.where()}]")]
    if last is not None:
        more = [*more, last]
    if more:
        blocks = [*(blocks or []), *more]
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
                rejection_reason=_ending_text(call, ending),
                rejection_source=call.rejected_by,
            )
        )
    done = ending in _DONE
    given = _given_of(call, event_id, output, done=done)
    name = call.tool_name
    if not done:
        error = given.text or "The tool call failed."
        if ending is Ending.INTERRUPTED:
            error = f"{_ending_text(call, ending)} {given.text}".strip()
        event = AgentErrorEvent(id=event_id, tool_name=name, tool_call_id=call.call_id, error=error)
        return Recorded(event, given.attachments)
    if ending is Ending.UNANSWERED:
        given = _Given(UNANSWERED)
    texts = (TextContent(text=given.text),) if given.text else ()
    pictures = (ImageContent(image_urls=given.pictures),) if given.pictures else ()
    return Recorded(
        ObservationEvent(
            id=event_id,
            timestamp=UNDATED,
            tool_name=name,
            tool_call_id=call.call_id,
            action_id=action_id,
            observation=MCPToolObservation(tool_name=name, content=(*texts, *pictures)),
        ),
        given.attachments,
    )


def _ending_text(call: ToolCallState, ending: Ending) -> str:
    """The text at the end of a call, next to what it returned."""
    if ending is Ending.REJECTED:
        return call.rejection or "User rejected the action"
    if ending is Ending.UNANSWERED:
        return UNANSWERED
    if ending is Ending.INTERRUPTED:
        return interruption(begun=call.begun)
    return UNCLAIMED if call.unclaimed and ending is Ending.COMPLETED else ""


class _Given(NamedTuple):
    """What a call returned, for an event without blocks."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    pictures: tuple[str, ...] = ()


def _given_of(call: ToolCallState, event_id: str, output: Clipped, *, done: bool = False) -> _Given:
    """What a call returned, as text within its bounds and, if it is `done`, pictures: its contents and the
    output of a terminal that it names, else its shell's `output`. Its raw output, where there is nothing else
    that it said: a diff is what it did."""
    blocks, left_out = call.blocks(done=done)
    if call.unclaimed and done:
        blocks, left_out = [text_block(UNCLAIMED), *diffs_of(blocks)], 0
    texts: list[str] = []
    pictures: list[str] = []
    attachments: tuple[Attachment, ...] = ()
    words = False
    keep = INLINE_CHARS if done else 0
    for block in blocks or ():
        text = text_of(block)
        if not text:
            shown, stored = set_aside(
                inner_of(block), f"{event_id}-{len(texts)}-{len(pictures)}", call.originals, keep
            )
            attachments = (*attachments, *stored)
            if done and is_picture(shown):
                pictures.append(picture(shown) or "")
                keep -= len(shown.get("data") or "")
            text = describe(shown)
        elif block.get("type") != "diff":
            words = True
        if text:
            texts.append(text)
    if texts and left_out:
        texts.append(f"[{left_out} blocks cut]")
    if output.value and (not texts or (call.terminals and _output_is_missing(call, output.value))):
        texts.append(output.value)
        attachments = (*attachments, *output.attachments)
        words = True
    said = texts[0] if len(texts) == 1 else "\n".join(texts)
    if call.raw_output is not None:
        raw = unpacked(call.raw_output)
        if not words:
            text = raw if isinstance(raw, str) else dump(raw).decode()
            said = f"{said}\n{text}" if said else text
        elif not _is_said(raw, said):
            call.unsaid = raw
    cut = clip_text(said, f"{event_id}-output", PAYLOAD_BYTES, call.originals)
    if attachments or pictures:
        return _Given(cut.value, (*attachments, *cut.attachments), tuple(pictures))
    return _Given(cut.value, cut.attachments)


def _is_said(raw: Any, text: str) -> bool:
    """Whether a text has all of a raw output: few strings, and nothing else."""
    parts = raw.values() if isinstance(raw, dict) else (raw,)
    return len(parts) <= SAID_MAX and all(isinstance(each, str) and each.strip() in text for each in parts)


def details_of(call: ToolCallState) -> dict[str, Any]:
    """What the agent said of a call that its events have no place for; empty if there is nothing."""
    details = dict(call.rest)
    if call.name and call.acp:
        details["name"] = call.name
    if call.locations:
        details["locations"] = list(call.locations)
    if call.unsaid is not None and not call.acp:
        details["raw_output"] = call.unsaid
    if details:
        details["tool_call_id"] = call.call_id
    return details
