"""Agent profiles: named choices of agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.api import schemas
from gateway.api.requests.bodies import MaterializeAgentProfileRequest, RenameProfileRequest
from gateway.api.requests.reading import path_uuid
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.agents.catalog import Descriptor, Kind
from supervisor.settings.profiles.materialize import Channels, materialize
from supervisor.settings.profiles.profile import decode_profile

TAG: Final = "Agent profiles"

BASE_URL, API_KEY = "_BASE_URL", "_API_KEY"


_profiles: Final = Group(TAG, "/api/agent-profiles")

UNKNOWN: Final = {404: "No such profile"}
MUTATION: Final = schemas.ref("AgentProfileMutation")
NAMED: Final = {"name": schemas.PROFILE_NAME}


@_profiles("GET", result=schemas.ref("AgentProfileList"))
async def list_all(services: Services) -> Any:
    """List agent profiles.

    A profile is a named choice of agent. The first request makes one and makes it active.
    """
    # Listed first: an empty store makes its first profile then, and makes it active.
    profiles = await services.profiles.list()
    active = (await services.settings.get()).active_agent_profile_id
    return {"profiles": [profile.summary() for profile in profiles], "active_agent_profile_id": active}


@_profiles("GET /<name>", result=schemas.ref("AgentProfileDetail"), errors=UNKNOWN)
async def get(services: Services, name: str) -> Any:
    """Get one agent profile.

    The whole profile, as it is stored. `materialize` says what a launch of it would do.
    """
    profile = await services.profiles.get(name)
    return {"name": profile.name, "profile": services.profiles.on_wire(profile)}


@_profiles(
    "POST /<name>",
    path_schemas=NAMED,
    body=schemas.ANY_PROFILE,
    example={"agent_kind": "acp", "acp_server": "demo"},
    result=MUTATION,
    status=201,
    errors={409: "Too many profiles"},
)
async def save(services: Services, name: str, json: Any) -> Any:
    """Save an agent profile.

    Creates the profile of this name, or replaces it. A conversation starts with it by `agent_profile_id`.
    """
    profile = await services.profiles.save(name, json)
    return {"name": profile.name, "message": f"Agent profile '{name}' saved"}


@_profiles("DELETE /<name>", result=MUTATION)
async def delete(services: Services, name: str) -> Any:
    """Delete an agent profile.

    The answer is the same where there is none. Conversations keep the settings that they were started with.
    """
    await services.profiles.delete(name)
    return {"name": name, "message": f"Agent profile '{name}' deleted"}


@_profiles(
    "POST /<name>/rename",
    path_schemas=NAMED,
    body=RenameProfileRequest,
    example={"new_name": "renamed"},
    result=MUTATION,
    errors={**UNKNOWN, 409: "The name is taken"},
)
async def rename(services: Services, name: str, body: RenameProfileRequest) -> Any:
    """Rename an agent profile.

    It keeps its id. A name that is taken is refused.
    """
    profile = await services.profiles.rename(name, body.new_name)
    outcome = "unchanged (same name)" if name == profile.name else f"renamed to '{profile.name}'"
    return {"name": profile.name, "message": f"Agent profile '{name}' {outcome}"}


@_profiles(
    "POST /<name>/materialize",
    path_schemas=NAMED,
    body=MaterializeAgentProfileRequest,
    example={"profile": {"agent_kind": "acp", "acp_server": "demo"}},
    body_required=False,
    result=schemas.ref("AgentProfileDiagnostics"),
    errors=UNKNOWN,
)
async def diagnose(services: Services, name: str, body: MaterializeAgentProfileRequest | None) -> Any:
    """Say what a launch of an agent profile would do.

    Judges the stored profile, or the draft in the body, and starts nothing. The answer names the models,
    keys, secrets and MCP servers that are missing.
    """
    if body is None or body.profile is None:
        profile = await services.profiles.get(name)
    else:
        presets = services.settings.rules.presets
        profile = decode_profile(body.profile, name, presets, loc=("body", "profile"))
    return await materialize(services.profiles, profile, _channels(services.launcher.catalog))


@_profiles("POST /<profile_id>/activate", result=schemas.ref("AgentProfileActivation"), errors=UNKNOWN)
async def activate(services: Services, profile_id: str) -> Any:
    """Make an agent profile the active one.

    Clients then start conversations with it. The server's settings stay as they are.
    """
    profile = await services.profiles.activate(path_uuid(profile_id, "profile_id"))
    return {
        "id": profile.id,
        "message": f"Agent profile '{profile.id}' activated",
        "agent_settings_applied": False,
    }


GROUPS: Final = (_profiles,)


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
