"""The settings of new conversations."""

from __future__ import annotations

from typing import Final

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import json_body
from gateway.api.requests.secret_exposure import EXPOSE, cipher_of, expose_of, opened
from gateway.api.responses import json_response
from gateway.api.routing import Param, Route
from gateway.api.services import Services
from supervisor.settings.document import SettingsDocument, SettingsUpdateRequest, public
from supervisor.settings.exposure import EXPOSE_HEADER, Expose
from supervisor.settings.schema import agent_schema, conversation_schema

TAG: Final = "Settings"

AGENT_DIFF: Final = "agent_settings_diff"


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
        body = await json_body(request)
        if isinstance(body, dict) and body.get(AGENT_DIFF):
            body[AGENT_DIFF] = await opened(self.services, body[AGENT_DIFF], (), ("body", AGENT_DIFF))
        changed = await self.services.settings.patch(body)
        return await self.answer(changed, Expose.REDACTED)

    async def agent_schema(self) -> Response:
        """What a form for the agent settings shows."""
        return json_response(agent_schema(self.services.settings.rules.presets))

    async def conversation_schema(self) -> Response:
        """What a form for the conversation settings shows."""
        return json_response(conversation_schema())

    async def answer(self, document: SettingsDocument, expose: Expose) -> Response:
        """The settings, secrets in them shown as `expose` says."""
        document = await self.services.settings.linked(document)
        # In a thread: the first encryption loads a large library.
        presets = self.services.settings.rules.presets
        shown = await trio.to_thread.run_sync(public, document, expose, cipher_of(self.services), presets)
        response = json_response(shown)
        response.headers["Cache-Control"] = "no-store"
        return response

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
