"""The examples of the interface description are sent to a real server with the demo agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from gateway.api.routing import EXAMPLE_DIR
from tests.support.client import SETTLED, Rest
from tests.support.server import running_server

ONE: Final = "/api/conversations/{conversation_id}"
WAIT_S: Final = 30.0

FIRST: Final = (
    "POST /api/conversations",
    f"POST {ONE}/confirmation_policy",
    f"POST {ONE}/events",
    f"POST {ONE}/events/respond_to_confirmation",
    "POST /api/profiles/{name}",
)
"""What others need: a conversation, a question that waits, a profile."""

LAST: Final = (f"POST {ONE}/navigate", f"POST {ONE}/goal")
"""What others do not work after."""

REFUSED: Final = {
    f"POST {ONE}/switch_llm": 400,  # the demo agent is external, and has models of its own
    f"POST {ONE}/switch_profile": 400,
    f"POST {ONE}/load_plugin": 400,
    "POST /api/profiles/{name}/validate": 503,  # the built-in agent is not installed
}
"""What the demo agent is refused, with the status that the description has for it."""


class Walk:
    """Sends examples, and keeps what later requests need."""

    def __init__(self, rest: Rest, workspace: Path) -> None:
        self.rest = rest
        self.workspace = workspace
        self.known = {"conversation_id": "", "name": "example", "settings_key": "example"}

    async def send(self, name: str, operation: Mapping[str, Any]) -> int:
        """The status of the answer."""
        method, _, template = name.partition(" ")
        path = template.format_map(
            self.known | dict.fromkeys(("skill_name", "plugin_name", "extension_name"), "x")
        )
        if "{conversation_id}" in template:
            await self.settled()
        [(media_type, content)] = operation["requestBody"]["content"].items()
        body = json.loads(json.dumps(content["example"]).replace(EXAMPLE_DIR, str(self.workspace)))
        query = {"path": f"{self.workspace}/example.txt"} if media_type.startswith("multipart") else None
        sent: dict[str, Any] = {"json": body}
        if media_type.startswith("multipart"):
            sent = {"files": body}
        answer = await self.rest.http.request(method, path, params=query, **sent)
        found = answer.json() if answer.content else None
        if isinstance(found, dict):
            self.remember(name, found)
        return answer.status_code

    def remember(self, name: str, found: Mapping[str, Any]) -> None:
        if name == "POST /api/conversations":
            self.known["conversation_id"] = found["id"]
        elif name == "POST /api/llm/provider-connections":
            self.known["connection_id"] = found["id"]
        elif name == "POST /api/mcp/oauth/start":
            self.known["job_id"] = found["job_id"]

    async def settled(self) -> None:
        with trio.fail_after(WAIT_S):
            while await self.rest.status(self.known["conversation_id"]) not in SETTLED:
                await trio.sleep(0.02)


async def test_every_example_is_accepted(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with running_server(tmp_path) as server:
        document = await server.rest.call("GET", "/openapi.json")
        bodies = {
            f"{method.upper()} {path}": operation
            for path, found in document["paths"].items()
            for method, operation in found.items()
            if "requestBody" in operation
        }
        others = [name for name in bodies if name not in FIRST + LAST]
        walk = Walk(server.rest, workspace)
        outcomes = {name: await walk.send(name, bodies[name]) for name in (*FIRST, *others, *LAST)}
        assert outcomes.keys() == bodies.keys()
        # The first response of an operation is that of its success; of what Ostler lacks it is the refusal.
        wanted = {name: int(next(iter(operation["responses"]))) for name, operation in bodies.items()}
        assert outcomes == wanted | REFUSED
        assert all(str(status) in bodies[name]["responses"] for name, status in REFUSED.items())
        assert (workspace / "example.txt").read_text() == "Hello!"
        await walk.settled()
        assert (workspace / "hello-from-ostler.txt").exists()
