"""The configuration of hooks, as clients send it and as a project's file has it. Pure.

The shape is that of the OpenHands SDK (its `HookConfig`), which also reads the spelling of other tools: event
names in PascalCase, and all of it below `hooks`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs

from supervisor.hooks.pattern import TOGETHER_MAX, UnfitPattern, pattern_of
from supervisor.reading.decode import attempt
from supervisor.reading.model import Errors, Flaw, Invalid, Location, Model, wire_name
from supervisor.reading.rules import NO_NUL, Items, Limit
from supervisor.reading.shapes import as_json

HOOK_CONFIG: Final = "hook_config"
"""The name of the check for descriptions that have such a configuration as a property."""

COMMAND_CHARACTERS: Final = 32 * 1024
"""Longest command; longer scripts are files. One argument of a process may have 128 KiB."""

MATCHER_CHARACTERS: Final = 1000
"""Longest matcher; as an expression it is bounded further (pattern.py)."""

HOOKS_MAX: Final = 100
"""The most matchers of one event, and the most hooks of one matcher."""

TOO_LONG_TOGETHER: Final = (
    "the patterns of this event could take too long together; use names, |, and fewer *, + or {}"
)

SECONDS_DEFAULT: Final = 60
SECONDS_MAX: Final = 24 * 3600
"""Seconds that a hook may ask for. How many it gets is bounded by `Deadlines.hook`."""


class HookEvent(enum.StrEnum):
    """When hooks run, in the wire's names."""

    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    SESSION_START = "SessionStart"
    SESSION_END = "SessionEnd"
    STOP = "Stop"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class HookSource(enum.StrEnum):
    """Which hooks run: none, those of start requests, or also a project's if the request has none."""

    OFF = "off"
    REQUEST = "request"
    PROJECT = "project"


FIELDS: Final = {event: _snake(event) for event in HookEvent}
"""The property of the configuration for each event."""


@attrs.frozen(kw_only=True)
class HookDefinition(Model):
    """One hook.

    `command`: run by `/bin/sh -c`. `timeout` in seconds. `asynchronous`: it runs in the background, and its
    result decides nothing.

    The types `prompt` and `agent` ask a model; Ostler has none, and does not run them.
    """

    type: Literal["command", "prompt", "agent"] = "command"
    name: str | None = None
    command: Annotated[str, Limit(max_length=COMMAND_CHARACTERS), NO_NUL] = ""
    prompt: str | None = None
    system_prompt: str | None = None
    tools: tuple[str, ...] = ()
    timeout: Annotated[int, Limit(ge=1, le=SECONDS_MAX)] = SECONDS_DEFAULT
    max_iterations: int = 3
    asynchronous: bool = attrs.field(default=False, metadata=wire_name("async"))

    def judge(self) -> Iterable[Flaw]:
        """What belongs to another type of hook."""
        if self.type == "command":
            if not self.command:
                yield (), "value_error", "Value error, 'command' is required when type is 'command'"
            return
        if self.type == "prompt" and not self.prompt:
            yield (), "value_error", "Value error, 'prompt' is required when type is 'prompt'"
        if self.command:
            yield (), "value_error", f"Value error, 'command' must not be set when type is '{self.type}'"
        if self.asynchronous:
            yield (), "value_error", f"Value error, 'async' is not supported for {self.type} hooks"

    @property
    def label(self) -> str:
        """What it is called in events and logs."""
        if self.command:
            return self.command
        said = self.name or (self.prompt if self.type == "prompt" else self.system_prompt) or self.type
        return f"{self.type}-hook:{said if self.name else said[:20]}"


@attrs.frozen(kw_only=True)
class HookMatcher(Model):
    """The hooks for tools of these names: `*` or nothing for all, a name, or a regular expression."""

    matcher: Annotated[str, Limit(max_length=MATCHER_CHARACTERS)] = "*"
    hooks: Annotated[tuple[HookDefinition, ...], Items(max_length=HOOKS_MAX)] = ()

    def judge(self) -> Iterable[Flaw]:
        """A pattern that could take long to match."""
        try:
            pattern_of(self.matcher)
        except UnfitPattern as error:
            yield ("matcher",), "value_error", f"Value error, {error}"

    @property
    def ways(self) -> int:
        """How long its pattern may take (`Pattern.ways`)."""
        return 0 if self.matcher in ("", "*") else pattern_of(self.matcher).ways

    def matches(self, tool_name: str | None) -> bool:
        """Whether its hooks are for this tool, or for an event without a tool (None)."""
        if self.matcher in ("", "*"):
            return True
        return tool_name is not None and pattern_of(self.matcher).matches(tool_name)


Matchers = Annotated[tuple[HookMatcher, ...], Items(max_length=HOOKS_MAX)]


@attrs.frozen(kw_only=True)
class HookConfig(Model):
    """All hooks of a conversation, by event."""

    FORBID: ClassVar[bool] = True

    pre_tool_use: Matchers = ()
    post_tool_use: Matchers = ()
    user_prompt_submit: Matchers = ()
    session_start: Matchers = ()
    session_end: Matchers = ()
    stop: Matchers = ()

    def judge(self) -> Iterable[Flaw]:
        """Patterns that could take long together."""
        for event in HookEvent:
            if sum(each.ways for each in self.of(event)) > TOGETHER_MAX:
                yield (FIELDS[event],), "value_error", f"Value error, {TOO_LONG_TOGETHER}"

    def of(self, event: HookEvent) -> Sequence[HookMatcher]:
        """The matchers of an event."""
        found: Sequence[HookMatcher] = getattr(self, FIELDS[event])
        return found

    def hooks(self, event: HookEvent, tool_name: str | None = None) -> tuple[HookDefinition, ...]:
        """The hooks to run for an event, in order."""
        return tuple(hook for each in self.of(event) if each.matches(tool_name) for hook in each.hooks)

    def has(self, event: HookEvent) -> bool:
        """Whether any hook is for this event."""
        return any(each.hooks for each in self.of(event))

    @property
    def empty(self) -> bool:
        """Whether there is no matcher at all."""
        return not any(self.of(event) for event in HookEvent)


def check_hook_config(value: Any, loc: Location, errors: Errors) -> dict[str, Any] | None:
    """Read a configuration in any of its spellings; the result is JSON, every property present.

    Errors are noted; the result is then None.
    """
    found = _attempt(value, loc, errors)
    return None if found is None else as_json(found)


def read_hook_config(value: Any) -> HookConfig:
    """Read a configuration. Raises Invalid."""
    errors = Errors()
    found = _attempt(value, (), errors)
    errors.raise_if_any()
    return found or HookConfig()


def _attempt(value: Any, loc: Location, errors: Errors) -> HookConfig | None:
    before = len(errors)
    usual = _usual(value, loc, errors)
    found = attempt(HookConfig, usual, loc, errors) if len(errors) == before else None
    return found if len(errors) == before else None


def stored_hook_config(value: Any) -> HookConfig | None:
    """What a conversation's record holds; None for nothing, and for what an earlier release took unread."""
    if value is None:
        return None
    try:
        found = read_hook_config(value)
    except Invalid:
        return None
    return None if found.empty else found


def _usual(value: Any, loc: Location, errors: Errors) -> Any:
    """The configuration in the wire's own spelling."""
    if isinstance(value, Mapping) and "hooks" in value:
        value = value["hooks"]
    if not isinstance(value, Mapping):
        return value
    usual: dict[str, Any] = {}
    for key, matchers in value.items():
        name = _snake(key) if key in set(HookEvent) else key
        if name in usual:
            errors.add((*loc, key), "value_error", f"Value error, {name} is given twice")
        usual[name] = _usual_matchers(matchers)
    return usual


def _usual_matchers(matchers: Any) -> Any:
    """The SDK writes `async_` where it does not write by alias."""
    if not isinstance(matchers, list):
        return matchers
    return [
        {**each, "hooks": [_usual_hook(hook) for hook in each["hooks"]]}
        if isinstance(each, Mapping) and isinstance(each.get("hooks"), list)
        else each
        for each in matchers
    ]


def _usual_hook(hook: Any) -> Any:
    if not isinstance(hook, Mapping) or "async_" not in hook or "async" in hook:
        return hook
    return {"async" if key == "async_" else key: value for key, value in hook.items()}
