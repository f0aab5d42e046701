"""LLM profiles: named language models, for the built-in agent."""

from __future__ import annotations

from typing import Any, Final

import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import (
    RenameProfileRequest,
    SaveProfileRequest,
    ValidateProfileRequest,
    json_body,
)
from gateway.api.requests.reading import read_body
from gateway.api.requests.secret_exposure import EXPOSE, ONE_MODEL, cipher_of, expose_of, opened
from gateway.api.responses import json_response
from gateway.api.routes.settings.settings import EXPOSING
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.conversations.state.errors import AgentFailure, ModelRefused
from supervisor.settings.errors import problem
from supervisor.settings.exposure import Expose
from supervisor.settings.llm import decode_llm
from supervisor.settings.profiles.llm_profiles import LlmProfileStore, exposed
from supervisor.settings.profiles.profile import check_profile_name

TAG: Final = "LLM profiles"


_all: Final = Group(TAG, "/api/profiles")
_one: Final = Group(TAG, "/api/profiles/<name>", path_schemas={"name": schemas.PROFILE_NAME})

MUTATION: Final = schemas.ref("ProfileMutation")
UNKNOWN: Final = {404: "No such profile"}
CORRUPT: Final = "the stored profiles are unusable"


@_all("GET", result=schemas.ref("ProfileList"), errors={409: CORRUPT.capitalize()})
async def list_all(services: Services) -> Any:
    """List LLM profiles.

    An LLM profile is a named language model of the built-in agent. Keys are not shown; `api_key_set` says
    whether there is one.
    """
    profiles = await LlmProfileStore(services.profiles).list()
    active = (await services.settings.get()).active_profile
    return {"profiles": profiles, "active_profile": active}


@_one(
    "GET",
    headers=EXPOSING,
    result=schemas.ref("ProfileDetail"),
    errors={**UNKNOWN, 400: "Unknown value of X-Expose-Secrets", 503: "No key to encrypt with"},
)
async def get(services: Services, name: str) -> Response:
    """Get one LLM profile.

    Its secrets are left out unless the header `X-Expose-Secrets` says otherwise. In plain text it includes
    the credentials of its provider connection, for the caller of the model.
    """
    expose = expose_of(request.headers.get(EXPOSE))
    store = LlmProfileStore(services.profiles)
    plain = expose is Expose.PLAINTEXT
    profile = await (store.usable(name) if plain else store.get(name))
    key = await store.key_is_set(profile)
    # In a thread: the first encryption loads a large library.
    config = await trio.to_thread.run_sync(exposed, profile, expose, cipher_of(services))
    response = json_response({"name": name, "config": config, "api_key_set": key})
    response.headers["Cache-Control"] = "no-store"
    return response


@_one(
    "POST",
    body=SaveProfileRequest,
    example={"llm": {"model": "openai/gpt-5.5", "api_key": "example"}},
    result=MUTATION,
    status=201,
    errors={409: f"Too many profiles, or {CORRUPT}", 503: "There is no master key"},
)
async def save(services: Services, name: str, body: SaveProfileRequest) -> Any:
    """Save an LLM profile.

    Creates the profile of this name, or replaces it. Its key is stored encrypted, or left out with
    `include_secrets` false.
    """
    llm = await opened(services, body.llm, ONE_MODEL, ("body", "llm"))
    await LlmProfileStore(services.profiles).save(name, llm, include_secrets=body.include_secrets)
    return {"name": name, "message": f"Profile '{name}' saved"}


@_one("DELETE", result=MUTATION, errors={409: f"An agent profile names it, or {CORRUPT}"})
async def delete(services: Services, name: str) -> Any:
    """Delete an LLM profile.

    The answer is the same where there is none. It is refused while an agent profile names it.
    """
    await LlmProfileStore(services.profiles).delete(name)
    return {"name": name, "message": f"Profile '{name}' deleted"}


@_one(
    "POST /rename",
    body=RenameProfileRequest,
    example={"new_name": "renamed"},
    result=MUTATION,
    errors={**UNKNOWN, 409: f"The name is taken, or {CORRUPT}"},
)
async def rename(services: Services, name: str, body: RenameProfileRequest) -> Any:
    """Rename an LLM profile.

    What names it follows. A name that is taken is refused.
    """
    await LlmProfileStore(services.profiles).rename(name, body.new_name)
    outcome = "unchanged (same name)" if name == body.new_name else f"renamed to '{body.new_name}'"
    return {"name": body.new_name, "message": f"Profile '{name}' {outcome}"}


@_one(
    "POST /activate",
    result=schemas.ref("ProfileActivation"),
    errors={**UNKNOWN, 409: CORRUPT.capitalize()},
)
async def activate(services: Services, name: str) -> Any:
    """Make an LLM profile the active one.

    The built-in agent's settings get its model. Running conversations keep theirs.
    """
    applied = await LlmProfileStore(services.profiles).activate(name)
    outcome = "activated and applied to current settings" if applied else "activated"
    return {"name": name, "message": f"Profile '{name}' {outcome}", "llm_applied": applied}


@_one(
    "POST /validate",
    body=ValidateProfileRequest,
    example={"llm": {"model": "openai/gpt-5.5", "api_key": "example"}},
    result=schemas.ref("ProfileValidation"),
    errors={
        429: "There is no room for an agent that could ask",
        503: "The built-in agent is not installed, or does not start",
    },
)
async def validate(services: Services, name: str) -> Any:
    """Try an LLM profile before it is saved.

    Sends one tiny request to its model, through the built-in agent's library. The name is the one that the
    profile is to have: there need be none yet.
    """
    check_profile_name(name, ("path", "name"))
    body = read_body(ValidateProfileRequest, await json_body(request))
    llm = decode_llm(await opened(services, body.llm, ONE_MODEL, ("body", "llm")), ("body", "llm"))
    llm = await services.settings.usable(llm, ("body", "llm"))
    try:
        return await services.supervisor.try_model(llm)
    except ModelRefused as refused:
        raise problem(("body", "llm"), f"Value error, {refused.detail}", "value_error") from None
    except AgentFailure as failure:
        raise ApiError(503, failure.detail) from failure


GROUPS: Final = (_all, _one)
