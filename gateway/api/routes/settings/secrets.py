"""Global secrets: named like the environment variables through which agents get them."""

from __future__ import annotations

from typing import Any, Final

import attrs
from quart import Response

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import SecretCreateRequest
from gateway.api.requests.reading import AnyUuid, InvalidRequest, Query
from gateway.api.requests.unhidden import warn, why_shown
from gateway.api.responses import json_response
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.credentials.secret import CannotRotate, InvalidSecretName, InvalidSecretValue
from supervisor.reading.model import ErrorDetail

TAG: Final = "Secrets"

SOURCE: Final = schemas.full(
    name=schemas.STRING,
    description=schemas.nullable(schemas.STRING),
    source=schemas.choice(("store", "directory", "variable")),
    where={**schemas.nullable(schemas.STRING), "description": "Path of the file, or the variable"},
    hides={
        **schemas.array(schemas.STRING),
        "description": "Other places with a secret of this name, which are not used",
    },
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


SOURCES: Final = schemas.full(
    secrets=schemas.array(SOURCE),
    not_hidden={
        "type": "object",
        "additionalProperties": schemas.STRING,
        "description": "By name, what a secret is that is too common to be hidden in what agents say",
    },
    problems={
        **schemas.array(schemas.STRING),
        "description": "What is wrong with files and variables that are not used",
    },
    key=KEY,
)
ROTATED: Final = schemas.full(
    key=KEY,
    before={**KEY, "description": "Where it was"},
    secrets={**schemas.COUNT, "description": "How many secrets were encrypted again"},
)

_kept: Final = Group(TAG, "/api/settings/secrets", UNUSABLE)
_sources: Final = Group(TAG, "/api/secrets", UNUSABLE)


@_kept("GET", query=SecretsQuery, result=schemas.ref("SecretList"), errors={404: "No such profile"})
async def list_all(services: Services, query: SecretsQuery) -> Any:
    """List the names of secrets.

    Values are not listed. With `agent_profile_id` the names are those that the agent of this profile may use.
    """
    refs = None
    if query.agent_profile_id is not None:
        refs = (await services.profiles.by_id(query.agent_profile_id)).secret_refs
    found = [
        {"name": secret.name, "description": secret.description}
        for secret in await services.secrets.list()
        if refs is None or secret.name in refs
    ]
    return {"secrets": found}


@_kept(
    "PUT",
    body=SecretCreateRequest,
    example={"name": "EXAMPLE_TOKEN", "value": "the value of a token"},
    result=schemas.ref("SecretItem"),
)
async def put(services: Services, body: SecretCreateRequest) -> Response:
    """Store a secret.

    It is stored encrypted, and given as a variable of its name to the agents that it is meant for. Agents
    that run get it when they restart, before their next turn.
    """
    try:
        await services.secrets.set(body.name, body.value, body.description)
    except (InvalidSecretName, InvalidSecretValue) as error:
        field = "name" if isinstance(error, InvalidSecretName) else "value"
        raise InvalidRequest(ErrorDetail(("body", field), f"Value error, {error}", "value_error")) from None
    answer = json_response({"name": body.name, "description": body.description})
    return warn(answer, {body.name: body.value})


@_kept("GET /<name>", result=schemas.STRING, media_type="text/plain", errors={404: NOT_FOUND})
async def get(services: Services, name: str) -> Response:
    """Get the value of a secret.

    The answer is plain text, for clients that pass the secret on. It says that it is not to be kept in a
    cache.
    """
    value = await services.secrets.get(name)
    if value is None:
        raise ApiError(404, NOT_FOUND)
    response = Response(value.encode(), content_type="text/plain; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    return response


@_kept(
    "DELETE /<name>",
    result=schemas.full(deleted=schemas.BOOLEAN),
    errors={404: NOT_FOUND},
)
async def delete(services: Services, name: str) -> Any:
    """Delete a secret.

    The stored value is gone. Agents that have it restart without it, before their next turn.
    """
    if not await services.secrets.delete(name):
        raise ApiError(404, NOT_FOUND)
    return {"deleted": True}


@_sources("GET", result=SOURCES)
async def sources(services: Services) -> Any:
    """List where secrets come from.

    Names the store, file or variable of each, those too common to be masked, and those that are unusable.
    Values are not shown.
    """
    secrets = services.secrets
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
    return {
        "secrets": found,
        "not_hidden": shown,
        "problems": secrets.problems,
        "key": secrets.key_source,
    }


@_sources(
    "POST /rotate",
    result=ROTATED,
    errors={409: "The key cannot be changed here, or does not fit what is stored"},
)
async def rotate(services: Services) -> Any:
    """Change the master key.

    What is stored is encrypted under a new key, in the keyring or in `master.key`. It is refused (409) where
    the key is in a variable.
    """
    try:
        done = await services.secrets.rotate()
    except CannotRotate as error:
        raise ApiError(409, str(error)) from None
    return {"key": done.source, "before": done.before, "secrets": done.secrets}


GROUPS: Final = (_kept, _sources)
