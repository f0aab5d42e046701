"""The servers over one database: which there are, and how one is emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
from quart import request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.routing import Group, Param
from gateway.api.services import Services
from gateway.configuration.joining import HEADER
from gateway.http.access import from_header

if TYPE_CHECKING:
    from supervisor.machines.membership import ServerView

TAG: Final = "Operators"

ALONE: Final = "This server is alone. Several share a database: set OSTLER_DATABASE."

_servers: Final = Group(TAG, "/api/servers")


@_servers("GET", result=schemas.full(servers=schemas.array(schemas.ref("Server"))))
async def list_servers(services: Services) -> Any:
    """List the servers over the database of this one.

    Each has its state, the seconds until it counts as dead, and how many conversations it has. Without
    `OSTLER_DATABASE` there are none.
    """
    return {"servers": await described(services)}


@_servers("POST /<name>/drain", errors={404: "No such server"})
async def drain(services: Services, name: str) -> None:
    """Empty a server.

    Its turns end, its agents stop, and other servers take its conversations over. Then it ends.
    """
    if services.machines is None:
        raise ApiError(404, ALONE)
    if not await services.machines.drain(name):
        raise ApiError(404, f"No server {name!r} is alive. GET /api/servers lists them.")


@_servers(
    "POST /join",
    headers=(Param(HEADER, schemas.STRING, required=True, description="`OSTLER_PROVISION_JOIN_KEY`"),),
    result={"type": "object", "additionalProperties": schemas.STRING},
    errors={401: "The key is unknown, or was used"},
)
async def join(services: Services) -> Any:
    """Join the servers, as one that `OSTLER_PROVISION` started.

    The answer has the variables of the new server, the keys of all among them. A key is good once.
    """
    key = from_header(request.headers.get(HEADER))
    found = None if services.provisioner is None or key is None else services.provisioner.join(key)
    if found is None:
        raise ApiError(401, "Unauthorized")
    return found


GROUPS: Final = (_servers,)


async def described(services: Services) -> list[dict[str, Any]]:
    """The servers as clients read them."""
    return [] if services.machines is None else [_shown(each) for each in await services.machines.servers()]


def _shown(server: ServerView) -> dict[str, Any]:
    shown = attrs.asdict(server, recurse=False, filter=lambda field, _: field.name != "server")
    return {**shown, "lease_seconds": round(server.lease_seconds, 3)}
