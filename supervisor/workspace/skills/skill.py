"""A skill as clients read it, made of the text of its file. Pure.

Two formats: `NAME/SKILL.md` of the AgentSkills specification, and any other Markdown file. Names, kinds and
triggers are those of the wire's own server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import attrs

from supervisor.reading.model import Model
from supervisor.workspace.skills.front_matter import split_head

THIRD_PARTY: Final[Mapping[str, str]] = {
    ".cursorrules": "cursorrules",
    "agents.md": "agents",
    "agent.md": "agents",
    "claude.md": "claude",
    "gemini.md": "gemini",
}
"""Instructions for agents of all kinds, by the name of their file in lower case: what the skill is called."""

SKILL_FILE: Final = "skill.md"
"""In lower case; the specification writes it in capitals."""

NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
NAME_CHARACTERS: Final = 64
DESCRIPTION_CHARACTERS: Final = 1024
"""Both are the specification's."""

VARIABLE: Final = re.compile(r"\$\{[a-zA-Z_][a-zA-Z0-9_]*\}")

ASK: Final = (
    "\n\nIf the user didn't provide any of these variables, ask the user to "
    "provide them first before the agent can proceed with the task."
)
"""What is added to a skill with inputs; the wire's."""

CUT: Final = "... (cut)"

TRUE: Final = frozenset({"true", "yes", "on"})


Kind = Literal["repo", "knowledge", "agentskills"]
"""Read always, read when something calls for it, or of the specification."""


class BadSkill(ValueError):
    """The file is not a skill. The message says why and quotes nothing."""


@attrs.frozen(kw_only=True)
class SkillInfo(Model):
    """A skill. `source` is its file; `triggers` are words that activate it."""

    NAME: ClassVar[str] = "SkillInfo"

    name: str
    type: Kind
    content: str
    triggers: tuple[str, ...] = ()
    source: str | None = None
    description: str | None = None
    is_agentskills_format: bool = False
    disable_model_invocation: bool = False


def instructions(text: str, name: str, source: str, below: str | None = None) -> SkillInfo:
    """A file of instructions for agents of all kinds: as it is, without properties.

    `below`: the directory that it is about, where it is not the project's own.
    """
    if below is None:
        return SkillInfo(name=name, type="repo", content=text, source=source)
    return SkillInfo(
        name=f"{name}:{below}", type="knowledge", content=text, source=source, disable_model_invocation=True
    )


def skill_of(text: str, name: str, source: str, *, specified: bool) -> SkillInfo:
    """The skill in a file.

    `name`: of its directory, or of its file. `specified`: it is a SKILL.md, whose name has to be that of its
    directory. Raises ValueError.
    """
    head, content = split_head(text)
    given = head.get("name")
    called = name if given is None else given
    if not isinstance(called, str):
        raise BadSkill("its name is not a text")
    if specified and (called != name or len(called) > NAME_CHARACTERS or not NAME.fullmatch(called)):
        raise BadSkill(
            f"its name must be that of its directory: at most {NAME_CHARACTERS} lower-case letters and "
            "digits, with single hyphens between them"
        )
    triggers = _texts(head, "triggers")
    paths = [each.strip() for each in _texts(head, "paths", split=",") if each.strip()]
    kind: Kind = "repo"
    if paths:
        triggers, kind = [], "knowledge"
    elif "inputs" in head:
        kind = "knowledge"
        inputs = head["inputs"]
        if not isinstance(inputs, list):
            raise BadSkill("its inputs are not a list")
        triggers += [each for each in (f"/{called}",) if each not in triggers]
        if content and (inputs or VARIABLE.search(content)) and ASK not in content:
            content += ASK
    elif triggers:
        kind = "knowledge"
    return SkillInfo(
        name=called,
        type="agentskills" if specified else kind,
        content=content,
        triggers=tuple(triggers),
        source=source,
        description=_description(head.get("description")),
        is_agentskills_format=specified,
        disable_model_invocation=bool(paths) or _said(head, "disable-model-invocation"),
    )


def work_hosts(urls: list[tuple[str, str, int]]) -> list[SkillInfo]:
    """The skill that lists the addresses (name, URL, port) at which a client's user sees web applications;
    empty if there are none."""
    hosts = [f"* {url} (port {port})" for name, url, port in urls if name.startswith("WORKER_")]
    if not hosts:
        return []
    content = (
        "The user has access to the following hosts for accessing a web application, "
        "each of which has a corresponding port:\n"
    )
    return [SkillInfo(name="work_hosts", type="repo", content=content + "\n".join(hosts))]


def _texts(head: Mapping[str, Any], key: str, *, split: str | None = None) -> list[str]:
    found = head.get(key)
    if found is None:
        return []
    if split is not None and isinstance(found, str):
        return found.split(split)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadSkill(f"its {key} are not a list of texts")
    return list(found)


def _said(head: Mapping[str, Any], key: str) -> bool:
    found = head.get(key, head.get(key.replace("-", "_")))
    return isinstance(found, str) and found.lower() in TRUE


def _description(found: Any) -> str | None:
    if found is not None and not isinstance(found, str):
        raise BadSkill("its description is not a text")
    if found is not None and len(found) > DESCRIPTION_CHARACTERS:
        return found[: DESCRIPTION_CHARACTERS - len(CUT)] + CUT
    return found
