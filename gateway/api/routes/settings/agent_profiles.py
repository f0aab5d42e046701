"""Agent profiles: named choices of agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import MaterializeAgentProfileRequest, RenameProfileRequest, json_body
from gateway.api.requests.reading import path_uuid, read_body
from gateway.api.responses import json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.agents.catalog import Descriptor, Kind
from supervisor.settings.profiles.materialize import Channels, materialize
from supervisor.settings.profiles.profile import decode_profile

TAG: Final = "Agent profiles"

BASE_URL, API_KEY = "_BASE_URL", "_API_KEY"


@attrs.frozen
class AgentProfileRoutes:
    """Handlers of `/api/agent-profiles`."""

    services: Services

    async def list(self) -> Response:
        """All profiles, and the id of the active one."""
        # Listed first: an empty store makes its first profile then, and makes it active.
        profiles = await self.services.profiles.list()
        active = (await self.services.settings.get()).active_agent_profile_id
        return json_response(
            {"profiles": [profile.summary() for profile in profiles], "active_agent_profile_id": active}
        )

    async def get(self, name: str) -> Response:
        """One profile."""
        profile = await self.services.profiles.get(name)
        return json_response({"name": profile.name, "profile": self.services.profiles.spoken(profile)})

    async def save(self, name: str) -> Response:
        """Create a profile, or replace the one of that name."""
        profile = await self.services.profiles.save(name, await json_body(request))
        return json_response({"name": profile.name, "message": f"Agent profile '{name}' saved"}, 201)

    async def delete(self, name: str) -> Response:
        """Delete a profile; done also when there is none."""
        await self.services.profiles.delete(name)
        return json_response({"name": name, "message": f"Agent profile '{name}' deleted"})

    async def rename(self, name: str) -> Response:
        """Give a profile another name."""
        profile = await self.services.profiles.rename(
            name, read_body(RenameProfileRequest, await json_body(request)).new_name
        )
        told = "unchanged (same name)" if name == profile.name else f"renamed to '{profile.name}'"
        return json_response({"name": profile.name, "message": f"Agent profile '{name}' {told}"})

    async def activate(self, profile_id: str) -> Response:
        """Make a profile the one that clients start conversations with."""
        profile = await self.services.profiles.activate(path_uuid(profile_id, "profile_id"))
        return json_response(
            {
                "id": profile.id,
                "message": f"Agent profile '{profile.id}' activated",
                "agent_settings_applied": False,
            }
        )

    async def materialize(self, name: str) -> Response:
        """Say what a launch of the profile would do, or of the draft in the body."""
        given = await json_body(request, required=False)
        draft = None if given is None else read_body(MaterializeAgentProfileRequest, given).profile
        if draft is None:
            profile = await self.services.profiles.get(name)
        else:
            presets = self.services.settings.rules.presets
            profile = decode_profile(draft, name, presets, loc=("body", "profile"))
        names = _channels(self.services.launcher.catalog)
        return json_response(await materialize(self.services.profiles, profile, names))

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/agent-profiles"
        unknown = {404: "No such profile"}
        mutation = schemas.ref("AgentProfileMutation")
        named = {"name": schemas.PROFILE_NAME}
        return (
            Route(
                method="GET",
                path=base,
                handler=self.list,
                summary="List agent profiles",
                tag=TAG,
                result=schemas.ref("AgentProfileList"),
            ),
            Route(
                method="GET",
                path=f"{base}/<name>",
                handler=self.get,
                summary="Get one agent profile",
                tag=TAG,
                result=schemas.ref("AgentProfileDetail"),
                errors=unknown,
            ),
            Route(
                method="POST",
                path=f"{base}/<name>",
                handler=self.save,
                summary="Save an agent profile",
                tag=TAG,
                path_schemas=named,
                body=schemas.ANY_PROFILE,
                result=mutation,
                status=201,
                errors={409: "Too many profiles"},
            ),
            Route(
                method="DELETE",
                path=f"{base}/<name>",
                handler=self.delete,
                summary="Delete an agent profile",
                tag=TAG,
                result=mutation,
            ),
            Route(
                method="POST",
                path=f"{base}/<name>/rename",
                handler=self.rename,
                summary="Rename an agent profile",
                tag=TAG,
                path_schemas=named,
                body=RenameProfileRequest,
                result=mutation,
                errors={**unknown, 409: "The name is taken"},
            ),
            Route(
                method="POST",
                path=f"{base}/<name>/materialize",
                handler=self.materialize,
                summary="Say what a launch of an agent profile would do",
                tag=TAG,
                path_schemas=named,
                body=MaterializeAgentProfileRequest,
                body_required=False,
                result=schemas.ref("AgentProfileDiagnostics"),
                errors=unknown,
            ),
            Route(
                method="POST",
                path=f"{base}/<profile_id>/activate",
                handler=self.activate,
                summary="Make an agent profile the active one",
                tag=TAG,
                result=schemas.ref("AgentProfileActivation"),
                errors=unknown,
            ),
        )


def _channels(catalog: Mapping[str, Descriptor]) -> dict[str, Channels]:
    """The names of the secrets by which each provider gets its credentials. Of several keys it is the one
    that is called as the base URL is, or else the first."""
    return {
        key: Channels(
            api_key=_api_key(descriptor),
            base_url=descriptor.base_url_env,
            files=tuple(spec.name for spec in descriptor.file_secrets),
        )
        for key, descriptor in catalog.items()
    }


def _api_key(descriptor: Descriptor) -> str | None:
    keys = [
        source.env
        for source in descriptor.credentials
        if source.kind is Kind.API_KEY and source.env and source.env.endswith(API_KEY) and not source.when
    ]
    likely = (descriptor.base_url_env or "").replace(BASE_URL, API_KEY)
    return likely if likely in keys else next(iter(keys), None)
