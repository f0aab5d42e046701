"""What is asked of which agent, so that it speaks, asks, edits and can be cancelled."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen
class Prompts:
    """Prompts of one agent, and what it says then."""

    text: tuple[str, str]
    tool: str
    """Asks before it does something."""
    allowed: str
    rejected: str
    edit: tuple[str, str]
    """The file that it writes, in the workspace; what it shows of it is a diff."""
    slow: tuple[str, str]
    """Cancelled when it has said the second one."""
    mode: str
    asks: int = 3
    """Permissions in the walk: tool, tool, edit."""


DEMO = Prompts(
    text=("Hello", "workspace"),
    tool="Please write a file",
    allowed="I wrote",
    rejected="did not",
    edit=("Please write a file", "hello-from-ostler.txt"),
    slow=("Tell me slowly", " "),
    mode="auto",
)
SCRIPTED = Prompts(
    text=("Hello you", "Hello you"),
    tool="!perm",
    allowed="allowed",
    rejected="rejected",
    edit=("!write notes.txt text\n!diff notes.txt", "notes.txt"),
    slow=("!slow 200 50", " "),
    mode="plan",
)


def real(tool: str, mode: str, **more: Any) -> Prompts:
    """Of an agent whose model is tests/interop/model_api. `tool`: the verb that makes it ask."""
    return Prompts(
        text=("Hello", "ECHO: "),
        tool=f"{tool}: touch marked",
        allowed="TOOL-DONE",
        rejected="",
        edit=("WRITE: notes.txt text", "notes.txt"),
        slow=("SLOW 200 100", "s3"),
        mode=mode,
        **more,
    )
