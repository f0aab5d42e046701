"""The interface description: built from the routes, and from what requests and events are read with."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import orjson

from gateway.api.requests.bodies import SOURCE, TEST_FIELDS, TEST_SERVER
from gateway.api.requests.start_request import ACP_SETTINGS, AGENT, AGENT_SETTINGS
from gateway.api.routes.agents import METRICS
from gateway.api.routing import UUID_PARAMETERS, Param, Route
from gateway.api.schemas import COMPONENTS, STRING, UUID, Schema, choice, nullable, obj, ref
from gateway.configuration.address import KEY_HEADER
from supervisor.agents.catalog import load_catalog, presets
from supervisor.conversations.resource.resource import ConversationInfo
from supervisor.credentials.source import LookupSource, StaticSource
from supervisor.events import Event
from supervisor.hooks.config import HOOK_CONFIG, HookConfig
from supervisor.mcp.server import MCPServer
from supervisor.reading.model import HTTPValidationError
from supervisor.reading.rules import NO_NUL
from supervisor.reading.schema import Components
from supervisor.settings.agent import CUSTOM, MCP_SERVER, PROVIDER, ACPAgent, AgentSettings
from supervisor.settings.built_in import KIND
from supervisor.settings.llm import LLM
from supervisor.settings.openhands import OpenHandsAgentSettings
from supervisor.settings.profiles.profile import AgentProfile, OpenHandsAgentProfile
from supervisor.workspace.commands.log import BashCommand, BashError, BashOutput
from supervisor.workspace.skills.skill import SkillInfo
from supervisor.workspace.skills.sub_agents import SubAgentInfo

INTERFACE_VERSION: Final = "0.1.0"
"""The version of the interface specification that the description implements."""

DESCRIPTION: Final = (
    "Runs ACP coding agents. Conversations are driven over REST and watched live over WebSockets, which have "
    "[a page of their own](docs/sockets.html). The example of each body works against the demo agent. "
    "Where session keys are configured, requests to /api carry one in the header X-Session-API-Key."
)


SECURITY_SCHEMES: Final = {
    "SessionKey": {
        "type": "apiKey",
        "in": "header",
        "name": KEY_HEADER,
        "description": "A session key of the server. A server without session keys needs none.",
    },
    "Bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A session key, for what reads /metrics alone.",
    },
}
"""How a session key is presented, where the server has keys. The second way is for metrics scrapers."""


def describe(routes: Iterable[Route]) -> bytes:
    """An OpenAPI 3.1 document, as JSON. Reads the catalogue: its agents are the enumeration of providers."""
    routes = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Ostler", "version": INTERFACE_VERSION, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": _components(routes),
            "securitySchemes": SECURITY_SCHEMES,
        },
    }
    return orjson.dumps(document)


BUILT_IN: Final = {
    **obj(
        {
            "kind!": {"const": KIND},
            "llm!": ref(LLM.NAME),
            "tools": {"type": ["array", "null"]},
            "mcp_config": {"type": ["object", "null"], "additionalProperties": ref("MCPServer")},
        }
    ),
    "description": "The built-in agent, as clients of its SDK write it: the SDK judges the rest",
}


def _components(routes: Iterable[Route]) -> dict[str, Any]:
    providers = [*presets(load_catalog()), CUSTOM]
    components = Components(
        {
            PROVIDER: choice(providers, description="An agent of the catalogue, or custom"),
            MCP_SERVER: ref("MCPServer"),
            AGENT: {"anyOf": [ref(ACPAgent.NAME), BUILT_IN]},
            AGENT_SETTINGS: {"anyOf": [ref(AgentSettings.NAME), ref(OpenHandsAgentSettings.NAME)]},
            ACP_SETTINGS: ref(AgentSettings.NAME),
            SOURCE: ref("SecretSource"),
            HOOK_CONFIG: nullable(ref(HookConfig.NAME)),
            TEST_SERVER: ref("MCPTestServer"),
        }
    )
    bodies = [route.body for route in routes if isinstance(route.body, type)]
    found = components.add(
        Event,
        ConversationInfo,
        HTTPValidationError,
        AgentSettings,
        OpenHandsAgentSettings,
        AgentProfile,
        OpenHandsAgentProfile,
        ACPAgent,
        MCPServer,
        StaticSource,
        LookupSource,
        HookConfig,
        SkillInfo,
        SubAgentInfo,
        *bodies,
    )
    found |= components.add(BashCommand, BashOutput, BashError)
    found["SecretSource"] = {
        "anyOf": [{**STRING, **NO_NUL.schema()}, ref(StaticSource.NAME), ref(LookupSource.NAME)]
    }
    found["MCPTestServer"] = _test_server(found["MCPServer"]["properties"])
    return {**dict(sorted(found.items())), **COMPONENTS}


def _test_server(properties: dict[str, Schema]) -> Schema:
    """A server that is tried: by its type, what is read of it."""

    def fields(kind: str) -> dict[str, Schema]:
        needed, *more = TEST_FIELDS[kind]
        return {f"{needed}!": {**STRING, "minLength": 1}, **{name: properties[name] for name in more}}

    remote = [kind for kind in TEST_FIELDS if kind != "stdio"]
    return {
        "anyOf": [
            obj({"type": nullable(choice(["stdio"])), **fields("stdio")}),
            obj({"type!": choice(remote), **fields(remote[0])}),
        ]
    }


def _operation(route: Route) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _path_schema(route, name),
        }
        for name in route.path_parameters
    ]
    parameters += [_parameter(param, "query") for param in route.query]
    parameters += [_parameter(param, "header") for param in route.headers]
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.path.translate(_TO_NAME)}",
        "summary": route.summary,
        "description": route.description,
        "tags": [route.tag],
        "responses": _responses(route),
    }
    if schemes := _key_schemes(route):
        operation["security"] = [{name: []} for name in schemes]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {route.body_media_type: {"schema": _body(route), "example": route.example}},
        }
    return operation


def _body(route: Route) -> Schema:
    if isinstance(route.body, type):
        return ref(route.body.NAME) if route.body_required else nullable(ref(route.body.NAME))
    return dict(route.body or {})


def _key_schemes(route: Route) -> tuple[str, ...]:
    """How a request to the route may present its key; none where no key is asked for."""
    if route.path == METRICS:
        return ("SessionKey", "Bearer")
    return ("SessionKey",) if route.path.startswith("/api/") else ()


def _path_schema(route: Route, name: str) -> Schema:
    if name in UUID_PARAMETERS:
        return UUID
    return dict(route.path_schemas.get(name, STRING))


def _parameter(param: Param, place: str) -> dict[str, Any]:
    parameter: dict[str, Any] = {
        "name": param.name,
        "in": place,
        "required": param.required,
        "schema": dict(param.schema),
    }
    if param.description:
        parameter["description"] = param.description
    return parameter


_TO_NAME = str.maketrans({"/": "_", "<": "", ">": "", ".": "_", ":": "_"})


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(route.status): _response(_phrase(route.status), route, route.result)}
    for status, reason in sorted(route.errors.items()):
        schema = route.error_results.get(status, route.result if status < 300 else ref("Error"))
        responses[str(status)] = _response(reason, route, schema)
    if _key_schemes(route):
        responses["401"] = _response("A session key is asked for", route, ref("Error"))
    if route.path.startswith("/api/") and route.method not in ("GET", "HEAD"):
        forbidden = "The page that asks may not act here: see OSTLER_CORS_ORIGINS"
        responses.setdefault("403", _response(forbidden, route, ref("Error")))
    if route.path.startswith("/api/") and (route.body is not None or route.path_parameters or route.query):
        responses["422"] = {
            "description": "The request does not fit its schema",
            "content": {"application/json": {"schema": ref("HTTPValidationError")}},
        }
    return responses


def _phrase(status: int) -> str:
    """The description of a route's main status, which can be an error: some routes only refuse."""
    return "Success" if status < 400 else HTTPStatus(status).phrase


def _response(description: str, route: Route, schema: Any) -> dict[str, Any]:
    success = schema is route.result
    media_type = route.media_type if success else "application/json"
    if schema is None:
        return {"description": description}
    media_types = (media_type, *route.other_media_types) if success else (media_type,)
    return {"description": description, "content": {each: {"schema": dict(schema)} for each in media_types}}
