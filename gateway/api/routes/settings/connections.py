"""Provider connections: credentials that several LLM profiles share."""

from __future__ import annotations

from typing import Any, Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import json_body
from gateway.api.requests.secret_exposure import ONE_MODEL, opened
from gateway.api.responses import json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.settings.connections import (
    ConnectionStore,
    ProviderConnectionCreateRequest,
    ProviderConnectionUpdateRequest,
)

TAG: Final = "LLM profiles"


@attrs.frozen
class ConnectionRoutes:
    """Handlers of `/api/llm/provider-connections`."""

    services: Services

    @property
    def store(self) -> ConnectionStore:
        """The connections."""
        return ConnectionStore(self.services.settings)

    async def list(self) -> Response:
        """All connections, without their keys."""
        return json_response(await self.store.list())

    async def create(self) -> Response:
        """Add a connection."""
        return json_response(await self.store.create(await self._body()), 201)

    async def update(self, connection_id: str) -> Response:
        """Change a connection; its profiles use the new values at once."""
        return json_response(await self.store.update(connection_id, await self._body()))

    async def delete(self, connection_id: str) -> Response:
        """Delete a connection that nothing uses."""
        return json_response(await self.store.delete(connection_id))

    async def _body(self) -> Any:
        """The body; a key that we had shown encrypted, as that of a profile, is in the clear."""
        return await opened(self.services, await json_body(request), ONE_MODEL, ("body", "api_key"))

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/llm/provider-connections"
        one = f"{base}/<connection_id>"
        shown = schemas.ref("ProviderConnection")
        unknown = {404: "No such connection"}
        return (
            Route(
                method="GET",
                path=base,
                handler=self.list,
                summary="List provider connections",
                tag=TAG,
                result=schemas.array(shown),
            ),
            Route(
                method="POST",
                path=base,
                handler=self.create,
                summary="Add a provider connection",
                tag=TAG,
                body=ProviderConnectionCreateRequest,
                result=shown,
                status=201,
                errors={409: "Too many connections", 503: "There is no master key"},
            ),
            Route(
                method="PATCH",
                path=one,
                handler=self.update,
                summary="Change a provider connection",
                tag=TAG,
                body=ProviderConnectionUpdateRequest,
                result=shown,
                errors=unknown,
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.delete,
                summary="Delete a provider connection",
                tag=TAG,
                result=shown,
                errors={**unknown, 409: "A profile or the settings use it"},
            ),
        )
