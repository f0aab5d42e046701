"""Meta-profiles: which LLM profile is for which kind of task. Kept for clients; nothing here routes."""

from __future__ import annotations

from typing import Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import json_body
from gateway.api.responses import json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.settings.profiles.llm_profiles import MetaProfileStore

TAG: Final = "Meta-profiles"

ROUTES_SOMETHING: Final = {
    "allOf": [schemas.ref("MetaProfile")],
    "anyOf": [
        {"required": ["classes"], "properties": {"classes": {"minItems": 1}}},
        {"required": ["prompt_template"], "properties": {"prompt_template": {"type": "string"}}},
    ],
}
"""What is saved has classes or a template; one of earlier days in the settings may have neither."""


@attrs.frozen
class MetaProfileRoutes:
    """Handlers of `/api/meta-profiles`."""

    services: Services

    @property
    def store(self) -> MetaProfileStore:
        """The meta-profiles."""
        return MetaProfileStore(self.services.settings)

    async def list(self) -> Response:
        """All meta-profiles, and the name of the active one."""
        profiles = await self.store.list()
        active = (await self.services.settings.get()).active_meta_profile
        return json_response({"meta_profiles": profiles, "active_meta_profile": active})

    async def get(self, name: str) -> Response:
        """One meta-profile."""
        return json_response({"name": name, "config": await self.store.get(name)})

    async def save(self, name: str) -> Response:
        """Create a meta-profile, or replace the one of that name."""
        await self.store.save(name, await json_body(request))
        return json_response({"name": name, "message": f"Meta-profile '{name}' saved"}, 201)

    async def delete(self, name: str) -> Response:
        """Delete a meta-profile; done also when there is none."""
        await self.store.delete(name)
        return json_response({"name": name, "message": f"Meta-profile '{name}' deleted"})

    async def activate(self, name: str) -> Response:
        """Make a meta-profile the active one, for an agent that can route."""
        applied = await self.store.activate(name)
        told = (
            "activated"
            if applied
            else "not activated: the current agent settings cannot route between models"
        )
        return json_response({"name": name, "message": f"Meta-profile '{name}' {told}", "applied": applied})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/meta-profiles"
        one = f"{base}/<name>"
        named = {"name": schemas.PROFILE_NAME}
        mutation = schemas.ref("MetaProfileMutation")
        unknown = {404: "No such meta-profile"}
        return (
            Route(
                method="GET",
                path=base,
                handler=self.list,
                summary="List meta-profiles",
                tag=TAG,
                result=schemas.ref("MetaProfileList"),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.get,
                summary="Get one meta-profile",
                tag=TAG,
                path_schemas=named,
                result=schemas.ref("MetaProfileDetail"),
                errors=unknown,
            ),
            Route(
                method="POST",
                path=one,
                handler=self.save,
                summary="Save a meta-profile",
                tag=TAG,
                path_schemas=named,
                body=ROUTES_SOMETHING,
                result=mutation,
                status=201,
                errors={409: "Too many meta-profiles"},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.delete,
                summary="Delete a meta-profile",
                tag=TAG,
                path_schemas=named,
                result=mutation,
            ),
            Route(
                method="POST",
                path=f"{one}/activate",
                handler=self.activate,
                summary="Make a meta-profile the active one",
                tag=TAG,
                path_schemas=named,
                result=schemas.ref("MetaProfileActivation"),
                errors=unknown,
            ),
        )
