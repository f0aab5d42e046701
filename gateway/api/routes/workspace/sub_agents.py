"""Sub-agents: what agents of the built-in kind may give a part of their work to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import attrs
import orjson
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import SubAgentsRequest, json_body
from gateway.api.requests.reading import read_body
from gateway.api.responses import raw_json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.agents.known import known
from supervisor.reading.shapes import as_json
from supervisor.settings.built_in import hidden_within
from supervisor.workspace.access import AccessRefused, BadPath
from supervisor.workspace.skills.sub_agents import Level, SubAgentInfo, sub_agents_in

NEED_A_BROWSER = frozenset({"web-researcher"})
"""Of those that come with the library: they are not there without one."""


@attrs.frozen
class SubAgentRoutes:
    """The handler of `/api/sub-agents`."""

    services: Services

    async def load(self) -> Response:
        """The sub-agents that the request asks for. Of two with one name the project's counts, then the
        user's."""
        asked = read_body(SubAgentsRequest, await json_body(request))
        environ = self.services.launcher.server_environment
        found: list[tuple[str, bytes]] = []
        if asked.load_project and asked.project_dir:
            found += await self._of(asked.project_dir, "project")
        if asked.load_user:
            found += await self._of(environ.get("HOME") or "/", "user")
        if asked.load_builtin:
            found += await trio.to_thread.run_sync(lambda: _built_in(environ))
        by_name: dict[str, bytes] = {}
        for name, body in found:
            by_name.setdefault(name, body)
        return raw_json_response(b'{"agents":[' + b",".join(by_name.values()) + b"]}")

    async def _of(self, directory: str, level: Level) -> list[tuple[str, bytes]]:
        """Those of a directory, by name as JSON; none where it is not there, or the operator keeps it from
        clients."""
        access = self.services.access
        with suppress(AccessRefused, BadPath):
            place = await access.admit(directory, loc=("body", "project_dir"))
            return await access.in_thread(lambda: _told(sub_agents_in(place, level)), "to read sub-agents")
        return []

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        return (
            Route(
                method="POST",
                path="/api/sub-agents",
                handler=self.load,
                summary="List sub-agents",
                tag="Agents",
                body=SubAgentsRequest,
                result=schemas.obj({"agents": schemas.array(schemas.ref(SubAgentInfo.NAME))}, "agents"),
                errors={504: "The file system does not answer"},
            ),
        )


def _told(agents: Iterable[SubAgentInfo]) -> list[tuple[str, bytes]]:
    """In a thread: what files say may take half a second."""
    return [(each.name, orjson.dumps(hidden_within(as_json(each)))) for each in agents]


def _built_in(environ: Any) -> list[tuple[str, bytes]]:
    """In a thread. Those that come with the library."""
    found = known()
    browser = found.browsers.there(environ)
    return _told(
        SubAgentInfo(**{**each, "mcp_servers": each["mcp_config"], "is_builtin": True})
        for each in found.sub_agents
        if browser or each["name"] not in NEED_A_BROWSER
    )
