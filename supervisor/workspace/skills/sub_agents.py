"""The sub-agents of a project, and those of the user: found and read. Blocking, and bounded as skills are.

A file is Markdown: properties, then the sub-agent's prompt. Names and defaults are those of the built-in
agent's library, which reads the same files when a conversation starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

import attrs
import structlog

from supervisor.hooks.config import HOOK_CONFIG, check_hook_config
from supervisor.reading.model import Errors, Model
from supervisor.workspace.access import Admitted
from supervisor.workspace.skills.front_matter import split_head
from supervisor.workspace.skills.skills import MAX_SKILLS, Enough, Search

log = structlog.get_logger(__name__)

DIRECTORIES: Final = (".agents/agents", ".openhands/agents")
"""Where sub-agents are, of a project as of the user; the first one that has a name counts."""

NOT_ONE: Final = frozenset({"README.md", "readme.md"})

MOST: Final = MAX_SKILLS

INHERIT: Final = "inherit"
"""The model of a sub-agent that names none: that of the agent which calls it."""

PERMISSIONS: Final = frozenset({"always_confirm", "never_confirm", "confirm_risky"})

NO_CONDENSER: Final = frozenset({"none", "off", "false", "no", "disable", "disabled"})
USUAL_CONDENSER: Final = frozenset({"", "default", "inherit", "true"})

EXAMPLE: Final = re.compile(r"<(?P<end>/?)example>", re.IGNORECASE)
"""Where an example begins or ends."""

NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
"""How a property says a number. They are all texts where they are read (front_matter.py)."""

TEXTS: Final = frozenset({"env", "headers", "args", "command", "cwd", "model", "api_key"})
"""Properties whose values stay strings, even if they look like numbers or lists."""

Level = Literal["project", "user", "builtin"]


class BadSubAgent(ValueError):
    """The file is not a sub-agent. The message says why and quotes nothing."""


@attrs.frozen(kw_only=True)
class SubAgentInfo(Model):
    """A sub-agent. `level`: where it was found; `source`: its file."""

    NAME: ClassVar[str] = "SubAgentInfo"

    name: str
    description: str = ""
    model: str = INHERIT
    color: str | None = None
    tools: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    system_prompt: str = ""
    when_to_use_examples: tuple[str, ...] = ()
    permission_mode: str | None = None
    max_iteration_per_run: int | None = None
    max_budget_per_run: float | None = None
    mcp_config: Mapping[str, Any] | None = None
    mcp_servers: Mapping[str, Any] | None = None
    profile_store_dir: str | None = None
    hooks: Mapping[str, Any] | None = None
    condenser: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    level: Level | None = None
    source: str | None = None
    is_builtin: bool = False


NOT_WRITTEN: Final = frozenset(
    {"system_prompt", "when_to_use_examples", "metadata", "level", "source", "is_builtin"}
)
"""What is not written as a property of the file."""

KNOWN: Final = frozenset(field.name for field in attrs.fields(SubAgentInfo)) - NOT_WRITTEN
"""Properties with a meaning; all others are `metadata`."""


def sub_agent_of(text: str, name: str, source: str, level: Level) -> SubAgentInfo:
    """The sub-agent in a file, which has this name where it does not say another. Raises ValueError."""
    head, prompt = split_head(text)
    description = _text(head, "description") or ""
    mcp = head.get("mcp_config", head.get("mcp_servers"))
    if mcp is not None and not isinstance(mcp, dict):
        raise BadSubAgent("its mcp_config is not an object")
    servers = None if mcp is None else _with_numbers(mcp)
    mode = (_text(head, "permission_mode") or "").strip().lower() or None
    if mode is not None and mode not in PERMISSIONS:
        raise BadSubAgent(f"its permission_mode is none of {', '.join(sorted(PERMISSIONS))}")
    return SubAgentInfo(
        name=_text(head, "name") or name,
        description=description,
        model=_text(head, "model") or INHERIT,
        color=_text(head, "color"),
        tools=_names(head.get("tools")),
        skills=_names(head.get("skills"), split=True),
        system_prompt=prompt,
        when_to_use_examples=tuple(_examples(description)),
        permission_mode=mode,
        max_iteration_per_run=_above_zero(head, "max_iteration_per_run", int),
        max_budget_per_run=_above_zero(head, "max_budget_per_run", float),
        mcp_config=servers,
        mcp_servers=servers,
        profile_store_dir=_text(head, "profile_store_dir"),
        hooks=_hooks(head.get("hooks")),
        condenser=_condenser(head.get("condenser")),
        metadata={key: value for key, value in head.items() if key not in KNOWN},
        level=level,
        source=source,
    )


def _examples(description: str) -> Iterator[str]:
    """The texts between `<example>` tags. One forward pass, even if many tags are not closed."""
    begun: int | None = None
    for tag in EXAMPLE.finditer(description):
        if not tag["end"]:
            begun = tag.end() if begun is None else begun
        elif begun is not None:
            if found := description[begun : tag.start()].strip():
                yield found
            begun = None


def _text(head: Mapping[str, Any], key: str) -> str | None:
    found = head.get(key)
    if found is not None and not isinstance(found, str):
        raise BadSubAgent(f"its {key} is not a text")
    return found


def _names(found: Any, *, split: bool = False) -> tuple[str, ...]:
    if isinstance(found, str):
        return tuple(each for one in found.split(",") if (each := one.strip())) if split else (found,)
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()


def _above_zero(head: Mapping[str, Any], key: str, kind: Any) -> Any:
    found = _text(head, key)
    if found is None:
        return None
    if not NUMBER.fullmatch(found) or (number := kind(float(found))) <= 0:
        raise BadSubAgent(f"its {key} is not a number above 0")
    return number


def _hooks(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    errors = Errors()
    checked = check_hook_config(_with_numbers(found), (HOOK_CONFIG,), errors)
    if checked is None:
        raise BadSubAgent("its hooks are not hooks")
    return checked


def _condenser(found: Any) -> dict[str, Any] | None:
    if found is None or (isinstance(found, str) and found.strip().lower() in USUAL_CONDENSER):
        return None
    if isinstance(found, str) and found.strip().lower() in NO_CONDENSER:
        return {"kind": "NoOpCondenser"}
    if isinstance(found, dict) and isinstance(found.get("kind"), str):
        return dict(_with_numbers(found))
    raise BadSubAgent("its condenser is none")


def _with_numbers(value: Any) -> Any:
    """A copy in which what looks like a number or a truth value is one. Its depth is bounded where it is
    read."""
    if isinstance(value, dict):
        return {key: each if key in TEXTS else _with_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    if value in ("true", "false"):
        return value == "true"
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value) if "." in value else int(value)
    return value


def sub_agents_in(place: Admitted, level: Level) -> list[SubAgentInfo]:
    """The sub-agents of a project, or of the user whose home directory it is."""
    search = Search(place.path, place.root)
    found: dict[str, SubAgentInfo] = {}
    refused: list[tuple[str, str]] = []
    try:
        for directory in (place.path / each for each in DIRECTORIES):
            for name, is_directory, _ in search.names(directory):
                if is_directory or not name.lower().endswith(".md") or name in NOT_ONE:
                    continue
                if len(found) >= MOST:
                    log.warning("not all sub-agents are read", directory=str(directory), most=MOST)
                    return list(found.values())
                file = directory / name
                try:
                    agent = sub_agent_of(search.text(file), file.stem, str(file), level)
                except ValueError as error:
                    reason = "it is not text in UTF-8" if isinstance(error, UnicodeError) else str(error)
                    refused.append((str(file), reason))
                else:
                    found.setdefault(agent.name, agent)
    except Enough as error:
        log.warning("not all sub-agents are read", directory=str(place.path), reason=str(error))
    finally:
        if refused:  # one line, since a repository may have thousands of them and a client asks often
            first, reason = refused[0]
            log.warning("sub-agents are not used", count=len(refused), first=first, reason=reason)
    return list(found.values())
