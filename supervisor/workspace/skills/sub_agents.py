"""The sub-agents of a project, and those of the user: found and read. Blocking, and bounded as skills are."""

from __future__ import annotations

from typing import Final

import structlog

from supervisor.workspace.access import Admitted
from supervisor.workspace.skills.skills import MAX_SKILLS, Enough, Search
from supervisor.workspace.skills.sub_agent import Level, SubAgentInfo, sub_agent_of

log = structlog.get_logger(__name__)

DIRECTORIES: Final = (".agents/agents", ".openhands/agents")
"""Where sub-agents are, of a project as of the user; the first one that has a name counts."""

NOT_ONE: Final = frozenset({"README.md", "readme.md"})

MOST: Final = MAX_SKILLS


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
