"""Sub-agents: what agents of the built-in kind may give a part of their work to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import orjson
import trio

from gateway.api import schemas
from gateway.api.requests.bodies import SubAgentsRequest
from gateway.api.requests.paths import here
from gateway.api.routing import EXAMPLE_DIR, Group
from gateway.api.services import Services
from supervisor.agents.sdk_facts import known
from supervisor.reading.shapes import as_json
from supervisor.settings.built_in import hidden_within
from supervisor.workspace.access import AccessRefused, BadPath
from supervisor.workspace.skills.sub_agents import Level, SubAgentInfo, sub_agents_in

NEED_A_BROWSER = frozenset({"web-researcher"})
"""Of those that come with the library: they are not there without one."""


_sub_agents: Final = Group("Agents", "/api/sub-agents")


@_sub_agents(
    "POST",
    body=SubAgentsRequest,
    example={"project_dir": EXAMPLE_DIR},
    result=schemas.full(agents=schemas.array(schemas.ref(SubAgentInfo.NAME))),
    errors={504: "The file system does not answer"},
)
async def load(services: Services, body: SubAgentsRequest) -> bytes:
    """List sub-agents.

    They are those of the project, of the server's user and of the built-in agent. Of two with one name the
    project's counts, then the user's.
    """
    environ = services.launcher.server_environment
    found: list[tuple[str, bytes]] = []
    if body.load_project and body.project_dir:
        await here(services, body.project_dir)
        found += await _of(services, body.project_dir, "project")
    if body.load_user:
        found += await _of(services, environ.get("HOME") or "/", "user")
    if body.load_builtin:
        found += await trio.to_thread.run_sync(lambda: _built_in(environ))
    by_name: dict[str, bytes] = {}
    for name, one in found:
        by_name.setdefault(name, one)
    return b'{"agents":[' + b",".join(by_name.values()) + b"]}"


GROUPS: Final = (_sub_agents,)


async def _of(services: Services, directory: str, level: Level) -> list[tuple[str, bytes]]:
    """Those of a directory, by name as JSON; none where it is not there, or the operator keeps it from
    clients."""
    access = services.access
    with suppress(AccessRefused, BadPath):
        place = await access.admit(directory, loc=("body", "project_dir"))
        return await access.in_thread(lambda: _encoded(sub_agents_in(place, level)), "to read sub-agents")
    return []


def _encoded(agents: Iterable[SubAgentInfo]) -> list[tuple[str, bytes]]:
    """In a thread: what files say may take half a second."""
    return [(each.name, orjson.dumps(hidden_within(as_json(each)))) for each in agents]


def _built_in(environ: Any) -> list[tuple[str, bytes]]:
    """In a thread. Those that come with the library."""
    found = known()
    browser = found.browsers.there(environ)
    return _encoded(
        SubAgentInfo(**{**each, "mcp_servers": each["mcp_config"], "is_builtin": True})
        for each in found.sub_agents
        if browser or each["name"] not in NEED_A_BROWSER
    )
