"""Which calls a question of the agent's is about, what it adds to them, and what is known to have run. Pure.

A question names its call by the call's id, in the protocol. Several agents ask under an id of their own, and
some ask once for all calls of an answer. So a question is compared with the calls that are open, that the
agent has announced, and that it has not asked for: first by what proves that they are the same, then by what
is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.conversations.recording.bounds.truncation import Packed, dump, unpacked
from supervisor.conversations.recording.tool_calls.asked import RISKS, risk_of, together
from supervisor.conversations.recording.tool_calls.blocks import diffs_of, text_of
from supervisor.conversations.recording.tool_calls.calls import OUTPUTS, Ending, ToolCallState
from supervisor.events import SecurityRisk

TAIL_CHARS: Final = 4
"""Fewest characters of the last part of an id that tell a call: "1" ends many ids."""

_SEPARATORS: Final = re.compile(r"[/:.|#]")
"""Between the parts of an id."""

REFUSED: Final = re.compile(
    r"\b(?:user|person|human|client|permission request|approval|confirmation|action)\b.{0,40}?"
    r"\b(?:reject|rejected|denied|declined|refused|cancell?ed|not approved|not allowed)\b"
    r"|\b(?:rejected|denied|declined|refused|cancell?ed|blocked) by "
    r"(?:the |acp )?(?:user|person|human|client)\b",
    re.IGNORECASE,
)
"""In what an agent gives back of a call that it did not run, since the answer was no. A hint alone: there are
as many words for it as agents. After a no only what shows work counts (`shows_work`)."""

EXIT_STATUS: Final = ("exit_code", "exitCode", "returncode")
"""Members of a raw output, or of the end of a shell, that are a command's exit status."""

SAID_CHARS: Final = 2_000
"""Characters of a result that are looked at: who says that a call was refused does so at once."""


@attrs.frozen
class Inquiry:
    """One question of the agent's, as the translator knows it. `keys` are the agent's ids of the calls that
    it is about; the last of them stands for the others. `risk` is what it is judged by."""

    keys: tuple[str, ...]
    title: str
    risk: SecurityRisk
    more: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    @property
    def several(self) -> bool:
        """Whether one answer decides more than one call."""
        return len(self.keys) > 1


def may_be_meant(call: ToolCallState) -> bool:
    """Whether a question of another id may be about this call."""
    return call.announced and not (call.asked or call.ended)


def may_be_meant_too(call: ToolCallState) -> bool:
    """Whether the answer to a question about another call may go for this one: it was not allowed, and is not
    known to run."""
    return may_be_meant(call) and not (call.covered or call.ran)


def about(asked: Mapping[str, Any], calls: Sequence[ToolCallState]) -> tuple[Sequence[ToolCallState], bool]:
    """Find the calls that a permission request with a separate id is about, in their order, and whether that
    is a guess: nothing in the question says so. `asked` is its `toolCall`, `calls` the candidates.

    Equal input, a common file, or the end of the id prove a match. Otherwise it is the only call of the
    request's kind; for a request without details, as a guess, all calls that are not known to run.
    """
    if not calls:
        return (), False
    given, kind = asked.get("rawInput"), asked.get("kind")
    paths = _paths(asked.get("locations"), asked.get("content"))
    same = [call for call in calls if given and _has_input(call, given)]
    if not same and paths:
        fit = [call for call in calls if kind not in RISKS or call.kind not in RISKS or kind == call.kind]
        same = [call for call in fit if paths & _paths_of(call)]
    if not same:
        same = [call for call in calls if _same_end(asked.get("toolCallId"), call.agent_call_id)]
    if same:
        return same[:1], False
    if says_nothing(asked):
        left = [call for call in calls if not call.ran]
        pending = [call for call in left if call.status != "in_progress"]
        return pending or left, True
    if kind in RISKS:
        of_kind = [call for call in calls if call.kind == kind]
        # Unless both say what they are about, which is not the same then.
        if len(of_kind) == 1 and not ((given and of_kind[0].raw_input) or (paths and _paths_of(of_kind[0]))):
            return of_kind, False
    return (), False


def says_nothing(asked: Mapping[str, Any]) -> bool:
    """Whether a question has a title alone, which does not say what it allows."""
    said = asked.get("rawInput") or asked.get("content") or asked.get("locations") or asked.get("name")
    return not said and asked.get("kind") not in RISKS


def added(asked: Mapping[str, Any], call: ToolCallState) -> dict[str, Any]:
    """What a question of another id says of a call that the call does not say itself."""
    kind = asked.get("kind")
    more = {
        "title": None if call.title else asked.get("title"),
        "kind": kind if kind in RISKS and call.kind not in RISKS else None,
        "rawInput": None if call.raw_input else asked.get("rawInput"),
        "locations": asked.get("locations") if not call.locations else None,
        "content": asked.get("content") or None,
        "_meta": asked.get("_meta"),
    }
    return {name: value for name, value in more.items() if value is not None}


def judged(asked: Mapping[str, Any], calls: Sequence[ToolCallState], *, guess: bool) -> SecurityRisk | None:
    """The risk that a question of another id has with its calls; None: that of its one call. A guess may only
    raise the question's own."""
    kind = asked.get("kind")
    if not (guess or kind in RISKS):
        return None
    own = risk_of(kind if isinstance(kind, str) else None, outside=False)
    return together([own, *(call.risk for call in calls)])


def ran(call: ToolCallState, ending: Ending, *, after_no: bool = False) -> bool:
    """Whether a call that ended has demonstrably run. A call that failed may never have begun; what its shell
    wrote shows that it did. Agents report calls as completed, too, that were refused, and say so.

    `after_no`: something was rejected in its turn. Agents then drop other calls, too, and report these in
    words of their own as completed or failed; so only what shows work counts.
    """
    if after_no:
        whole = ending is Ending.COMPLETED and _tells_of_work(unpacked(call.shown))
        return (call.works or whole) and ending in (Ending.COMPLETED, Ending.FAILED)
    if ending is Ending.FAILED:
        return bool(call.terminals or call.output or call.shown)
    return ending is Ending.COMPLETED and not tells_of_refusal(result_of(call.content, call.raw_output))


def shows_work(update: Mapping[str, Any], *, whole: bool = False) -> bool:
    """Whether what an agent reports of a call shows that it ran: the exit status 0, pieces of what its shell
    writes, or a diff as its result. `whole`: also output that comes as a whole, which from a call that failed
    may be the agent's own words."""
    meta, raw_output, content = update.get("_meta"), update.get("rawOutput"), update.get("content")
    meta = meta if isinstance(meta, Mapping) else {}
    status = _exit_status(meta.get("terminal_exit"), raw_output)
    for name in OUTPUTS if whole and status in (None, 0) else OUTPUTS[1:]:
        part = meta.get(name)
        if isinstance(part, Mapping) and _tells_of_work(part.get("data")):
            return True
    done = status == 0 or (update.get("status") == "completed" and bool(diffs_of(content)))
    return done and not tells_of_refusal(result_of(content, raw_output))


def _tells_of_work(output: Any) -> bool:
    """Whether a shell's output is one, and not the agent's word that the command did not run."""
    said = output[:SAID_CHARS].strip() if isinstance(output, str) else ""
    return bool(said) and not tells_of_refusal(said)


def _exit_status(*sources: Any) -> int | None:
    for source in sources:
        for name in EXIT_STATUS if isinstance(source, Mapping) else ():
            if type(source.get(name)) is int:
                return int(source[name])
    return None


def tells_of_refusal(text: str) -> bool:
    """Whether a result says that its call was not carried out, since it was not allowed."""
    return REFUSED.search(text) is not None


def result_of(content: Any, raw_output: Any = None) -> str:
    """The beginning of what a call gave back, as text."""
    blocks = unpacked(content)
    text = "\n".join(filter(None, map(text_of, blocks))) if isinstance(blocks, list) else ""
    if not text and raw_output is not None:
        body = raw_output.body if isinstance(raw_output, Packed) else dump(raw_output)
        text = body[:SAID_CHARS].decode(errors="replace")
    return text[:SAID_CHARS]


def _has_input(call: ToolCallState, given: Any) -> bool:
    had = call.raw_input
    if isinstance(had, Packed):  # only one of the same size is worth its reading
        return len(had.body) == len(dump(given)) and unpacked(had) == given
    return bool(had) and had == given


def _paths_of(call: ToolCallState) -> set[str]:
    return _paths(list(call.locations), unpacked(call.content))


def _paths(locations: Any, content: Any) -> set[str]:
    named = [*(locations if isinstance(locations, list) else ()), *diffs_of(content)]
    found = {each.get("path") for each in named if isinstance(each, Mapping)}
    return {path for path in found if isinstance(path, str) and path}


def _same_end(one: Any, other: str) -> bool:
    if not isinstance(one, str):
        return False
    ends = [_SEPARATORS.split(each)[-1] for each in (one, other)]
    return ends[0] == ends[1] and len(ends[0]) >= TAIL_CHARS
