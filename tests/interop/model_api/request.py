"""A provider's request, reduced to what a script needs to answer it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

# What agents add to what the user typed: context, and a note about an interruption.
_ADDED = re.compile(
    r"<(system-reminder|environment_context|session_context)\b.*?</\1>|\[Request interrupted[^\]]*\]", re.S
)


@dataclass(frozen=True)
class Tool:
    """A tool the agent offers. `kind`: function, custom (free text input), code (JavaScript that calls the
    agent's other tools) or local_shell."""

    name: str
    schema: dict[str, Any] = field(default_factory=dict)
    kind: str = "function"
    namespace: str | None = None

    @property
    def properties(self) -> dict[str, Any]:
        return dict(self.schema.get("properties") or {})

    @property
    def required(self) -> list[str]:
        return list(self.schema.get("required") or ())


@dataclass
class ModelRequest:
    """The last user message, the tool results since, and what the answer must look like."""

    model: str = "test-model"
    stream: bool = False
    tools: list[Tool] = field(default_factory=list)
    answer_schema: dict[str, Any] | None = None
    user_text: str = ""
    results: list[str] = field(default_factory=list)  # of tools, since that message, oldest first
    rounds: int = 0  # assistant messages with tool calls since that message

    def user_said(self, text: str) -> None:
        """A message of the user: whatever came before belongs to earlier turns."""
        if spoken(text):
            self.user_text, self.results, self.rounds = text, [], 0

    @property
    def last_line(self) -> str:
        lines = [line for line in spoken(self.user_text).splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def spoken(text: str) -> str:
    """What is left of a user message without the context an agent put around it."""
    return _ADDED.sub("", text or "").strip()


def text_of(content: Any) -> str:
    """The text of a message's content in any of the providers' shapes."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_of, content)))
    if isinstance(content, dict):
        for key in ("text", "content", "output"):
            if key in content:
                return text_of(content[key])
        return json.dumps(content)
    return str(content)
