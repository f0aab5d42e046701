"""The settings of new conversations."""

from __future__ import annotations

from typing import Final

import attrs
import trio
from quart import Response, request

from gateway import schemas
from gateway.bodies import json_body
from gateway.errors import ApiError
from gateway.responses import json_response
from gateway.routing import Param, Route
from gateway.services import Services
from supervisor.credentials import Cipher, CredentialsFailure
from supervisor.settings import (
    EXPOSE_HEADER,
    Expose,
    SettingsDocument,
    SettingsUpdateRequest,
    agent_schema,
    conversation_schema,
    public,
)

EXPOSE: Final = "X-Expose-Secrets"
TAG: Final = "Settings"


def expose_of(header: str | None) -> Expose:
    """What `X-Expose-Secrets` asks for. Raises ApiError(400)."""
    found = EXPOSE_HEADER.get(header if header is None else header.strip().lower())
    if found is None:
        raise ApiError(400, f"{EXPOSE} must be encrypted or plaintext")
    return found


@attrs.frozen
class SettingsRoutes:
    """Handlers of `/api/settings`, except for secrets."""

    services: Services

    async def get(self) -> Response:
        """The settings; secrets in them are redacted unless the request says otherwise."""
        expose = expose_of(request.headers.get(EXPOSE))
        return await self.answer(await self.services.settings.get(), expose)

    async def patch(self) -> Response:
        """Apply a change as a whole, or not at all."""
        changed = await self.services.settings.patch(await json_body(request))
        return await self.answer(changed, Expose.REDACTED)

    async def agent_schema(self) -> Response:
        """What a form for the agent settings shows."""
        return json_response(agent_schema(self.services.settings.rules.presets))

    async def conversation_schema(self) -> Response:
        """What a form for the conversation settings shows."""
        return json_response(conversation_schema())

    async def answer(self, document: SettingsDocument, expose: Expose) -> Response:
        """The settings, secrets in them shown as `expose` says."""
        # In a thread: the first encryption loads a large library.
        response = json_response(await trio.to_thread.run_sync(public, document, expose, self._cipher()))
        response.headers["Cache-Control"] = "no-store"
        return response

    def _cipher(self) -> Cipher | None:
        try:
            return self.services.secrets.cipher
        except CredentialsFailure:
            return None

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        settings = schemas.ref("SettingsResponse")
        return (
            Route(
                method="GET",
                path="/api/settings",
                handler=self.get,
                summary="Get the settings",
                tag=TAG,
                headers=(Param(EXPOSE, schemas.choice_in_any_case(filter(None, EXPOSE_HEADER))),),
                result=settings,
                errors={
                    400: "Unknown value of X-Expose-Secrets",
                    409: "The stored settings are unusable",
                    503: "No key to encrypt with",
                },
            ),
            Route(
                method="PATCH",
                path="/api/settings",
                handler=self.patch,
                summary="Change the settings",
                tag=TAG,
                body=SettingsUpdateRequest,
                result=settings,
                errors={
                    400: "Nothing to change",
                    404: "No such profile",
                    409: "The stored settings are unusable",
                },
            ),
            Route(
                method="GET",
                path="/api/settings/agent-schema",
                handler=self.agent_schema,
                summary="Describe the agent settings",
                tag=TAG,
                result=schemas.ref("SettingsSchema"),
            ),
            Route(
                method="GET",
                path="/api/settings/conversation-schema",
                handler=self.conversation_schema,
                summary="Describe the conversation settings",
                tag=TAG,
                result=schemas.ref("SettingsSchema"),
            ),
        )
