"""The input of a hook, and the meaning of its result. Pure.

The contract is that of the OpenHands SDK: JSON on standard input; exit status 2 blocks, every other one but 0
is a failure that blocks nothing; JSON on standard output may decide, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from supervisor.hooks.config import HookEvent

BLOCKS: Final = 2
"""The exit status that blocks."""

NO_STATUS: Final = -1
"""The exit status of a hook that did not end by itself."""

BLOCKED: Final = "Blocked by hook"
"""The reason where a hook gives none."""

REASON_CHARACTERS: Final = 50_000
"""Longest output, reason or context in an event, as the SDK cuts them."""

_CUT: Final = "\n<TRUNCATED>"


@attrs.frozen(kw_only=True)
class Ended:
    """How a hook ended. `code` is None where it did not end by itself; `error` says why."""

    code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str | None = None


@attrs.frozen(kw_only=True)
class Verdict:
    """A hook's result. Texts are cut to REASON_CHARACTERS."""

    success: bool
    blocked: bool = False
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    reason: str | None = None
    additional_context: str | None = None
    error: str | None = None


def judge(ended: Ended) -> Verdict:
    """The meaning of how a hook ended."""
    blocked = ended.code == BLOCKS
    reason: str | None = None
    context: str | None = None
    said = _object(ended.stdout) if ended.error is None else None
    if said is not None:
        decision = said.get("decision")
        blocked = blocked or (isinstance(decision, str) and decision.lower() == "deny")
        blocked = blocked or ("continue" in said and not said["continue"])
        if "reason" in said:
            reason = _text(said["reason"])
        if "additionalContext" in said:
            context = _text(said["additionalContext"])
    return Verdict(
        success=ended.code == 0 and ended.error is None,
        blocked=blocked,
        exit_code=NO_STATUS if ended.code is None else ended.code,
        stdout=shorten(ended.stdout),
        stderr=shorten(ended.stderr),
        reason=None if reason is None else shorten(reason),
        additional_context=None if context is None else shorten(context),
        error=ended.error,
    )


def _object(text: str) -> Mapping[str, Any] | None:
    """Standard output as a JSON object, if it is one."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # more levels than can be written again
        return "(nested too deeply)"


def shorten(text: str) -> str:
    """Cut a text for an event."""
    if len(text) <= REASON_CHARACTERS:
        return text
    return text[: REASON_CHARACTERS - len(_CUT)] + _CUT


def reason_of(verdict: Verdict) -> str:
    """Why a hook blocks: its own reason, else its standard error, else a default."""
    return verdict.reason or verdict.stderr.strip() or BLOCKED


def hook_input(
    event: HookEvent,
    *,
    session_id: str,
    working_dir: str,
    tool_name: str | None = None,
    tool_input: Mapping[str, Any] | None = None,
    tool_response: Mapping[str, Any] | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a hook reads on its standard input."""
    return {
        "event_type": event.value,
        "tool_name": tool_name,
        "tool_input": tool_input,
        "tool_response": tool_response,
        "message": message,
        "session_id": session_id,
        "working_dir": working_dir,
        "metadata": dict(metadata or {}),
    }


def environment(
    event: HookEvent, *, session_id: str, working_dir: str, tool_name: str | None
) -> dict[str, str]:
    """The variables that a hook gets besides those of every child process."""
    found = {
        "OPENHANDS_PROJECT_DIR": working_dir,
        "OPENHANDS_SESSION_ID": session_id,
        "OPENHANDS_EVENT_TYPE": event.value,
    }
    if tool_name:
        found["OPENHANDS_TOOL_NAME"] = tool_name.replace("\0", "")
    return found
