"""Skills: those of a project's directory and of the user, for clients that show them or send them along."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import SkillsRequest, json_body
from gateway.api.requests.reading import read_body
from gateway.api.responses import json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.reading.shapes import as_json
from supervisor.workspace.access import AccessRefused, Admitted, BadPath
from supervisor.workspace.skills.skill import SkillInfo, work_hosts
from supervisor.workspace.skills.skills import project_skills, user_skills

SOURCES: Final = ("sandbox", "registered_marketplaces", "sdk_base", "org", "project")
"""Where skills come from, the weakest first. Of marketplaces and organizations, and of the public ones in
`sdk_base`, there are none: they would have to be fetched."""


@attrs.frozen
class SkillRoutes:
    """The handler of `/api/skills`. What else is below that path is in placeholders.py."""

    services: Services

    async def load(self) -> Response:
        """The skills that the request asks for. Of two with one name the later source's counts."""
        asked = read_body(SkillsRequest, await json_body(request))
        found: dict[str, list[SkillInfo]] = {source: [] for source in SOURCES}
        if asked.sandbox_config is not None:
            urls = asked.sandbox_config.exposed_urls
            found["sandbox"] = work_hosts([(each.name, each.url, each.port) for each in urls])
        if asked.load_user:
            home = self.services.launcher.server_environment.get("HOME") or "/"
            found["sdk_base"] = await self._of(home, user_skills)
        if asked.load_project and asked.project_dir:
            found["project"] = await self._of(asked.project_dir, project_skills)
        skills = {skill.name: skill for source in SOURCES for skill in found[source]}
        return json_response(
            {
                "skills": [as_json(skill) for skill in skills.values()],
                "sources": {source: len(of_it) for source, of_it in found.items()},
            }
        )

    async def _of(self, directory: str, search: Callable[[Admitted], list[SkillInfo]]) -> list[SkillInfo]:
        """The skills of a directory; none where it is not there, or the operator keeps it from clients."""
        access = self.services.access
        with suppress(AccessRefused, BadPath):
            place = await access.admit(directory, loc=("body", "project_dir"))
            return await access.in_thread(lambda: search(place), "to read skills")
        return []

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        return (
            Route(
                method="POST",
                path="/api/skills",
                handler=self.load,
                summary="Load skills",
                tag="Skills",
                body=SkillsRequest,
                result=schemas.obj(
                    {
                        "skills": schemas.array(schemas.ref(SkillInfo.NAME)),
                        "sources": {"type": "object", "additionalProperties": schemas.COUNT},
                    },
                    "skills",
                    "sources",
                ),
                errors={504: "The file system does not answer"},
            ),
        )
