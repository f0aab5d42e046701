"""What a client offers for the built-in agent: models, their providers, tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.reading import Query, read_query
from gateway.api.responses import json_response
from gateway.api.routing import Route, params_of
from gateway.api.services import Services
from supervisor.agents.known import BROWSER_TOOL, Known, known

DESCRIPTIONS: Final = {
    "browser_tool_set": "Look at pages of the web in a browser, click and type.",
    "file_editor": "Show, create and change files.",
    "glob": "Find files by their names.",
    "grep": "Find text in files.",
    "switch_llm": "Go on with another model.",
    "task_tool_set": "Give a part of the work to another agent.",
    "task_tracker": "Keep a list of what is to be done.",
    "terminal": "Run commands in a shell.",
}
"""What tools that a person can choose are for."""

_STRINGS: Final = schemas.array(schemas.STRING)
_TOOL: Final = schemas.obj(
    {
        "name": schemas.STRING,
        "user_selectable": schemas.BOOLEAN,
        "usable": schemas.BOOLEAN,
        "description": schemas.STRING,
        "in_default_set": schemas.BOOLEAN,
    },
    "name",
    "user_selectable",
    "usable",
    "description",
    "in_default_set",
)


@attrs.frozen(kw_only=True)
class ModelsQuery(Query):
    """Whose models."""

    provider: str | None = None


@attrs.frozen
class BuiltInRoutes:
    """The handlers of `/api/llm/models`, `/api/llm/providers` and `/api/tools`."""

    services: Services

    async def verified(self) -> Response:
        """List verified models by provider."""
        return await _answer(lambda found: {"models": found.verified})

    async def models(self) -> Response:
        """List models, or those of one provider."""
        asked = read_query(ModelsQuery, request.args)
        return await _answer(lambda found: {"models": found.models(asked.provider)})

    async def providers(self) -> Response:
        """List providers of models."""
        return await _answer(lambda found: {"providers": found.providers})

    async def tools(self) -> Response:
        """List the names of tools."""
        return await _answer(lambda found: found.registered)

    async def tool_catalog(self) -> Response:
        """List the tools with what clients show of them."""
        environ = self.services.launcher.server_environment
        return await _answer(lambda found: {"tools": _tools(found, environ)})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        models, catalog = schemas.obj({"models": _STRINGS}, "models"), schemas.array(_TOOL)
        return (
            Route(
                method="GET",
                path="/api/llm/models/verified",
                handler=self.verified,
                summary="List verified models by provider",
                tag="LLM",
                result=schemas.obj({"models": schemas.FREE}, "models"),
            ),
            Route(
                method="GET",
                path="/api/llm/models",
                handler=self.models,
                summary="List models",
                tag="LLM",
                query=params_of(ModelsQuery),
                result=models,
            ),
            Route(
                method="GET",
                path="/api/llm/providers",
                handler=self.providers,
                summary="List providers of models",
                tag="LLM",
                result=schemas.obj({"providers": _STRINGS}, "providers"),
            ),
            *(
                Route(
                    method="GET",
                    path=path,
                    handler=self.tools,
                    summary="List tools of the built-in agent",
                    tag="Tools",
                    result=_STRINGS,
                )
                for path in ("/api/tools/", "/api/tools")
            ),
            Route(
                method="GET",
                path="/api/tools/catalog",
                handler=self.tool_catalog,
                summary="List tools of the built-in agent, described",
                tag="Tools",
                result=schemas.obj({"tools": catalog}, "tools"),
            ),
        )


async def _answer(chosen: Callable[[Known], Any]) -> Response:
    # In a thread: it reads a file, once, and goes over thousands of names.
    return json_response(await trio.to_thread.run_sync(lambda: chosen(known())))


def _tools(found: Known, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    browser = found.browsers.there(environ)
    return [
        {
            "name": name,
            "user_selectable": tool.user_selectable,
            "usable": browser or name != BROWSER_TOOL,
            "description": DESCRIPTIONS.get(name, ""),
            "in_default_set": tool.in_default_set,
        }
        for name, tool in found.tools.items()
    ]
