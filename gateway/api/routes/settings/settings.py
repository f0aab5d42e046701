"""The settings of new conversations."""

from __future__ import annotations

from typing import Any, Final

import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.secret_exposure import EXPOSE, cipher_of, expose_of, opened
from gateway.api.responses import json_response
from gateway.api.routing import Group, Param
from gateway.api.services import Services
from supervisor.settings.document import SettingsDocument, SettingsUpdateRequest, public
from supervisor.settings.exposure import EXPOSE_HEADER, Expose
from supervisor.settings.schema import agent_schema, conversation_schema

TAG: Final = "Settings"

AGENT_DIFF: Final = "agent_settings_diff"


EXPOSING: Final = (Param(EXPOSE, schemas.choice_in_any_case(filter(None, EXPOSE_HEADER))),)
"""The header that says how secrets are shown."""

RESULT: Final = schemas.ref("SettingsResponse")
CORRUPT: Final = "The stored settings are unusable"

_settings: Final = Group(TAG, "/api/settings")


@_settings(
    "GET",
    headers=EXPOSING,
    result=RESULT,
    errors={400: "Unknown value of X-Expose-Secrets", 409: CORRUPT, 503: "No key to encrypt with"},
)
async def get(services: Services) -> Response:
    """Get the settings.

    They are what new conversations get. Secrets in them are redacted, unless the header `X-Expose-Secrets`
    says otherwise.
    """
    expose = expose_of(request.headers.get(EXPOSE))
    return await answer(services, await services.settings.get(), expose)


@_settings(
    "PATCH",
    body=SettingsUpdateRequest,
    example={
        "agent_settings_diff": {"acp_server": "demo"},
        "conversation_settings_diff": {"max_iterations": 100},
    },
    result=RESULT,
    errors={400: "Nothing to change", 404: "No such profile", 409: CORRUPT},
)
async def patch(services: Services, json: Any) -> Response:
    """Change the settings.

    Both parts of the body are merge patches: null restores a default. The whole request counts, or nothing of
    it.
    """
    if isinstance(json, dict) and json.get(AGENT_DIFF):
        json[AGENT_DIFF] = await opened(services, json[AGENT_DIFF], (), ("body", AGENT_DIFF))
    return await answer(services, await services.settings.patch(json), Expose.REDACTED)


@_settings("GET /agent-schema", result=schemas.ref("SettingsSchema"))
async def agent_form(services: Services) -> Any:
    """Describe the agent settings.

    The fields with their labels, types and choices, for clients that show a form. Among the choices are the
    agents of the catalogue.
    """
    return agent_schema(services.settings.rules.presets)


@_settings("GET /conversation-schema", result=schemas.ref("SettingsSchema"))
async def conversation_form() -> Any:
    """Describe the conversation settings.

    The fields with their labels, types and choices, for clients that show a form. They are the same for every
    agent.
    """
    return conversation_schema()


GROUPS: Final = (_settings,)


async def answer(services: Services, document: SettingsDocument, expose: Expose) -> Response:
    """The settings, secrets in them shown as `expose` says."""
    document = await services.settings.linked(document)
    # In a thread: the first encryption loads a large library.
    presets = services.settings.rules.presets
    shown = await trio.to_thread.run_sync(public, document, expose, cipher_of(services), presets)
    response = json_response(shown)
    response.headers["Cache-Control"] = "no-store"
    return response
