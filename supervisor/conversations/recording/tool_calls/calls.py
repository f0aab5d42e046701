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
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from supervisor.acp.schema import NAME_CHARS, bounded, cut
from supervisor.conversations.recording.bounds.attachments import Attachment, Originals
from supervisor.conversations.recording.bounds.truncation import (
    PAYLOAD_BYTES,
    Clipped,
    Gathered,
    Packed,
    clip_payload,
    dump,
    unpacked,
)
from supervisor.conversations.recording.effects import ToolOutput
from supervisor.conversations.recording.tool_calls.asked import (
    Asked,
    leads_out,
    locations_of,
    risk_of,
    together,
)
from supervisor.conversations.recording.tool_calls.blocks import diffs_of, terminals_of
from supervisor.credentials.masking import NOTHING, Masker, StreamMask
from supervisor.events import RejectionSource, SecurityRisk, new_event_id

TITLE_CHARS: Final = 2_000
"""Longest title of a call, in characters; agents put whole commands there."""


OUTPUT_BYTES: Final = PAYLOAD_BYTES
"""Most of a shell's output in an event, bytes."""

BLOCKS_MAX: Final = 1_000
"""Blocks of content in an event: a person reads no more of one call."""

TERMINALS_MAX: Final = 16
"""The most terminals of a call whose output becomes its own. Agents name one."""

FOLDED_BYTES: Final = 2 * 1024
"""Bytes kept in memory of each payload of a call that has to make room.

Two thousand such calls take some sixteen megabytes.
"""


def as_arguments(raw_input: Any) -> dict[str, Any]:
    """A raw input, which may be packed, as an object."""
    given = unpacked(raw_input)
    if isinstance(given, dict):
        return dict(given)
    return {} if given is None else {"input": given}


class Ending(enum.Enum):
    """How a call ended. `INTERRUPTED`: its turn ended first, and its effects are unknown. `UNANSWERED`: it
    was a question alone, which was not answered."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    INTERRUPTED = "interrupted"
    UNANSWERED = "unanswered"


INPUT_BODY_BYTES: Final = 4 * 1024
"""The largest input of a call whose JSON is cached for the call's second event, bytes: a large one would take
its memory twice."""

READ: Final = frozenset(
    {"sessionUpdate", "toolCallId", "title", "name", "kind", "status"}
    | {"content", "locations", "rawInput", "rawOutput"}
)
"""Members of an update that have a place here; what else it has is `rest`."""

OUTPUTS: Final = ("terminal_output", "terminal_output_delta")
"""Members of `_meta` that are the output of the call's shell."""

REST_BYTES: Final = 4 * 1024
"""About how many bytes of the rest are kept of a call: marks of the agent's own. 2,000 calls may be open."""


class ToolCallState:
    """One tool call: the latest of every field that its updates carried.

    `call_id` is unique within the conversation (agents reuse theirs across sessions), `agent_call_id` the
    agent's own. `started_id` is the id of its first event once that has been recorded, `action_id` that of
    its ActionEvent, if it has one, `recorded_risk` the risk and `recorded_title` the title in there.

    `workspace` is the directory of the conversation; `outside` tells that the call is about a file beyond it.

    `shown` is a shell's output that the agent resends as a whole, `output` what it sends in pieces. Payloads
    are measured only when another call is updated (`pack`), so that an agent that resends a whole payload
    with each update has it measured once.

    The initial values below are class attributes, since most calls change few of them.
    """

    outside: bool = False
    title: str = ""
    first_title: str = ""
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    content: Any = None
    shown: Any = None
    output: Gathered | None = None
    acp: bool = False
    """Whether its first event is an ACPToolCallEvent."""
    started_id: str | None = None
    action_id: str | None = None
    recorded_risk: SecurityRisk = SecurityRisk.UNKNOWN
    recorded_title: str = ""
    rejection: str | None = None
    rejected_by: RejectionSource = "user"
    closed: bool = False
    announced: bool = False
    """Whether the agent reported it other than in a permission request."""
    asked: bool = False
    """Whether the agent asked for it."""
    allowed: bool = False
    """Whether that was answered, and by yes."""
    by_person: bool = False
    """Whether a person did so."""
    allowed_before: bool = False
    """Whether an earlier question about it was answered by yes."""
    guessed: bool = False
    """Whether a question that named no call was taken to be about it."""
    covered: bool = False
    """Whether a question was allowed while it was open and shown: agents ask once for all calls of an
    answer."""
    works: bool = False
    """Whether what was reported of it shows that it runs, or ran (in a conversation that confirms)."""
    reported_since: bool = False
    """Whether the agent reported it since it was allowed."""
    input_recorded: bool = True
    """Whether its input is in the log as it is now, since its ActionEvent was written."""
    inputs_recorded: int = 0
    """How many inputs of it are in the log."""
    passed: bool = False
    """Whether another call began since."""
    stands_for: SecurityRisk | None = None
    """Its risk together with that of a question that was asked about it under another id."""
    questions: int = 0
    """How often a person or a hook was asked about it."""
    locations: Sequence[Mapping[str, Any]] = ()
    more: Mapping[str, Any] = MappingProxyType({})
    """What else its request had."""
    diffs: Any = None
    """Diffs that the agent's later content lacks: what was asked for stays in the result."""
    terminals: Sequence[str] = ()
    """Those of Ostler's terminals that it names."""
    rest: Mapping[str, Any] = MappingProxyType({})
    """What its updates have besides, `_meta` for example; the last word on each."""
    unsaid: Any = None
    """Its raw output, where its last event tells something else."""
    _has_diffs: bool = False
    _stream: StreamMask | None = None
    _sizes: Mapping[str, int] = MappingProxyType({})
    """Bytes of the payloads that were measured."""
    _fresh: tuple[str, ...] = ()
    """Those that were not."""
    _input_body: bytes | None = None
    """Its raw input as JSON: both events have it."""
    _folds: int = 0
    _uid: str | None = None

    def __init__(
        self,
        call_id: str,
        agent_call_id: str,
        mint: Callable[[], str] = new_event_id,
        mask: Masker = NOTHING,
        originals: Originals | None = None,
        workspace: str = "/",
    ) -> None:
        self.call_id = call_id
        self.agent_call_id = agent_call_id
        self.mint = mint
        self.mask = mask
        self.originals = Originals() if originals is None else originals
        self.workspace = workspace

    @property
    def uid(self) -> str:
        """Identifies its attachments while it is open; large calls only."""
        if self._uid is None:
            self._uid = self.mint()
        return self._uid

    def merge(self, update: Mapping[str, Any], *, asking: bool = False) -> Sequence[Attachment | ToolOutput]:
        """Merge a `tool_call` or `tool_call_update`; null and absent members mean unchanged.

        The status of a permission request (`asking`) does not count. Returns the attachments to write now.
        """
        get = update.get
        title = get("title")
        if title and isinstance(title, str):
            self.title = title[:TITLE_CHARS]
            self.first_title = self.first_title or self.title
        kind = get("kind")
        if kind and isinstance(kind, str):
            self.kind = kind if len(kind) <= NAME_CHARS else cut(kind, NAME_CHARS)
        status = get("status")
        if status and not asking and isinstance(status, str):
            self.status = status if len(status) <= NAME_CHARS else cut(status, NAME_CHARS)
        if "name" in update and (name := update["name"]) and isinstance(name, str):
            self.name = cut(name, NAME_CHARS)
        if asking:
            self.asked = True
        else:
            self.announced = self.reported_since = True
        content = get("content")
        if "locations" in update:
            locations = locations_of(update)
            self.locations = self.locations if locations is None else locations
            self.outside = self.outside or leads_out(update, self.workspace)
        elif content and not self.outside:
            self.outside = leads_out(update, self.workspace)
        given = get("rawInput")
        if given is not None:
            if self.action_id is not None and given and given != unpacked(self.raw_input):
                self.input_recorded = False
            self._put("raw_input", given)
            self._input_body = None
        raw = get("rawOutput")
        if raw is not None:
            self._put("raw_output", raw)
        if isinstance(content, list):
            self._keep_diffs(content)
            self._put("content", content)
        if READ.issuperset(update):
            return ()
        self._keep_rest(update)
        return self._take_terminal_output(update["_meta"]) if "_meta" in update else ()

    def _keep_rest(self, update: Mapping[str, Any]) -> None:
        if self.rest and all(self.rest.get(key) == update[key] for key in update.keys() - READ):
            return  # agents repeat it with each update
        rest = {key: value for key, value in update.items() if key not in READ and value is not None}
        meta = rest.pop("_meta", None)
        if isinstance(meta, dict):
            meta = {key: value for key, value in meta.items() if key not in OUTPUTS}
            if meta:
                rest["_meta"] = {**self.rest.get("_meta", {}), **meta}
        # To bound it is work.
        if any(self.rest.get(key) != value for key, value in rest.items()):
            self.rest = bounded({**self.rest, **rest}, REST_BYTES)

    def _keep_diffs(self, content: list[Any]) -> None:
        """Keep the diffs that new content lacks. Content replaces the one before as a whole."""
        had = self._has_diffs
        shown = diffs_of(content)
        if had or shown:
            self._has_diffs = bool(shown)
        named = terminals_of(content)
        if named:
            new = dict.fromkeys((*self.terminals, *named))
            self.terminals = tuple(new)[:TERMINALS_MAX]
        if not had and self.diffs is None:
            return
        again = {str(block.get("path")) for block in shown}
        before = [*(unpacked(self.diffs) or ()), *(diffs_of(unpacked(self.content)) if had else ())]
        kept = [block for block in before if str(block.get("path")) not in again]
        self._put("diffs", kept[:BLOCKS_MAX] or None)

    def _take_terminal_output(self, meta: Any) -> list[Attachment | ToolOutput]:
        # Two agents stream the output of their shell this way to clients that advertise it.
        attachments: list[Attachment | ToolOutput] = []
        if not isinstance(meta, dict):
            return attachments
        for key in OUTPUTS:
            part = meta.get(key)
            if not isinstance(part, dict) or not isinstance(part.get("data"), str):
                continue
            if key == OUTPUTS[0]:
                self.output = self._stream = None
                self._put("shown", part["data"])
            else:
                attachments += self.append(part["data"])
        return attachments

    def append(self, data: str) -> list[Attachment | ToolOutput]:
        """More output of its shell."""
        attachments: list[Attachment | ToolOutput] = []
        if self.output is None or self._stream is None:
            self._folds += 1
            self.output = Gathered(f"{self.uid}-output-{self._folds}", OUTPUT_BYTES, self.originals)
            self._stream = self.mask.stream()
            before = unpacked(self.shown)
            self._put("shown", None)
            if isinstance(before, str):
                attachments += self.output.add(self._stream.feed(before))
        text = self._stream.feed(data)
        attachments += self.output.add(text)
        if text:
            attachments.append(ToolOutput(self.call_id, text))
        return attachments

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
        if self._sizes and field in self._sizes:
            self._sizes = {each: size for each, size in self._sizes.items() if each != field}
        if value is None:
            self._fresh = tuple(each for each in self._fresh if each != field)
        elif field not in self._fresh:
            self._fresh = (*self._fresh, field)

    @property
    def weight(self) -> int:
        """Bytes of its payloads, without those of the last update."""
        if not self._sizes and self.output is None:
            return 0
        return sum(self._sizes.values()) + (0 if self.output is None else self.output.held)

    def pack(self) -> None:
        """Measure the last payloads; large ones are kept as bytes."""
        if not self._fresh:
            return
        sizes = dict(self._sizes)
        for field in self._fresh:
            body = self.input_body() if field == "raw_input" else dump(getattr(self, field))
            sizes[field] = len(body)
            if len(body) > PAYLOAD_BYTES:
                setattr(self, field, Packed(body))
        self._sizes, self._fresh = sizes, ()

    def input_body(self) -> bytes:
        """Its raw input as JSON."""
        body = self._input_body
        if body is None:
            given = self.raw_input
            body = given.body if isinstance(given, Packed) else dump(given)
            if len(body) <= INPUT_BODY_BYTES:
                self._input_body = body
        return body

    def fold(self) -> list[Attachment]:
        """Make room: keep the beginning and the end of each payload and set the rest aside."""
        self.pack()
        self._folds += 1
        attachments: list[Attachment] = [] if self.output is None else self.output.fold(FOLDED_BYTES)
        self._input_body = None
        sizes = dict(self._sizes)
        for field, size in sizes.items():
            if size > FOLDED_BYTES:
                blob_id = f"{self.uid}-{field}-{self._folds}"
                folded = clip_payload(getattr(self, field), blob_id, FOLDED_BYTES, self.originals)
                value = folded.value
                if field == "diffs" and not isinstance(value, list):
                    value = None
                elif field == "content" and not isinstance(value, list):
                    value = [{"type": "content", "content": {"type": "text", "text": value["truncated"]}}]
                setattr(self, field, value)
                sizes[field] = FOLDED_BYTES
                attachments += folded.attachments
        self._sizes = sizes
        return attachments

    def blocks(self, *, done: bool = False) -> tuple[list[Any] | None, int]:
        """Its content, as many blocks as an event has, and how many more there are. `done`: with the diffs
        that it was begun with, since that is what it did."""
        content = unpacked(self.content)
        if done and self.diffs:
            content = [*unpacked(self.diffs), *(content or ())]
        if not isinstance(content, list):
            return None, 0
        if len(content) <= BLOCKS_MAX:
            return content, 0
        return content[:BLOCKS_MAX], len(content) - BLOCKS_MAX

    @property
    def tool_name(self) -> str:
        """The tool's programmatic name where the agent gives one, else its kind."""
        return self.name or self.kind or "tool"

    @property
    def risk(self) -> SecurityRisk:
        """How risky it is, as far as the agent has described it by now."""
        own = risk_of(self.kind, outside=self.outside)
        return own if self.stands_for is None else together([self.stands_for, own])

    @property
    def ran(self) -> bool:
        """Whether it has given something back. Its status says less: some agents ask about what they say is
        in progress (OpenHands, Kimi)."""
        return bool(self.output or self.shown or self.terminals or self.raw_output is not None)

    @property
    def begun(self) -> bool:
        """Whether it may have begun: not while its agent waits for the first answer."""
        return not self.asked or self.allowed or self.allowed_before or self.ran

    @property
    def ended(self) -> bool:
        """Whether the agent reports the call as ended."""
        return self.status in {"completed", "failed"}

    def arguments(self) -> dict[str, Any]:
        """The raw input as an object, as tool calls carry it."""
        return as_arguments(self.raw_input)

    def question(self) -> Asked:
        """All that the agent has said of it, for the person who is asked about it."""
        blocks, left_out = self.blocks()
        given = unpacked(self.raw_input)
        return Asked(self.title, self.kind, blocks or [], left_out, self.locations, self.more, given)

    @property
    def unclaimed(self) -> bool:
        """Whether it was allowed, and the agent has reported nothing of it since."""
        return self.allowed and not self.reported_since

    @property
    def only_asked(self) -> bool:
        """Whether the agent has sent nothing about it but a question."""
        return self.asked and not self.announced
