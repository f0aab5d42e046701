"""The events of commands: the command, its output, and errors of requests."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from supervisor.reading.model import Model, described

MAX_COMMAND_CHARACTERS: Final = 128 * 1024 - 1
"""Longest command: what one argument may have on Linux (execve(2), MAX_ARG_STRLEN)."""

OUTPUT_CHARACTERS: Final = 1024 * 1024
"""Characters of one stream in one event: the size that clients of the wire know."""

DEFAULT_SECONDS: Final = 300
"""Seconds that a command may run if the client does not say."""

FAILED: Final = -1
"""The exit code of a command that ran out of time, or could not be started."""


@attrs.frozen(kw_only=True)
class BashCommand(Model):
    """A command, as requested."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "BashCommand"

    command: str
    cwd: str | None
    timeout: int = attrs.field(metadata=described("Seconds"))
    id: str = attrs.field(metadata=described("32 hexadecimal digits"))
    timestamp: str = attrs.field(metadata=described(format="date-time"))


@attrs.frozen(kw_only=True)
class BashOutput(Model):
    """A part of a command's output; the last one has the exit code."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "BashOutput"

    id: str = attrs.field(metadata=described("32 hexadecimal digits"))
    timestamp: str = attrs.field(metadata=described(format="date-time"))
    command_id: str
    order: int = attrs.field(metadata=described("Counts the parts of one command from 0"))
    exit_code: int | None = attrs.field(
        metadata=described("null: it runs. Negative: ended by this signal; -1 also: not started, timed out")
    )
    stdout: str | None
    stderr: str | None


@attrs.frozen(kw_only=True)
class BashError(Model):
    """The refusal of a request on a socket."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "BashError"

    id: str
    timestamp: str = attrs.field(metadata=described(format="date-time"))
    code: str
    detail: str
