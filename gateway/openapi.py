"""The interface description: built from the routes, and from the event types' own schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from gateway.routing import UUID_PARAMETERS, Route
from gateway.schemas import COMPONENTS, ref
from supervisor.events import json_schema

INTERFACE_VERSION: Final = "0.1.0"
"""The version of the interface specification that the description stands for."""

DESCRIPTION: Final = (
    "Runs ACP coding agents. Conversations are driven over REST and watched live over the WebSockets "
    "/sockets/events/{conversation_id} and /sockets/session/{conversation_id}. "
    "Where session keys are configured, requests to /api carry one in the header X-Session-API-Key."
)


def describe(routes: Iterable[Route]) -> bytes:
    """An OpenAPI 3.1 document, as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Ostler", "version": INTERFACE_VERSION, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": {**json_schema(), **COMPONENTS}},
        "security": [],
    }
    return orjson.dumps(document)


def _operation(route: Route) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", **({"format": "uuid"} if name in UUID_PARAMETERS else {})},
        }
        for name in route.path_parameters
    ]
    for param in route.query:
        parameter = {
            "name": param.name,
            "in": "query",
            "required": param.required,
            "schema": dict(param.schema),
        }
        if param.description:
            parameter["description"] = param.description
        parameters.append(parameter)
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.path.translate(_TO_NAME)}",
        "summary": route.summary,
        "tags": [route.tag],
        "responses": _responses(route),
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {"application/json": {"schema": dict(route.body)}},
        }
    return operation


_TO_NAME = str.maketrans({"/": "_", "<": "", ">": "", ".": "_"})


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(route.status): _response("Success", route, route.result)}
    for status, reason in sorted(route.errors.items()):
        schema = route.result if status < 300 else ref("Error")
        responses[str(status)] = _response(reason, route, schema)
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
