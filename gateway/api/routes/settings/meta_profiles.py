"""Meta-profiles: which LLM profile is for which kind of task. Kept for clients; nothing here routes."""

from __future__ import annotations

from typing import Any, Final

from gateway.api import schemas
from gateway.api.routing import Group
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


_all: Final = Group(TAG, "/api/meta-profiles")
_one: Final = Group(TAG, "/api/meta-profiles/<name>", path_schemas={"name": schemas.PROFILE_NAME})

MUTATION: Final = schemas.ref("MetaProfileMutation")
UNKNOWN: Final = {404: "No such meta-profile"}


@_all("GET", result=schemas.ref("MetaProfileList"))
async def list_all(services: Services) -> Any:
    """List meta-profiles.

    A meta-profile names an LLM profile for each kind of task. Ostler keeps them for clients, and routes
    nothing itself.
    """
    profiles = await MetaProfileStore(services.settings).list()
    active = (await services.settings.get()).active_meta_profile
    return {"meta_profiles": profiles, "active_meta_profile": active}


@_one("GET", result=schemas.ref("MetaProfileDetail"), errors=UNKNOWN)
async def get(services: Services, name: str) -> Any:
    """Get one meta-profile.

    It has classes of tasks, or a template of the prompt that chooses a model. Ostler keeps it for clients.
    """
    return {"name": name, "config": await MetaProfileStore(services.settings).get(name)}


@_one(
    "POST",
    body=ROUTES_SOMETHING,
    example={"classifier_model": "example", "classes": [{"description": "Any task", "model": "example"}]},
    result=MUTATION,
    status=201,
    errors={409: "Too many meta-profiles"},
)
async def save(services: Services, name: str, json: Any) -> Any:
    """Save a meta-profile.

    Creates the one of this name, or replaces it. It has `classes`, or a `prompt_template` with `{{
    instance_text }}`.
    """
    await MetaProfileStore(services.settings).save(name, json)
    return {"name": name, "message": f"Meta-profile '{name}' saved"}


@_one("DELETE", result=MUTATION)
async def delete(services: Services, name: str) -> Any:
    """Delete a meta-profile.

    The answer is the same where there is none. If it was active, none is then.
    """
    await MetaProfileStore(services.settings).delete(name)
    return {"name": name, "message": f"Meta-profile '{name}' deleted"}


@_one("POST /activate", result=schemas.ref("MetaProfileActivation"), errors=UNKNOWN)
async def activate(services: Services, name: str) -> Any:
    """Make a meta-profile the active one.

    `applied` of the answer says whether the agent of the settings can route between models. If it cannot,
    nothing changes.
    """
    applied = await MetaProfileStore(services.settings).activate(name)
    outcome = (
        "activated" if applied else "not activated: the current agent settings cannot route between models"
    )
    return {"name": name, "message": f"Meta-profile '{name}' {outcome}", "applied": applied}


GROUPS: Final = (_all, _one)
