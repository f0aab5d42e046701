"""Global secrets: named like the environment variables through which agents get them."""

from __future__ import annotations

from typing import Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import SecretCreateRequest, json_body
from gateway.api.requests.reading import AnyUuid, InvalidRequest, Query, read_body, read_query
from gateway.api.requests.unhidden import warn, why_shown
from gateway.api.responses import json_response
from gateway.api.routing import Route, params_of
from gateway.api.services import Services
from supervisor.credentials.secret import CannotRotate, InvalidSecretName, InvalidSecretValue
from supervisor.reading.model import ErrorDetail

TAG: Final = "Secrets"

SOURCE: Final = schemas.obj(
    {
        "name": schemas.STRING,
        "description": schemas.nullable(schemas.STRING),
        "source": schemas.choice(("store", "directory", "variable")),
        "where": {**schemas.nullable(schemas.STRING), "description": "Path of the file, or the variable"},
        "hides": {
            **schemas.array(schemas.STRING),
            "description": "Other places with a secret of this name, which are not used",
        },
    },
    "name",
    "description",
    "source",
    "where",
    "hides",
)
UNUSABLE: Final = {
    409: "What is stored cannot be read: another master key, or a damaged file",
    503: "The OS keyring with the master key is unreadable",
}
KEY: Final = {**schemas.STRING, "description": "Where the master key is: a variable, a file, the OS keyring"}
NOT_FOUND: Final = "Secret not found"


@attrs.frozen(kw_only=True)
class SecretsQuery(Query):
    """Which secrets are listed: all, or those that the agent of a profile may use."""

    agent_profile_id: AnyUuid | None = None


@attrs.frozen
class SecretRoutes:
    """Handlers of `/api/settings/secrets`."""

    services: Services

    async def list(self) -> Response:
        """Names and descriptions; values are never listed. A profile's are those that its agent may use."""
        profile_id = read_query(SecretsQuery, request.args).agent_profile_id
        refs = None
        if profile_id is not None:
            refs = (await self.services.profiles.by_id(profile_id)).secret_refs
        found = [
            {"name": secret.name, "description": secret.description}
            for secret in await self.services.secrets.list()
            if refs is None or secret.name in refs
        ]
        return json_response({"secrets": found})

    async def put(self) -> Response:
        """Store a secret, or replace it."""
        secret = read_body(SecretCreateRequest, await json_body(request))
        try:
            await self.services.secrets.set(secret.name, secret.value, secret.description)
        except InvalidSecretName as error:
            raise InvalidRequest(
                ErrorDetail(("body", "name"), f"Value error, {error}", "value_error")
            ) from None
        except InvalidSecretValue as error:
            raise InvalidRequest(
                ErrorDetail(("body", "value"), f"Value error, {error}", "value_error")
            ) from None
        answer = json_response({"name": secret.name, "description": secret.description})
        return warn(answer, {secret.name: secret.value})

    async def get(self, name: str) -> Response:
        """The value, as plain text."""
        value = await self.services.secrets.get(name)
        if value is None:
            raise ApiError(404, NOT_FOUND)
        response = Response(value.encode(), content_type="text/plain; charset=utf-8")
        response.headers["Cache-Control"] = "no-store"
        return response

    async def delete(self, name: str) -> Response:
        """Forget a secret."""
        if not await self.services.secrets.delete(name):
            raise ApiError(404, NOT_FOUND)
        return json_response({"deleted": True})

    async def sources(self) -> Response:
        """Every global secret with its source; no values."""
        secrets = self.services.secrets
        every = await secrets.found()
        found = [
            {
                "name": secret.name,
                "description": secret.description,
                "source": secret.source,
                "where": secret.where,
                "hides": list(secret.hides),
            }
            for secret in every.values()
        ]
        shown = {
            name: reason
            for name, secret in every.items()
            if (reason := why_shown(name, secret.value.reveal())) is not None
        }
        return json_response(
            {
                "secrets": found,
                "not_hidden": shown,
                "problems": secrets.problems,
                "key": secrets.key_source,
            }
        )

    async def rotate(self) -> Response:
        """Encrypt what is stored under a new master key."""
        try:
            done = await self.services.secrets.rotate()
        except CannotRotate as error:
            raise ApiError(409, str(error)) from None
        return json_response({"key": done.source, "before": done.before, "secrets": done.secrets})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/settings/secrets"
        missing = {404: NOT_FOUND, **UNUSABLE}
        return (
            Route(
                method="GET",
                path=base,
                handler=self.list,
                summary="List the names of secrets",
                tag=TAG,
                query=params_of(SecretsQuery),
                errors={404: "No such profile", **UNUSABLE},
                result=schemas.ref("SecretList"),
            ),
            Route(
                method="PUT",
                path=base,
                handler=self.put,
                summary="Store a secret",
                tag=TAG,
                body=SecretCreateRequest,
                result=schemas.ref("SecretItem"),
                errors=UNUSABLE,
            ),
            Route(
                method="GET",
                path=f"{base}/<name>",
                handler=self.get,
                summary="Get the value of a secret",
                tag=TAG,
                result=schemas.STRING,
                media_type="text/plain",
                errors=missing,
            ),
            Route(
                method="DELETE",
                path=f"{base}/<name>",
                handler=self.delete,
                summary="Delete a secret",
                tag=TAG,
                result=schemas.obj({"deleted": schemas.BOOLEAN}, "deleted"),
                errors=missing,
            ),
            Route(
                method="GET",
                path="/api/secrets",
                handler=self.sources,
                summary="List where secrets come from",
                tag=TAG,
                result=schemas.obj(
                    {
                        "secrets": schemas.array(SOURCE),
                        "not_hidden": {
                            "type": "object",
                            "additionalProperties": schemas.STRING,
                            "description": "By name, what a secret is that is too common to be hidden in "
                            "what agents say",
                        },
                        "problems": {
                            **schemas.array(schemas.STRING),
                            "description": "What is wrong with files and variables that are not used",
                        },
                        "key": KEY,
                    },
                    "secrets",
                    "not_hidden",
                    "problems",
                    "key",
                ),
                errors=UNUSABLE,
            ),
            Route(
                method="POST",
                path="/api/secrets/rotate",
                handler=self.rotate,
                summary="Change the master key",
                tag=TAG,
                result=schemas.obj(
                    {
                        "key": KEY,
                        "before": {**KEY, "description": "Where it was"},
                        "secrets": {**schemas.COUNT, "description": "How many secrets were encrypted again"},
                    },
                    "key",
                    "before",
                    "secrets",
                ),
                errors={**UNUSABLE, 409: "The key cannot be changed here, or does not fit what is stored"},
            ),
        )
