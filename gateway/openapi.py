"""The interface description: built from the routes, and from the event types' own schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from gateway.address import KEY_HEADER
from gateway.agent_schemas import agent_components
from gateway.routes.agents import METRICS
from gateway.routing import UUID_PARAMETERS, Param, Route
from gateway.schemas import COMPONENTS, STRING, UUID, Schema, ref
from supervisor.events import json_schema

INTERFACE_VERSION: Final = "0.1.0"
"""The version of the interface specification that the description stands for."""

DESCRIPTION: Final = (
    "Runs ACP coding agents. Conversations are driven over REST and watched live over the WebSockets "
    "/sockets/events/{conversation_id} and /sockets/session/{conversation_id}. "
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
"""How a session key is presented; needed where the server has any. The second is for scrapers of figures."""


def describe(routes: Iterable[Route]) -> bytes:
    """An OpenAPI 3.1 document, as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Ostler", "version": INTERFACE_VERSION, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {**json_schema(), **COMPONENTS, **agent_components()},
            "securitySchemes": SECURITY_SCHEMES,
        },
    }
    return orjson.dumps(document)


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
            "content": {"application/json": {"schema": dict(route.body)}},
        }
    return operation


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


_TO_NAME = str.maketrans({"/": "_", "<": "", ">": "", ".": "_"})


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(route.status): _response("Success", route, route.result)}
    for status, reason in sorted(route.errors.items()):
        schema = route.result if status < 300 else ref("Error")
        responses[str(status)] = _response(reason, route, schema)
    if _key_schemes(route):
        responses["401"] = _response("A session key is asked for", route, ref("Error"))
    if route.path.startswith("/api/") and (route.body is not None or route.path_parameters or route.query):
        responses["422"] = {
            "description": "The request does not fit its schema",
            "content": {"application/json": {"schema": ref("HTTPValidationError")}},
        }
    return responses


def _response(description: str, route: Route, schema: Any) -> dict[str, Any]:
    success = schema is route.result
    media_type = route.media_type if success else "application/json"
    if schema is None:
        return {"description": description}
    return {"description": description, "content": {media_type: {"schema": dict(schema)}}}
