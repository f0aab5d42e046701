"""Routes for operators: the agents, one by one, and the state of the server."""

from __future__ import annotations

import os
import platform
from typing import Any, Final

import attrs
import structlog
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.metrics import SAMPLE_SECONDS, Readings
from gateway.api.requests.bodies import RestartAgentRequest, json_body
from gateway.api.requests.reading import path_uuid, read_body
from gateway.api.requests.timestamps import iso
from gateway.api.responses import trace_line
from gateway.api.routes.conversations.conversations import UNKNOWN
from gateway.api.routes.servers import described
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.agents.containment.containment import containment_level
from supervisor.agents.spawning import descriptors
from supervisor.credentials.secret import CredentialsFailure
from supervisor.version import __version__

log = structlog.get_logger(__name__)

TAG: Final = "Operators"

METRICS: Final = "/metrics"
"""The path that Prometheus scrapes. It requires a key like `/api`, though it is outside of it."""

READING: Final = trio.CapacityLimiter(1)
"""For reading this process's figures in /proc: fast, but blocking."""


_all: Final = Group(TAG, "/api/agents")
_one: Final = Group(TAG, "/api/agents/<conversation_id>", UNKNOWN)
_server: Final = Group(TAG, "")


@_all("GET", result=schemas.ref("AgentList"))
async def list_agents(services: Services) -> Any:
    """List the agents that run, wait to start, or are parked, and the warm processes (`spares`).

    Each has its state, process, memory, uptime and restarts, and those of several servers their `server`. A
    warm process is started and waits for the next conversation.
    """
    agents = await services.supervisor.agents()
    warm_processes = await services.supervisor.warm_processes()
    found = {
        "agents": [attrs.asdict(agent) for agent in agents],
        "spares": [attrs.asdict(warm) for warm in warm_processes],
    }
    if services.machines is None:
        return found
    from gateway.api.forwarding.fan_out import agents_of_all

    return await agents_of_all(services, found)


@_one("GET", result=schemas.ref("Agent"))
async def get(services: Services, conversation_id: str) -> Any:
    """Get the agent of a conversation.

    Its state, process, memory, uptime and last exit. The state says whether it works, waits for a person, was
    stopped, or crashed too often.
    """
    return attrs.asdict(await services.supervisor.agent(_id(conversation_id)))


@_one(
    "POST /restart",
    body=RestartAgentRequest,
    example={"force": True},
    body_required=False,
    errors={502: "The agent does not start"},
)
async def restart(services: Services, conversation_id: str) -> None:
    """Restart the agent and resume its session; earlier crashes no longer count.

    A turn under way ends first, unless `force` is set. A parked agent, one that crashed too often, is started
    again.
    """
    wanted = _id(conversation_id)
    body = await json_body(request, required=False)
    force = body is not None and read_body(RestartAgentRequest, body).force
    await services.supervisor.restart_agent(wanted, force=force)


@_one("POST /stop")
async def stop(services: Services, conversation_id: str) -> None:
    """Stop the agent; the next message starts it again.

    Its process ends, and everything that it started. The conversation stays.
    """
    await services.supervisor.stop_agent(_id(conversation_id))


@_one("GET /stderr", result=schemas.ref("AgentStderr"))
async def stderr(services: Services, conversation_id: str) -> Any:
    """Get the last lines of the agent's standard error.

    Agents report their troubles there, so the last lines explain most crashes. Secrets are masked.
    """
    return {"lines": await services.supervisor.stderr(_id(conversation_id))}


@_one("GET /trace", result=schemas.ref("AgentTrace"))
async def trace(services: Services, conversation_id: str) -> Any:
    """Get the last frames between server and agent, masked.

    The beginnings of the last messages of the protocol, with time and size. Secrets and ids of sessions are
    masked.
    """
    found = await services.supervisor.trace(_id(conversation_id))
    return {"frames": [trace_line(services.clock, line) for line in found]}


@_server("GET /api/status", result=schemas.ref("ServerStatus"))
async def status(services: Services) -> Any:
    """Get the state of the server.

    Figures, limits and their use, where the master key is, and whether events can be stored. `ostler status`
    shows the same.
    """
    figures = services.supervisor.figures()
    limits = services.config.supervision.limits
    shares = services.config.descriptors
    walls = services.launcher.walls
    return {
        "status": _state(services),
        **({} if services.machines is None else {"servers": await _servers(services)}),
        "journal": _journal(services),
        "pid": os.getpid(),
        "uptime": round(services.activity.uptime(), 3),
        "version": __version__,
        "python_version": platform.python_version(),
        "state": str(services.config.state),
        "containment": containment_level().value,
        "walls": {
            "wall": walls.wall.value,
            "mechanism": walls.mechanism,
            "obstacle": walls.obstacle,
        },
        "secret_key": _secret_key(services),
        "session_key_wanted": bool(services.config.session_api_keys),
        "conversations": {
            "total": await services.supervisor.count(),
            "loaded": figures.conversations_loaded,
        },
        "agents": {
            "live": figures.live_agents,
            "starting": figures.starting,
            "queued": figures.queued,
            "hibernated": figures.hibernated,
            "parked": figures.parked,
            "spares": figures.warm_processes,
            "rss_bytes": figures.rss_bytes,
        },
        "turns": {"running": figures.turns_running},
        "usage": figures.usage,
        "totals": {
            "starts": figures.starts_total,
            "restarts": figures.restarts_total,
            "crashes": figures.crashes_total,
            "warden_restarts": services.activity.warden_restarts,
            "turns": dict(figures.turns_total),
        },
        "limits": {
            "agents": limits.agents,
            "memory_bytes": limits.memory_bytes,
            "starts": limits.starts,
            "idle_seconds": limits.idle_seconds,
            "when_full": limits.full,
        },
        "descriptors": {
            "used": await trio.to_thread.run_sync(descriptors.used, limiter=READING),
            "limit": shares.limit,
            "reserve": shares.reserve + shares.operators,
            "agents": {"used": figures.live_agents, "share": shares.agents},
            "terminals": {"used": figures.terminals, "share": shares.terminals},
            "connections": {
                "used": services.connection_limits.descriptors,
                "share": services.connection_limits.limit,
            },
        },
    }


@_server(
    f"GET {METRICS}",
    result=schemas.STRING,
    media_type="text/plain",
    other_media_types=("application/openmetrics-text",),
)
async def metrics(services: Services) -> Response:
    """Get metrics for Prometheus.

    In Prometheus' text format, or as OpenMetrics where `Accept` asks for it. With session keys it takes one
    in `X-Session-API-Key`, or as a bearer token.
    """
    conversations = await services.supervisor.count()
    readings = Readings(
        version=__version__,
        containment=containment_level().value,
        walls=services.launcher.walls.wall.value,
        walls_mechanism=services.launcher.walls.mechanism or "",
        uptime=services.activity.uptime(),
        sockets=services.subscribers.total,
        connections=services.connection_limits.descriptors,
        limit_connections=services.connection_limits.limit,
        conversations=conversations,
        journal_degraded=services.supervisor.journal.trouble is not None,
        journal_waiting_bytes=services.supervisor.journal.waiting_bytes,
        agents=services.supervisor.figures(),
        webhooks=None if services.webhooks is None else services.webhooks.figures(),
        servers=() if services.machines is None else await _servers(services),
    )
    accept = ",".join(request.headers.getlist("Accept"))
    body, content_type = await trio.to_thread.run_sync(render, readings, accept, limiter=READING)
    return Response(body, content_type=content_type, headers={"Vary": "Accept"})


@_server("GET /api/metrics/history", result=schemas.ref("MetricsHistory"))
async def history(services: Services) -> Any:
    """Get the figures of the last hour.

    A sample each ten seconds, the oldest first, for charts. The history begins with the first conversation
    after the server's start.
    """
    return {"seconds": SAMPLE_SECONDS, "samples": list(services.history.samples)}


GROUPS: Final = (_all, _one, _server)


async def _servers(services: Services) -> list[dict[str, Any]]:
    """The servers over one database; none while it cannot be asked."""
    try:
        return await described(services)
    except Exception as error:  # noqa: BLE001 - the figures of this server do not depend on it
        log.info("servers not looked at", reason=str(error))
        return []


def _state(services: Services) -> str:
    if services.closing.is_set():
        return "stopping"
    return "ready" if services.supervisor.journal.trouble is None else "degraded"


def _journal(services: Services) -> dict[str, Any]:
    """Whether events can be stored; if not, why, since when, and after how many attempts."""
    journal = services.supervisor.journal
    trouble = journal.trouble
    return {
        "writable": trouble is None,
        "reason": None if trouble is None else trouble.reason,
        "since": None if trouble is None else iso(trouble.since),
        "attempts": 0 if trouble is None else trouble.attempts,
        "waiting_bytes": journal.waiting_bytes,
    }


def _secret_key(services: Services) -> dict[str, str | None]:
    """Where the master key comes from, or why it is unavailable."""
    try:
        return {"source": services.secrets.key_source, "problem": None}
    except CredentialsFailure as error:
        return {"source": None, "problem": str(error)}


def _id(text: str) -> str:
    return path_uuid(text, "conversation_id")


def render(readings: Readings, accept: str) -> tuple[bytes, str]:
    """The exposition and its content type, in the format that Accept names. Blocks; for a thread."""
    # Imported here: most servers are never scraped, and the library brings an HTTP server along.
    from gateway.api import prometheus

    return prometheus.render(readings, accept)
