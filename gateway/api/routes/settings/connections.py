"""Provider connections: credentials that several LLM profiles share."""

from __future__ import annotations

from typing import Any, Final

from gateway.api import schemas
from gateway.api.requests.secret_exposure import ONE_MODEL, opened
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.settings.connections import (
    ConnectionStore,
    ProviderConnectionCreateRequest,
    ProviderConnectionUpdateRequest,
)

TAG: Final = "LLM profiles"


_all: Final = Group(TAG, "/api/llm/provider-connections")
_one: Final = Group(TAG, "/api/llm/provider-connections/<connection_id>", {404: "No such connection"})

SHOWN: Final = schemas.ref("ProviderConnection")
"""A connection without its key."""


@_all("GET", result=schemas.array(SHOWN))
async def list_all(services: Services) -> Any:
    """List provider connections.

    A connection is a provider's address and key, which several LLM profiles share. Keys are not shown.
    """
    return await ConnectionStore(services.settings).list()


@_all(
    "POST",
    body=ProviderConnectionCreateRequest,
    example={"display_name": "Of the team", "api_key": "example", "base_url": "https://llm.example/v1"},
    result=SHOWN,
    status=201,
    errors={409: "Too many connections", 503: "There is no master key"},
)
async def create(services: Services, json: Any) -> Any:
    """Add a provider connection.

    Its key is stored encrypted. Profiles name it by the `id` of the answer.
    """
    return await ConnectionStore(services.settings).create(await _clear(services, json))


@_one(
    "PATCH", body=ProviderConnectionUpdateRequest, example={"display_name": "Of another team"}, result=SHOWN
)
async def update(services: Services, connection_id: str, json: Any) -> Any:
    """Change a provider connection.

    Only what is in the body changes. The profiles that name it use the new values at once.
    """
    return await ConnectionStore(services.settings).update(connection_id, await _clear(services, json))


@_one("DELETE", result=SHOWN, errors={409: "A profile or the settings use it"})
async def delete(services: Services, connection_id: str) -> Any:
    """Delete a provider connection.

    It is refused while a profile or the settings name it. The answer is the deleted connection.
    """
    return await ConnectionStore(services.settings).delete(connection_id)


GROUPS: Final = (_all, _one)


async def _clear(services: Services, body: Any) -> Any:
    """The body; a key that we had shown encrypted, as that of a profile, is in the clear."""
    return await opened(services, body, ONE_MODEL, ("body", "api_key"))
