"""Routes of the wire for features that Ostler does not have.

One rule: a list is empty, which is true; an entry of it is not found (404); a change is refused with the
reason (501). A feature that is implemented later leaves this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

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
from gateway.api.routing import EXAMPLE_DIR, UUID_PARAMETERS, Route
from supervisor.reading.model import Model

NO_SKILLS: Final = (
    "Ostler has no skills of its own: each agent brings the skills that it finds in its workspace."
)
NO_PLUGINS: Final = "Ostler runs no plugins. Give an agent tools with an MCP server: `ostler mcp add`."
NO_EXTENSIONS: Final = "Ostler has no extensions of the user interface."
NO_SUBSCRIPTION: Final = (
    "Ostler does not log in to model subscriptions. Log in with the agent's own tool; its login is used."
)
NO_LOGIN: Final = "Subscription device login not found or expired"
NO_VSCODE: Final = "VSCode is disabled: this server has none."

REASONS: Final = {
    "LLM": NO_SUBSCRIPTION,
    "Skills": NO_SKILLS,
    "Plugins": NO_PLUGINS,
    "Extensions": NO_EXTENSIONS,
    "VSCode": NO_VSCODE,
}
"""Why, by tag."""

NONE: Final = "that of a server which has none"

SOURCE: Final = {"source": "https://git.example/example"}
"""The example of what is to be installed."""

NOT_CONNECTED: Final = {"vendor": "openai", "connected": False, "account_email": None, "expires_at": None}


def _route(
    asked: str,
    tag: str,
    summary: str,
    answer: Any,
    status: int = 200,
    *,
    schema: schemas.Schema = schemas.FREE,
    body: type[Model] | None = None,
    example: Any = None,
) -> Route:
    """One route. `answer` is all of it for a success, and the detail for any other `status`; there `{name}`
    stands for a parameter of the path."""
    method, path = asked.split()

    async def handle(**parameters: str) -> Response:
        for name in UUID_PARAMETERS & parameters.keys():
            path_uuid(parameters[name], name)
        if body is not None:
            read_body(body, await json_body(request))
        if status >= 400:
            raise ApiError(status, answer.format(**parameters))
        return json_response(answer, status)

    result = schemas.ref("Error") if status >= 400 else schema
    return Route(
        method=method,
        path=path,
        handler=handle,
        summary=summary,
        description=f"{REASONS[tag]} So the answer is {status if status >= 400 else NONE}.",
        tag=tag,
        body=body,
        example=example,
        result=result,
        status=status,
    )


def _list(asked: str, tag: str, summary: str, key: str, **more: Any) -> Route:
    schema = schemas.full(**{key: schemas.array(schemas.FREE)})
    return _route(asked, tag, summary, {key: []}, schema=schema, **more)


def _installable(base: str, tag: str, what: str, parameter: str) -> Iterator[Route]:
    """What can be installed: nothing is, and nothing can be."""
    one = f"{base}/installed/<{parameter}>"
    missing = f"{what} '{{{parameter}}}' is not installed"
    kind = f"an {what.lower()}" if what == "Extension" else f"a {what.lower()}"
    install, switch = f"POST {base}/install", f"Switch {kind} on or off"
    yield _route(install, tag, f"Install {kind}", REASONS[tag], 501, body=InstallRequest, example=SOURCE)
    yield _route(f"GET {one}", tag, f"Get {kind} that is installed", missing, 404)
    yield _route(f"PATCH {one}", tag, switch, missing, 404, body=EnabledRequest, example={"enabled": True})
    yield _route(f"DELETE {one}", tag, f"Uninstall {kind}", missing, 404)
    if what != "Extension":
        yield _route(f"POST {one}/refresh", tag, f"Refresh {kind}", missing, 404)


def _subscription(base: str, tag: str) -> Iterator[Route]:
    models = schemas.obj({"vendor": schemas.STRING, "models!": schemas.array(schemas.STRING)})
    status = schemas.obj(
        {
            "vendor": schemas.STRING,
            "connected!": schemas.BOOLEAN,
            "account_email": schemas.TEXT_OR_NULL,
            "expires_at": schemas.nullable(schemas.COUNT),
        }
    )
    none = {"vendor": "openai", "models": []}
    yield _route(f"GET {base}/models", tag, "List models of a subscription", none, schema=models)
    login = "Get the state of a subscription's login"
    yield _route(f"GET {base}/status", tag, login, NOT_CONNECTED, schema=status)
    yield _route(f"POST {base}/logout", tag, "Log out of a subscription", NOT_CONNECTED, schema=status)
    yield _route(f"POST {base}/device/start", tag, "Log in to a subscription", NO_SUBSCRIPTION, 501)
    outcome = "Ask for the outcome of a login to a subscription"
    body, code = SubscriptionDevicePollRequest, {"device_code": "0000"}
    yield _route(f"POST {base}/device/poll", tag, outcome, NO_LOGIN, 404, body=body, example=code)


def _vscode(base: str, tag: str, of: str = "") -> Iterator[Route]:
    none = {"running": False, "enabled": False, "message": NO_VSCODE}
    yield _route(f"GET {base}/status", tag, f"Get the state of VSCode{of}", none)
    yield _route(f"GET {base}/url", tag, f"Get the address of VSCode{of}", NO_VSCODE, 503)


NO_PROJECT: Final = {"body": PluginsRequest, "example": {"project_dir": EXAMPLE_DIR}}

ROUTES: Final = (
    *_subscription("/api/llm/subscription/openai", "LLM"),
    _list("GET /api/skills/catalog", "Skills", "List the skills that a profile can choose from", "skills"),
    _list("GET /api/skills/installed", "Skills", "List installed skills", "skills"),
    _list("GET /api/skills/marketplace", "Skills", "List skills that can be installed", "skills"),
    _route(
        "POST /api/skills/sync",
        "Skills",
        "Fetch public skills",
        {"status": "error", "message": NO_SKILLS},
        schema=schemas.full(status=schemas.STRING, message=schemas.STRING),
    ),
    *_installable("/api/skills", "Skills", "Skill", "skill_name"),
    _list("POST /api/plugins", "Plugins", "Load plugins", "plugins", **NO_PROJECT),
    _list("GET /api/plugins/installed", "Plugins", "List installed plugins", "plugins"),
    _list("GET /api/plugins/marketplace", "Plugins", "List plugins that can be installed", "plugins"),
    _route(
        "POST /api/plugins/fetch",
        "Plugins",
        "Fetch a plugin",
        NO_PLUGINS,
        501,
        body=InstallRequest,
        example=SOURCE,
    ),
    *_installable("/api/plugins", "Plugins", "Plugin", "plugin_name"),
    _list(
        "GET /api/canvas-extensions/installed", "Extensions", "List installed extensions", "canvas_extensions"
    ),
    *_installable("/api/canvas-extensions", "Extensions", "Extension", "extension_name"),
    *_vscode("/api/vscode", "VSCode"),
    *_vscode("/api/conversations/<conversation_id>/vscode", "VSCode", " (of a conversation)"),
)
"""Every such route."""
