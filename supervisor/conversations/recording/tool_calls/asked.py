"""What a person sees of a tool call in a permission request: all that the agent sent, and the risk. Pure.

An agent says what a call is about in the `content` of its request as often as in the raw input: the command
in words, a diff, a file. So the action of a call that is asked about has two more forms of it. `data` has it
under PERMISSION, for programs, in the shape that the content of an ACPToolCallEvent has. `thought` has it as
Markdown, for people: every client of the wire shows the text of an action's thought, and above the action.

An agent over ACP reports no risk, but it reports the kind and the files of a call, which determine the worst
that the call can do. The report comes from the agent's program, not its model. Users who do not trust the
program should confirm everything (`AlwaysConfirm`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson

from supervisor.acp.schema import WORDS_CHARS, bounded, cut
from supervisor.conversations.recording.bounds.attachments import Originals
from supervisor.conversations.recording.bounds.truncation import PAYLOAD_BYTES, Clipped, clip_payload
from supervisor.conversations.recording.tool_calls.blocks import (
    change,
    describe,
    inner_of,
    snake_blocks,
    text_of,
)
from supervisor.events import SecurityRisk

PERMISSION: Final = "permission"
"""The member of an action's data for what the agent sent besides the raw input. If the raw input has a member
of that name, this one gets an underscore before its name."""

SUMMARY_CHARS: Final = 200
"""Characters of a title that are an action's summary."""

MARKDOWN_CHARS: Final = 64 * 1024
"""Longest Markdown. A person reads no more of one question; the data has four times as much."""

LOCATIONS_MAX: Final = 100
LOCATIONS_CHARS: Final = 8 * 1024
"""Files that are named of one call, and characters of their names together."""

MORE_BYTES: Final = 16 * 1024
"""About how much is kept of what else a request has, bytes."""

KNOWN: Final = frozenset(
    {"sessionId", "toolCall", "options"}
    | {"toolCallId", "title", "name", "kind", "status", "content", "locations", "rawInput", "rawOutput"}
)
"""Members of a request and of its call that are shown elsewhere."""


CALLS_MAX: Final = 20
"""The most calls that a request without details lists. A person reads no more at once."""


@attrs.frozen
class Asked:
    """The details of a call: its title, its content as the agent sent it, the files, and all other members of
    the request. `left_out` counts blocks of content that are ignored.

    `about`: the calls that one question is about, where there are several; the first CALLS_MAX of them are
    listed, with their `raw_input`.
    """

    title: str
    kind: str | None
    blocks: list[Any]
    left_out: int
    locations: Sequence[Mapping[str, Any]]
    more: Mapping[str, Any]
    raw_input: Any = None
    about: Sequence[Asked] = ()

    def data(self, blob_id: str, originals: Originals) -> Clipped:
        """For programs, within the bounds of a payload."""
        shown: dict[str, Any] = {"title": self.title, "kind": self.kind}
        if self.blocks:
            shown["content"] = snake_blocks(self.blocks)
        if self.left_out:
            shown["blocks_cut"] = self.left_out
        if self.locations:
            shown["locations"] = self.locations
        if self.more:
            shown["more"] = self.more
        return clip_payload(shown, blob_id, PAYLOAD_BYTES, originals)

    @property
    def content(self) -> bool:
        """Whether there is more than a title and the raw input."""
        return bool(self.blocks or self.locations or self.more or len(self.title) > SUMMARY_CHARS)

    def with_input(self) -> Asked:
        """With the raw input for people, too, where nothing else says what it is about: for a message, which
        has no other place for it."""
        if self.blocks or not self.raw_input:
            return self
        return attrs.evolve(self, about=(attrs.evolve(self, title=""),), locations=(), more={})

    def words(self) -> str:
        """For people, in Markdown; empty where the agent said nothing but title and raw input."""
        speaks = self.blocks or self.about or len(self.title) > SUMMARY_CHARS
        return cut("\n\n".join(self._parts()), MARKDOWN_CHARS) if speaks else ""

    def _parts(self) -> Iterator[str]:
        changed = set()
        if len(self.title) > SUMMARY_CHARS:
            yield self.title
        for block in self.blocks:
            kind = block.get("type") if isinstance(block, Mapping) else None
            if kind == "diff":
                changed.add(str(block.get("path")))
                title, _, lines = change(block).partition("\n")
                yield f"`{title}`\n\n{_fenced(lines, 'diff')}" if lines else f"`{title}`"
            elif text := text_of(block):
                yield text
            elif named := _named(block):
                yield named
        if self.left_out:
            yield f"[{self.left_out} blocks more]"
        files = [location for location in self.locations if location["path"] not in changed]
        if files:
            yield "\n".join(f"* `{_location(location)}`" for location in files)
        for each in self.about[:CALLS_MAX]:
            yield each._as_a_part()
        if len(self.about) > CALLS_MAX:
            yield f"[{len(self.about) - CALLS_MAX} calls more]"

    def _as_a_part(self) -> str:
        """One of several calls, for people: its title, what it says, and its input where it says nothing."""
        said = "\n\n".join(attrs.evolve(self, title="")._parts())
        if not self.blocks and self.raw_input is not None:
            given = orjson.dumps(self.raw_input, option=orjson.OPT_INDENT_2, default=str)
            said = f"{_fenced(given.decode(errors='replace'), 'json')}\n\n{said}".rstrip()
        return f"{self.title}\n\n{said}".strip()


def locations_of(update: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The files that an update names, within LOCATIONS_CHARS; None if it names none."""
    given = update.get("locations")
    if not isinstance(given, list):
        return None
    locations: list[Mapping[str, Any]] = []
    left = LOCATIONS_CHARS
    for each in given[:LOCATIONS_MAX]:
        if isinstance(each, Mapping) and isinstance(each.get("path"), str):
            line = each.get("line")
            location = {"path": cut(each["path"], WORDS_CHARS)}
            left -= len(location["path"])
            if left < 0:
                break
            locations.append(location if not isinstance(line, int) else {**location, "line": line})
    return locations


def more_of(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """What a request and its call have besides what the protocol names; `_meta` without output of shells."""
    more: dict[str, Any] = {}
    for each in sources:
        for key, value in each.items():
            if key == "_meta":
                items = value.items() if isinstance(value, Mapping) else ()
                given = {name: item for name, item in items if not name.startswith("terminal_")}
                value = {**more.get("_meta", {}), **given} or None
            if key not in KNOWN and value is not None:
                more[key] = value
    kept: dict[str, Any] = bounded(more, MORE_BYTES)
    return kept


_TICKS: Final = re.compile("`+")


def _location(location: Mapping[str, Any]) -> str:
    return f"{location['path']}:{location['line']}" if "line" in location else str(location["path"])


def _named(block: Any) -> str:
    """A block without a text, by its name; a document in it as code."""
    inner = inner_of(block)
    resource = inner.get("resource") if inner.get("type") == "resource" else None
    text = resource.get("text") if isinstance(resource, Mapping) else None
    return _fenced(text) if isinstance(text, str) else describe(inner)


def _fenced(text: str, language: str = "") -> str:
    """A block of code; its fence is longer than any in it."""
    longest = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


RISKS: Final[Mapping[str, SecurityRisk]] = {
    "read": SecurityRisk.LOW,  # these change nothing
    "search": SecurityRisk.LOW,
    "think": SecurityRisk.LOW,
    "fetch": SecurityRisk.MEDIUM,  # an address that is asked for can carry anything out
    "edit": SecurityRisk.MEDIUM,  # files of the workspace, where a change can be seen and taken back
    "move": SecurityRisk.MEDIUM,
    "delete": SecurityRisk.HIGH,  # what is gone is gone
    "execute": SecurityRisk.HIGH,  # a command can do everything that its user can
    "switch_mode": SecurityRisk.HIGH,  # what comes after it may not be asked about
}
"""By the protocol's kinds. `other`, none, and kinds that are not known are `UNKNOWN`."""

OUTSIDE: Final[Mapping[SecurityRisk, SecurityRisk]] = {
    SecurityRisk.LOW: SecurityRisk.MEDIUM,
    SecurityRisk.MEDIUM: SecurityRisk.HIGH,
}
"""What becomes of a risk where a call is about a file outside of the workspace: a change there can be one of
how the whole machine works, and what is read there may be a secret."""

_UNKNOWN: Final = SecurityRisk.UNKNOWN
"""A member of an enumeration is slow to look up, and each call asks for it."""

RISK_LOCATIONS_MAX: Final = 1_000
"""Files of one update that are looked at. A call about more is taken for one that leads out."""


def risk_of(kind: str | None, *, outside: bool) -> SecurityRisk:
    """The risk of a call of that kind; `outside` tells that it is about a file outside of the workspace."""
    risk = RISKS.get(kind or "", _UNKNOWN)
    return OUTSIDE.get(risk, risk) if outside else risk


def together(risks: Collection[SecurityRisk]) -> SecurityRisk:
    """The risk of several calls that one answer decides: the highest. UNKNOWN together with a risk above LOW
    may be HIGH; otherwise it stays UNKNOWN, and the policy decides."""
    highest = max(risks, default=SecurityRisk.UNKNOWN)
    if SecurityRisk.UNKNOWN in risks:
        return SecurityRisk.HIGH if highest > SecurityRisk.LOW else SecurityRisk.UNKNOWN
    return highest


def leads_out(update: Mapping[str, Any], workspace: str) -> bool:
    """Whether what an update says of a call names a file outside of the workspace, in its locations or its
    diffs. By name alone: no link is followed. What cannot be read as a path counts as outside."""
    locations, content = update.get("locations"), update.get("content")
    if not locations and not content:
        return False
    paths = _named_paths(locations, content)
    if not paths:
        return False
    return len(paths) > RISK_LOCATIONS_MAX or not all(_within(path, workspace) for path in paths)


def _named_paths(locations: Any, content: Any) -> list[Any]:
    """The first files that are named, None for what is not a name; one more than are looked at."""
    if not locations:
        paths: list[Any] = []
    elif not isinstance(locations, list):
        paths = [None]
    else:
        most = locations[: RISK_LOCATIONS_MAX + 1]
        paths = [each.get("path") if isinstance(each, dict) else None for each in most]
    if isinstance(content, list):
        paths += [
            each.get("path") for each in content if isinstance(each, dict) and each.get("type") == "diff"
        ]
    return paths


def _within(path: Any, workspace: str) -> bool:
    if not isinstance(path, str) or path.startswith("~") or "://" in path:
        return False
    if ".." not in path and path.startswith(workspace) and path[len(workspace) :].startswith("/"):
        return True  # the usual case
    root = posixpath.normpath(workspace)
    named = posixpath.normpath(posixpath.join(root, path))
    return named == root or named.startswith(root.rstrip("/") + "/")
