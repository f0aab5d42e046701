"""What a client offers for the built-in agent: models, their providers, tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio

from gateway.api import schemas
from gateway.api.requests.reading import Query
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.agents.sdk_facts import BROWSER_TOOL, Known, known

DESCRIPTIONS: Final = {
    "browser_tool_set": "Look at pages of the web in a browser, click and type.",
    "file_editor": "Show, create and change files.",
    "glob": "Find files by their names.",
    "grep": "Find text in files.",
    "switch_llm": "Continue with another model.",
    "task_tool_set": "Give a part of the work to another agent.",
    "task_tracker": "Keep a list of what is to be done.",
    "terminal": "Run commands in a shell.",
}
"""What tools that a person can choose are for."""

_STRINGS: Final = schemas.array(schemas.STRING)
_TOOL: Final = schemas.full(
    name=schemas.STRING,
    user_selectable=schemas.BOOLEAN,
    usable=schemas.BOOLEAN,
    description=schemas.STRING,
    in_default_set=schemas.BOOLEAN,
)


@attrs.frozen(kw_only=True)
class ModelsQuery(Query):
    """Whose models."""

    provider: str | None = None


_llm: Final = Group("LLM", "/api/llm")
_tool_names: Final = Group("Tools", {"/api/tools/": {}, "/api/tools": {}})
_catalog: Final = Group("Tools", "/api/tools/catalog")


@_llm("GET /models/verified", result=schemas.full(models=schemas.FREE))
async def verified() -> Any:
    """List verified models by provider.

    Those that are known to work with the built-in agent. The list is part of Ostler, so no provider is asked.
    """
    return await _of_known(lambda found: {"models": found.verified})


@_llm("GET /models", query=ModelsQuery, result=schemas.full(models=_STRINGS))
async def models(query: ModelsQuery) -> Any:
    """List models.

    All that the library of the built-in agent knows, or those of one `provider`. The list is part of Ostler,
    so no provider is asked.
    """
    return await _of_known(lambda found: {"models": found.models(query.provider)})


@_llm("GET /providers", result=schemas.full(providers=_STRINGS))
async def providers() -> Any:
    """List providers of models.

    The names that `GET /api/llm/models` takes as `provider`. The list is part of Ostler, so no provider is
    asked.
    """
    return await _of_known(lambda found: {"providers": found.providers})


@_tool_names("GET", result=_STRINGS)
async def tools() -> Any:
    """List tools of the built-in agent.

    The names that a start request may give the built-in agent. External agents bring tools of their own.
    """
    return await _of_known(lambda found: found.registered)


@_catalog("GET", result=schemas.full(tools=schemas.array(_TOOL)))
async def tool_catalog(services: Services) -> Any:
    """List tools of the built-in agent, described.

    Each with what it is for, whether a person may choose it, and whether it is usable on this machine.
    External agents bring tools of their own.
    """
    environ = services.launcher.server_environment
    return await _of_known(lambda found: {"tools": _tools(found, environ)})


GROUPS: Final = (_llm, _tool_names, _catalog)


async def _of_known(chosen: Callable[[Known], Any]) -> Any:
    # In a thread: it reads a file, once, and goes over thousands of names.
    return await trio.to_thread.run_sync(lambda: chosen(known()))


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
