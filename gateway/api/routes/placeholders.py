"""What clients ask for and Ostler has nothing of: one table, from the route to its answer.

An empty list is the truth: there is none. What would change something is 501, with the reason. What has
content one day leaves this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import (
    EnabledRequest,
    InstallRequest,
    PluginsRequest,
    SubscriptionDevicePollRequest,
    json_body,
)
from gateway.api.requests.reading import path_uuid, read_body
from gateway.api.responses import json_response
from gateway.api.routing import UUID_PARAMETERS, Route
from supervisor.reading import Model

NO_SKILLS: Final = (
    "Ostler has no skills of its own: each agent brings the skills that it finds in its workspace."
)
NO_PLUGINS: Final = "Ostler runs no plugins. Give an agent tools with an MCP server: `ostler mcp add`."
NO_EXTENSIONS: Final = "Ostler has no extensions of the user interface."
NO_SUBSCRIPTION: Final = (
    "Ostler does not log in to model subscriptions. Log in with the agent's own tool; its login is used."
)
NO_VSCODE: Final = "VSCode is disabled: this server has none."

NOT_CONNECTED: Final = {"vendor": "openai", "connected": False, "account_email": None, "expires_at": None}


@attrs.frozen(kw_only=True)
class Placeholder:
    """One route. `answer` is its whole answer for a `status` of success, and the detail for any other;
    parameters of the path stand in it as `{name}`."""

    method: str
    path: str
    tag: str
    summary: str
    answer: Any
    status: int = 200
    schema: Mapping[str, Any] | None = None
    """Of the answer in the interface description; None: it is a free object."""
    body: type[Model] | None = None

    async def handle(self, **parameters: str) -> Response:
        """Read what names a conversation, and the body, and answer."""
        for name in UUID_PARAMETERS & parameters.keys():
            path_uuid(parameters[name], name)
        if self.body is not None:
            read_body(self.body, await json_body(request))
        if self.status >= 400:
            raise ApiError(self.status, self.answer.format(**parameters))
        return json_response(self.answer, self.status)

    def route(self) -> Route:
        """As the application registers it."""
        failed = self.status >= 400
        return Route(
            method=self.method,
            path=self.path,
            handler=self.handle,
            summary=self.summary,
            tag=self.tag,
            body=self.body,
            result=schemas.ref("Error") if failed else self.schema or schemas.FREE,
            status=self.status,
        )


def _list(path: str, tag: str, summary: str, key: str, **more: Any) -> Placeholder:
    method = more.pop("method", "GET")
    besides = more.pop("answer", {})
    answer = {key: [], **besides}
    schema = schemas.obj({key: schemas.array(schemas.FREE), **dict.fromkeys(besides, schemas.FREE)}, key)
    return Placeholder(
        method=method, path=path, tag=tag, summary=summary, answer=answer, schema=schema, **more
    )


def _refused(
    method: str, path: str, tag: str, summary: str, status: int, reason: str, **more: Any
) -> Placeholder:
    return Placeholder(
        method=method, path=path, tag=tag, summary=summary, answer=reason, status=status, **more
    )


def _installable(base: str, tag: str, what: str, parameter: str, reason: str) -> tuple[Placeholder, ...]:
    """What can be installed: nothing is, and nothing can be."""
    one = f"{base}/installed/<{parameter}>"
    missing = f"{what} '{{{parameter}}}' is not installed"
    kind = what.lower()
    return (
        _refused("POST", f"{base}/install", tag, f"Install a {kind}", 501, reason, body=InstallRequest),
        _refused("GET", one, tag, f"Get an installed {kind}", 404, missing),
        _refused("PATCH", one, tag, f"Switch a {kind} on or off", 404, missing, body=EnabledRequest),
        _refused("DELETE", one, tag, f"Uninstall a {kind}", 404, missing),
        _refused("POST", f"{one}/refresh", tag, f"Refresh a {kind}", 404, missing),
    )


_STRINGS: Final = schemas.array(schemas.STRING)
_SUBSCRIPTION: Final = "/api/llm/subscription/openai"
_STATUS: Final = schemas.obj(
    {
        "vendor": schemas.STRING,
        "connected": schemas.BOOLEAN,
        "account_email": schemas.TEXT_OR_NULL,
        "expires_at": schemas.nullable(schemas.COUNT),
    },
    "connected",
)

TABLE: Final = (
    # -- subscriptions to language models ------------------------------------------------------------------
    Placeholder(
        method="GET",
        path=f"{_SUBSCRIPTION}/models",
        tag="LLM",
        summary="List models of a subscription",
        answer={"vendor": "openai", "models": []},
        schema=schemas.obj({"vendor": schemas.STRING, "models": _STRINGS}, "models"),
    ),
    Placeholder(
        method="GET",
        path=f"{_SUBSCRIPTION}/status",
        tag="LLM",
        summary="Get the state of a subscription's login",
        answer=NOT_CONNECTED,
        schema=_STATUS,
    ),
    Placeholder(
        method="POST",
        path=f"{_SUBSCRIPTION}/logout",
        tag="LLM",
        summary="Log out of a subscription",
        answer=NOT_CONNECTED,
        schema=_STATUS,
    ),
    _refused(
        "POST", f"{_SUBSCRIPTION}/device/start", "LLM", "Log in to a subscription", 501, NO_SUBSCRIPTION
    ),
    _refused(
        "POST",
        f"{_SUBSCRIPTION}/device/poll",
        "LLM",
        "Ask for the outcome of a login to a subscription",
        404,
        "Subscription device login not found or expired",
        body=SubscriptionDevicePollRequest,
    ),
    # -- skills -------------------------------------------------------------------------------------------
    _list("/api/skills/catalog", "Skills", "List the skills that a profile can choose from", "skills"),
    _list("/api/skills/installed", "Skills", "List installed skills", "skills"),
    _list("/api/skills/marketplace", "Skills", "List skills that can be installed", "skills"),
    Placeholder(
        method="POST",
        path="/api/skills/sync",
        tag="Skills",
        summary="Fetch public skills",
        answer={"status": "error", "message": NO_SKILLS},
        schema=schemas.obj({"status": schemas.STRING, "message": schemas.STRING}, "status", "message"),
    ),
    *_installable("/api/skills", "Skills", "Skill", "skill_name", NO_SKILLS),
    # -- plugins ------------------------------------------------------------------------------------------
    _list("/api/plugins", "Plugins", "Load plugins", "plugins", method="POST", body=PluginsRequest),
    _list("/api/plugins/installed", "Plugins", "List installed plugins", "plugins"),
    _list("/api/plugins/marketplace", "Plugins", "List plugins that can be installed", "plugins"),
    _refused("POST", "/api/plugins/fetch", "Plugins", "Fetch a plugin", 501, NO_PLUGINS, body=InstallRequest),
    *_installable("/api/plugins", "Plugins", "Plugin", "plugin_name", NO_PLUGINS),
    # -- the rest -----------------------------------------------------------------------------------------
    _list("/api/canvas-extensions/installed", "Extensions", "List installed extensions", "canvas_extensions"),
    *(
        each
        for each in _installable(
            "/api/canvas-extensions", "Extensions", "Extension", "extension_name", NO_EXTENSIONS
        )
        if not each.path.endswith("/refresh")
    ),
    *(
        each
        for base in ("/api/vscode", "/api/conversations/<conversation_id>/vscode")
        for each in (
            Placeholder(
                method="GET",
                path=f"{base}/status",
                tag="VSCode",
                summary="Get the state of VSCode",
                answer={"running": False, "enabled": False, "message": NO_VSCODE},
            ),
            _refused("GET", f"{base}/url", "VSCode", "Get the address of VSCode", 503, NO_VSCODE),
        )
    ),
)
"""Every such route."""


class PlaceholderRoutes:
    """The routes of the table."""

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        return tuple(each.route() for each in TABLE)
