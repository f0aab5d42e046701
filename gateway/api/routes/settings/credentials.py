"""Routes for operators: which credential an agent would use, and why not another. Never a value."""

from __future__ import annotations

from typing import Any, Final

import attrs

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.reading import Query
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.agents.catalog import Kind
from supervisor.agents.homes.credential import Choice, Credential, helpful_names
from supervisor.reading.model import said

TAG: Final = "Operators"
NOT_FOUND: Final = "No such agent"

CREDENTIAL: Final = schemas.full(
    kind=schemas.choice(kind.value for kind in Kind),
    name=schemas.nullable(schemas.STRING),
    file=schemas.nullable(schemas.STRING),
    source=schemas.nullable(schemas.STRING),
    provider=schemas.STRING,
)
"""`name` is the secret, `file` the file on the server's machine; `source` is where it was given."""

RESULT: Final = schemas.full(
    agents=schemas.array(
        schemas.full(
            agent=schemas.STRING,
            name=schemas.STRING,
            credential=CREDENTIAL,
            also=schemas.array(CREDENTIAL),
            base_url=schemas.nullable(schemas.full(name=schemas.STRING, source=schemas.STRING)),
            withheld=schemas.array(schemas.full(name=schemas.STRING, reason=schemas.STRING)),
            would_help=schemas.array(schemas.STRING),
        )
    )
)


@attrs.frozen(kw_only=True)
class AgentQuery(Query):
    """Which agent is meant."""

    agent: str | None = said(None, "Its key; all without it")


_agents: Final = Group(TAG, "/api/agents")


@_agents("GET /credentials", query=AgentQuery, result=RESULT, errors={404: NOT_FOUND})
async def get(services: Services, query: AgentQuery) -> Any:
    """Show which credential an agent would use, its source, and what is withheld and why.

    Looks at secrets and at logins of this machine, for one `agent` or for all. Values are not shown.
    """
    catalog = services.launcher.catalog
    if query.agent is not None and query.agent not in catalog:
        raise ApiError(404, NOT_FOUND)
    keys = list(catalog) if query.agent is None else [query.agent]
    return {"agents": [await _of(services, key) for key in keys]}


GROUPS: Final = (_agents,)


async def _of(services: Services, key: str) -> dict[str, Any]:
    choice = await services.launcher.credentials(key)
    descriptor = services.launcher.catalog[key]
    base_url = choice.base_url
    return {
        "agent": key,
        "name": descriptor.name,
        **_credentials(choice),
        "base_url": None if base_url is None else {"name": base_url.name, "source": base_url.origin},
        "withheld": [attrs.asdict(each) for each in choice.withheld],
        "would_help": list(helpful_names(descriptor)),
    }


def _credentials(choice: Choice) -> dict[str, Any]:
    first, *rest = choice.credentials or (choice.credential,)
    return {"credential": _credential(first), "also": [_credential(each) for each in rest]}


def _credential(credential: Credential) -> dict[str, Any]:
    return {
        "kind": credential.kind.value,
        "name": credential.name,
        "file": credential.file,
        "source": credential.origin,
        "provider": credential.provider,
    }
