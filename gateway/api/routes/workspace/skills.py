"""Skills: those of a project's directory and of the user, for clients that show them or send them along."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gateway.api import schemas
from gateway.api.requests.bodies import SkillsRequest
from gateway.api.requests.paths import here
from gateway.api.routing import EXAMPLE_DIR, Group
from gateway.api.services import Services
from supervisor.reading.shapes import as_json
from supervisor.workspace.access import AccessRefused, Admitted, BadPath
from supervisor.workspace.skills.skill import SkillInfo, work_hosts
from supervisor.workspace.skills.skills import project_skills, user_skills

SOURCES: Final = ("sandbox", "registered_marketplaces", "sdk_base", "org", "project")
"""Where skills come from, the weakest first. Of marketplaces and organizations, and of the public ones in
`sdk_base`, there are none: they would have to be fetched."""


RESULT: Final = schemas.full(
    skills=schemas.array(schemas.ref(SkillInfo.NAME)),
    sources={"type": "object", "additionalProperties": schemas.COUNT},
)

_skills: Final = Group("Skills", "/api/skills")
"""What else is below that path is in placeholders.py."""


@_skills(
    "POST",
    body=SkillsRequest,
    example={"project_dir": EXAMPLE_DIR},
    result=RESULT,
    errors={504: "The file system does not answer"},
)
async def load(services: Services, body: SkillsRequest) -> Any:
    """Load skills.

    They are those of the project and of the server's user; of two with one name the later source's counts.
    What is not a skill, or is too large, is left out.
    """
    if body.load_project and body.project_dir:
        await here(services, body.project_dir)
    found: dict[str, list[SkillInfo]] = {source: [] for source in SOURCES}
    if body.sandbox_config is not None:
        urls = body.sandbox_config.exposed_urls
        found["sandbox"] = work_hosts([(each.name, each.url, each.port) for each in urls])
    if body.load_user:
        home = services.launcher.server_environment.get("HOME") or "/"
        found["sdk_base"] = await _of(services, home, user_skills)
    if body.load_project and body.project_dir:
        found["project"] = await _of(services, body.project_dir, project_skills)
    skills = {skill.name: skill for source in SOURCES for skill in found[source]}
    return {
        "skills": [as_json(skill) for skill in skills.values()],
        "sources": {source: len(of_it) for source, of_it in found.items()},
    }


GROUPS: Final = (_skills,)


async def _of(
    services: Services, directory: str, search: Callable[[Admitted], list[SkillInfo]]
) -> list[SkillInfo]:
    """The skills of a directory; none where it is not there, or the operator keeps it from clients."""
    access = services.access
    with suppress(AccessRefused, BadPath):
        place = await access.admit(directory, loc=("body", "project_dir"))
        return await access.in_thread(lambda: search(place), "to read skills")
    return []
