"""The calls rejected in a turn, so that they do not run through Ostler's terminals and files. Pure.

The commands and files of a call are taken from its input, its title, and the text of its permission request,
in which some agents put a command in backticks, after a `$`, or as JSON. They are compared exactly with the
agent's later requests: a merely similar command is another one.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, Final

import attrs
import orjson

from supervisor.conversations.recording.bounds.truncation import Packed, unpacked
from supervisor.conversations.recording.tool_calls.blocks import diffs_of, text_of
from supervisor.conversations.recording.tool_calls.calls import ToolCallState

WORDS_MAX: Final = 1_000
"""Strings of one call that are looked at. A question has few."""

CHARS_MAX: Final = 16 * 1024
"""Longest string that is taken for a command or a file's name."""

CALL_CHARS: Final = 64 * 1024
"""Characters of one call that are looked at, together: the loop waits meanwhile."""

TURN_CHARS: Final = 1024 * 1024
"""Characters that are kept of all rejected calls of one turn: some thousand calls. The oldest is forgotten
first, since the agent has continued; of what a person rejected none, as long as there is anything else."""

CALL_COST: Final = 256
"""What a call counts for besides its strings: about what one without any takes."""

STRING_CHARS: Final = 64
"""What a string counts for besides its characters: about what an empty one takes."""

LINE_CHARS: Final = 2 * CHARS_MAX
"""The longest command line that is compared, characters: a rejected one, and what an agent adds to it."""

REQUEST_CHARS: Final = 2 * 1024 * 1024
"""The most characters of a command and its arguments that may run: Linux takes no more (`execve`)."""

_QUOTED: Final = re.compile(r"(?<!`)`+([^`]+)`")
"""From the first of several backticks on alone: else a run of them is read once for each of it."""

_SHELL_OPTIONS: Final = frozenset({"-c", "-lc", "-ic", "-lic"})
_MOVES: Final = re.compile(r"^cd (?:'[^']*'|\"[^\"]*\"|\S+) && ", re.ASCII)
"""Agents change into the workspace before a command."""

_NAMES_A_FILE: Final = re.compile("path|file", re.IGNORECASE)
"""In the name of a member of the input that is a file."""

_WRITES: Final = frozenset({"edit", "delete", "move"})


@attrs.frozen
class _Kept:
    """What is kept of a call: the strings that may be a command, and the files."""

    call_id: str
    words: frozenset[str]
    files: frozenset[str]
    by_person: bool

    @property
    def size(self) -> int:
        return CALL_COST + sum(len(each) + STRING_CHARS for each in (*self.words, *self.files))


@attrs.define
class Rejections:
    """The calls rejected in the current turn. `allow` removes what it has in common with them."""

    _calls: dict[_Kept, int] = attrs.field(factory=dict)
    """The size of each, the oldest first. An agent may ask about several things under one id."""

    def clear(self) -> None:
        """Another turn begins."""
        self._calls.clear()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def reject(self, call: ToolCallState, *, by_person: bool = True) -> None:
        """A call was rejected, by a person, or else by a policy or a hook."""
        kept = _Kept(call.call_id, _words(call), _files(call), by_person)
        self._calls.pop(kept, None)
        self._calls[kept] = kept.size
        held = sum(self._calls.values())
        while held > TURN_CHARS:
            oldest = next((each for each in self._calls if not each.by_person), next(iter(self._calls)))
            held -= self._calls.pop(oldest)

    def allow(self, call: ToolCallState) -> None:
        """A call was allowed: what it does is no longer refused, though it was rejected before."""
        if self._calls:
            words, files = _words(call), _files(call)
            left = (
                attrs.evolve(had, words=had.words - words, files=had.files - files) for had in self._calls
            )
            self._calls = {each: each.size for each in left}

    def of(self, method: str, params: Mapping[str, Any], workspace: str) -> tuple[str, str] | None:
        """The rejected command or file that a request of the agent's would run or write, and the id of its
        call; None: it may."""
        if method == "terminal/create":
            ways = command_ways(params.get("command"), params.get("args"))
            for kept in self._calls:
                found = next((way for way in ways if way in kept.words), None)
                if found is not None:
                    return found, kept.call_id
        if method == "fs/write_text_file" and isinstance(params.get("path"), str):
            path = posixpath.normpath(posixpath.join(workspace, params["path"]))
            for kept in self._calls:
                if any(posixpath.normpath(posixpath.join(workspace, each)) == path for each in kept.files):
                    return path, kept.call_id
        return None


def given_of(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a request would run or write. None: it is larger than anything that runs, or has none of it."""
    given = {name: params[name] for name in ("command", "args", "path") if params.get(name)}
    args = given.get("args")
    strings = [*given.values(), *(args if isinstance(args, list) else ())]
    size = sum(len(each) for each in strings if isinstance(each, str))
    return given if given and size <= REQUEST_CHARS else None


def command_ways(command: Any, args: Any) -> list[str]:
    """The ways to write a command that an agent starts: as a line, and without the shell around it. Those
    that are longer than `LINE_CHARS` are left out."""
    if not isinstance(command, str):
        return []
    rest = [each for each in args if isinstance(each, str)] if isinstance(args, list) else []
    ways = []
    if len(command) + sum(len(each) + 1 for each in rest) <= LINE_CHARS:
        ways += [" ".join([command, *rest]), shlex.join([command, *rest])]
    for option, script in pairwise(rest[:WORDS_MAX]):
        if option in _SHELL_OPTIONS and len(script) <= LINE_CHARS:
            ways.append(script)
    ways += [_MOVES.sub("", way) for way in ways]
    return list(dict.fromkeys(way.strip() for way in ways if way.strip()))


def _words(call: ToolCallState) -> frozenset[str]:
    if call.kind in _WRITES:
        return frozenset()
    return frozenset(text for _, text in _said(call))


def named_files(call: ToolCallState) -> frozenset[str]:
    """The files that a call is sure to be about: those that it names as such."""
    paths = {str(each.get("path")) for each in diffs_of(unpacked(call.content))}
    if call.kind in _WRITES:
        paths |= {str(each.get("path")) for each in call.locations}
        paths |= {text for name, text in _said(call) if _NAMES_A_FILE.search(name)}
    return frozenset(paths)


def _files(call: ToolCallState) -> frozenset[str]:
    """The files that a call would write, as far as they may be meant."""
    if call.kind not in _WRITES:
        return named_files(call)
    return named_files(call) | {text for _, text in _said(call) if "/" in text and "\n" not in text}


_Word = tuple[str, str]
"""A string that a call says, behind the name of the member that it is; an empty name where it is none."""


def _said(call: ToolCallState) -> list[_Word]:
    """The strings that a call's title, input and words have."""
    found: list[_Word] = []
    left = CALL_CHARS
    for name, text in _strings(call):
        if len(found) >= WORDS_MAX or left <= 0:
            break
        if 0 < len(text) <= CHARS_MAX:
            found.append((name, text.strip()))
            left -= len(text)
    return found


def _strings(call: ToolCallState) -> Iterator[_Word]:
    yield from _of_value(call.raw_input)
    content = unpacked(call.content)
    blocks = content[:WORDS_MAX] if isinstance(content, list) else ()
    for text in chain([call.title], map(text_of, blocks)):
        text = text[:CHARS_MAX]
        yield "", text
        yield from (("", quoted) for quoted in _QUOTED.findall(text))
        for line in text.splitlines():
            yield "", line
            yield "", line.partition("$ ")[2]
            yield "", line.partition(": ")[2]
            if "{" in line:
                try:
                    yield from _of_value(orjson.loads(line[line.index("{") :]))
                except orjson.JSONDecodeError:
                    continue


def _of_value(value: Any) -> Iterator[_Word]:
    if isinstance(value, Packed):
        return  # no command is that large
    waiting = [("", value)]
    for _ in range(WORDS_MAX):
        if not waiting:
            return
        name, each = waiting.pop()
        if isinstance(each, str):
            yield name, each
        elif isinstance(each, Mapping):
            waiting += each.items()
        elif isinstance(each, list):
            waiting += [(name, item) for item in each[:WORDS_MAX]]
            if each and all(isinstance(word, str) for word in each):
                yield from (("", way) for way in command_ways(each[0], each[1:]))
