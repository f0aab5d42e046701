"""LLM profiles: named language models, for the built-in agent."""

from __future__ import annotations

from typing import Any, Final

import attrs
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
from gateway.api.routing import Param, Route
from gateway.api.services import Services
from supervisor.conversations.state.errors import AgentFailure, ModelRefused
from supervisor.settings.errors import problem
from supervisor.settings.exposure import EXPOSE_HEADER, Expose
from supervisor.settings.llm import decode_llm
from supervisor.settings.profiles.llm_profiles import LlmProfileStore, exposed
from supervisor.settings.profiles.profile import check_profile_name

TAG: Final = "LLM profiles"


@attrs.frozen
class LlmProfileRoutes:
    """Handlers of `/api/profiles`."""

    services: Services

    @property
    def store(self) -> LlmProfileStore:
        """The profiles."""
        return LlmProfileStore(self.services.profiles)

    async def list(self) -> Response:
        """All profiles, and the name of the active one."""
        profiles = await self.store.list()
        active = (await self.services.settings.get()).active_profile
        return json_response({"profiles": profiles, "active_profile": active})

    async def get(self, name: str) -> Response:
        """One profile; its secrets are left out unless the request says otherwise.

        In plain text it includes the credentials of its provider connection, for the caller of the model.
        """
        expose = expose_of(request.headers.get(EXPOSE))
        plain = expose is Expose.PLAINTEXT
        profile = await (self.store.usable(name) if plain else self.store.get(name))
        key = await self.store.key_is_set(profile)
        # In a thread: the first encryption loads a large library.
        config = await trio.to_thread.run_sync(exposed, profile, expose, cipher_of(self.services))
        response = json_response({"name": name, "config": config, "api_key_set": key})
        response.headers["Cache-Control"] = "no-store"
        return response

    async def save(self, name: str) -> Response:
        """Create a profile, or replace the one of that name."""
        body = read_body(SaveProfileRequest, await json_body(request))
        llm = await opened(self.services, body.llm, ONE_MODEL, ("body", "llm"))
        await self.store.save(name, llm, include_secrets=body.include_secrets)
        return json_response({"name": name, "message": f"Profile '{name}' saved"}, 201)

    async def delete(self, name: str) -> Response:
        """Delete a profile; done also when there is none."""
        await self.store.delete(name)
        return json_response({"name": name, "message": f"Profile '{name}' deleted"})

    async def rename(self, name: str) -> Response:
        """Give a profile another name; what names it follows."""
        new_name = read_body(RenameProfileRequest, await json_body(request)).new_name
        await self.store.rename(name, new_name)
        told = "unchanged (same name)" if name == new_name else f"renamed to '{new_name}'"
        return json_response({"name": new_name, "message": f"Profile '{name}' {told}"})

    async def activate(self, name: str) -> Response:
        """Make a profile the active one; the built-in agent's settings get its model."""
        applied = await self.store.activate(name)
        told = "activated and applied to current settings" if applied else "activated"
        return json_response({"name": name, "message": f"Profile '{name}' {told}", "llm_applied": applied})

    async def validate(self, name: str) -> Response:
        """Try a draft of a profile with one tiny request to its model, made by the built-in agent's library.

        The name is the one that the profile is to have: there need be none yet.
        """
        check_profile_name(name, ("path", "name"))
        body = read_body(ValidateProfileRequest, await json_body(request))
        llm = decode_llm(await opened(self.services, body.llm, ONE_MODEL, ("body", "llm")), ("body", "llm"))
        llm = await self.services.settings.usable(llm, ("body", "llm"))
        try:
            return json_response(await self.services.supervisor.try_model(llm))
        except ModelRefused as refused:
            raise problem(("body", "llm"), f"Value error, {refused.detail}", "value_error") from None
        except AgentFailure as failure:
            raise ApiError(503, failure.detail) from failure

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/profiles"
        one = f"{base}/<name>"
        mutation = schemas.ref("ProfileMutation")
        named = {"name": schemas.PROFILE_NAME}
        unknown = {404: "No such profile"}
        corrupt = "the stored profiles are unusable"

        def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
            more.setdefault("result", mutation)
            paths = named if "<name>" in path else {}
            return Route(
                method=method,
                path=path,
                handler=handler,
                summary=summary,
                tag=TAG,
                path_schemas=paths,
                **more,
            )

        return (
            route(
                "GET",
                base,
                self.list,
                "List LLM profiles",
                result=schemas.ref("ProfileList"),
                errors={409: corrupt.capitalize()},
            ),
            route(
                "GET",
                one,
                self.get,
                "Get one LLM profile",
                headers=(Param(EXPOSE, schemas.choice_in_any_case(filter(None, EXPOSE_HEADER))),),
                result=schemas.ref("ProfileDetail"),
                errors={**unknown, 400: "Unknown value of X-Expose-Secrets", 503: "No key to encrypt with"},
            ),
            route(
                "POST",
                one,
                self.save,
                "Save an LLM profile",
                body=SaveProfileRequest,
                status=201,
                errors={409: f"Too many profiles, or {corrupt}", 503: "There is no master key"},
            ),
            route(
                "DELETE",
                one,
                self.delete,
                "Delete an LLM profile",
                errors={409: f"An agent profile names it, or {corrupt}"},
            ),
            route(
                "POST",
                f"{one}/rename",
                self.rename,
                "Rename an LLM profile",
                body=RenameProfileRequest,
                errors={**unknown, 409: f"The name is taken, or {corrupt}"},
            ),
            route(
                "POST",
                f"{one}/activate",
                self.activate,
                "Make an LLM profile the active one",
                result=schemas.ref("ProfileActivation"),
                errors={**unknown, 409: corrupt.capitalize()},
            ),
            route(
                "POST",
                f"{one}/validate",
                self.validate,
                "Try an LLM profile before it is saved",
                body=ValidateProfileRequest,
                result=schemas.ref("ProfileValidation"),
                errors={
                    429: "There is no room for an agent that could ask",
                    503: "The built-in agent is not installed, or does not start",
                },
            ),
        )
