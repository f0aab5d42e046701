"""Routes for operators: the agents, one by one, and the state of the server."""

from __future__ import annotations

import os
import platform
from functools import partial
from typing import Any, Final

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.metrics import Readings
from gateway.api.requests.bodies import RestartAgentRequest, json_body
from gateway.api.requests.reading import path_uuid, read_body
from gateway.api.requests.timestamps import Clock, iso
from gateway.api.responses import json_response, success
from gateway.api.routes.conversations.conversations import UNKNOWN
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.acp import TraceLine
from supervisor.agents.containment.containment import containment_level
from supervisor.agents.spawning import descriptors
from supervisor.credentials.secret import CredentialsFailure
from supervisor.version import __version__

TAG: Final = "Operators"

METRICS: Final = "/metrics"
"""The path that Prometheus scrapes. It requires a key like `/api`, though it is outside of it."""

READING: Final = trio.CapacityLimiter(1)
"""For reading this process's figures in /proc: fast, but blocking."""


@attrs.frozen
class AgentRoutes:
    """Handlers of `/api/agents`, `/api/status` and `/metrics`."""

    services: Services
    clock: Clock = attrs.field(factory=Clock)

    async def list(self) -> Response:
        """List the agents that run, wait to start, or are parked, and the warm processes."""
        agents = await self.services.supervisor.agents()
        spares = await self.services.supervisor.spares()
        return json_response(
            {
                "agents": [attrs.asdict(agent) for agent in agents],
                "spares": [attrs.asdict(spare) for spare in spares],
            }
        )

    async def get(self, conversation_id: str) -> Response:
        """The agent of one conversation, in any state."""
        agent = await self.services.supervisor.agent(_id(conversation_id))
        return json_response(attrs.asdict(agent))

    async def restart(self, conversation_id: str) -> Response:
        """Restart the agent; answers when it is ready again."""
        wanted = _id(conversation_id)
        body = await json_body(request, required=False)
        force = body is not None and read_body(RestartAgentRequest, body).force
        await self.services.supervisor.restart_agent(wanted, force=force)
        return success()

    async def stop(self, conversation_id: str) -> Response:
        """Stop the agent; answers when no process of it is left."""
        await self.services.supervisor.stop_agent(_id(conversation_id))
        return success()

    async def stderr(self, conversation_id: str) -> Response:
        """The last lines of the agent's standard error."""
        return json_response({"lines": await self.services.supervisor.stderr(_id(conversation_id))})

    async def trace(self, conversation_id: str) -> Response:
        """The last frames between server and agent."""
        found = await self.services.supervisor.trace(_id(conversation_id))
        return json_response({"frames": [self._frame(line) for line in found]})

    def _frame(self, line: TraceLine) -> dict[str, Any]:
        return {
            "direction": line.direction,
            "timestamp": self.clock.date(line.time),
            "size": line.size,
            "text": line.text,
            "process": line.process,
        }

    async def status(self) -> Response:
        """The state of the server."""
        services = self.services
        figures = services.supervisor.figures()
        limits = services.config.supervision.limits
        shares = services.config.descriptors
        return json_response(
            {
                "status": self._state(),
                "journal": self._journal(),
                "pid": os.getpid(),
                "uptime": round(services.activity.uptime(), 3),
                "version": __version__,
                "python_version": platform.python_version(),
                "state": str(services.config.state),
                "containment": containment_level().value,
                "secret_key": self._secret_key(),
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
                    "spares": figures.spares,
                    "rss_bytes": figures.rss_bytes,
                },
                "turns": {"running": figures.turns_running},
                "totals": {
                    "starts": figures.starts_total,
                    "restarts": figures.restarts_total,
                    "crashes": figures.crashes_total,
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
        )

    def _state(self) -> str:
        if self.services.closing.is_set():
            return "stopping"
        return "ready" if self.services.supervisor.journal.trouble is None else "degraded"

    def _journal(self) -> dict[str, Any]:
        """Whether events can be stored; if not, why, since when, and after how many attempts."""
        journal = self.services.supervisor.journal
        trouble = journal.trouble
        return {
            "writable": trouble is None,
            "reason": None if trouble is None else trouble.reason,
            "since": None if trouble is None else iso(trouble.since),
            "attempts": 0 if trouble is None else trouble.attempts,
            "waiting_bytes": journal.waiting_bytes,
        }

    def _secret_key(self) -> dict[str, str | None]:
        """Where the master key comes from, or why it is unavailable."""
        try:
            return {"source": self.services.secrets.key_source, "problem": None}
        except CredentialsFailure as error:
            return {"source": None, "problem": str(error)}

    async def metrics(self) -> Response:
        """The figures for Prometheus, in the format that it asks for."""
        services = self.services
        conversations = await services.supervisor.count()
        readings = Readings(
            version=__version__,
            containment=containment_level().value,
            uptime=services.activity.uptime(),
            sockets=services.subscribers.total,
            connections=services.connection_limits.descriptors,
            limit_connections=services.connection_limits.limit,
            conversations=conversations,
            journal_degraded=services.supervisor.journal.trouble is not None,
            journal_waiting_bytes=services.supervisor.journal.waiting_bytes,
            agents=services.supervisor.figures(),
            webhooks=None if services.webhooks is None else services.webhooks.figures(),
        )
        accept = ",".join(request.headers.getlist("Accept"))
        body, content_type = await trio.to_thread.run_sync(render, readings, accept, limiter=READING)
        return Response(body, content_type=content_type, headers={"Vary": "Accept"})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        one = "/api/agents/<conversation_id>"
        route = partial(Route, tag=TAG, errors=UNKNOWN)
        return (
            Route(
                method="GET",
                path="/api/agents",
                handler=self.list,
                summary="List the agents that run, wait to start, or are parked, and the spares",
                tag=TAG,
                result=schemas.ref("AgentList"),
            ),
            route(
                method="GET",
                path=one,
                handler=self.get,
                summary="Get the agent of a conversation",
                result=schemas.ref("Agent"),
            ),
            route(
                method="POST",
                path=f"{one}/restart",
                handler=self.restart,
                summary="Restart the agent and resume its session; earlier crashes no longer count",
                body=RestartAgentRequest,
                body_required=False,
                result=schemas.ref("Success"),
                errors={**UNKNOWN, 502: "The agent does not start"},
            ),
            route(
                method="POST",
                path=f"{one}/stop",
                handler=self.stop,
                summary="Stop the agent; the next message starts it again",
                result=schemas.ref("Success"),
            ),
            route(
                method="GET",
                path=f"{one}/stderr",
                handler=self.stderr,
                summary="Get the last lines of the agent's standard error",
                result=schemas.ref("AgentStderr"),
            ),
            route(
                method="GET",
                path=f"{one}/trace",
                handler=self.trace,
                summary="Get the last frames between server and agent, masked",
                result=schemas.ref("AgentTrace"),
            ),
            Route(
                method="GET",
                path="/api/status",
                handler=self.status,
                summary="Get the state of the server",
                tag=TAG,
                result=schemas.ref("ServerStatus"),
            ),
            Route(
                method="GET",
                path=METRICS,
                handler=self.metrics,
                summary="Get metrics for Prometheus",
                tag=TAG,
                result=schemas.STRING,
                media_type="text/plain",
                other_media_types=("application/openmetrics-text",),
            ),
        )


def _id(text: str) -> str:
    return path_uuid(text, "conversation_id")


def render(readings: Readings, accept: str) -> tuple[bytes, str]:
    """The exposition and its content type, in the format that Accept names. Blocks; for a thread."""
    # Imported here: most servers are never scraped, and the library brings an HTTP server along.
    from gateway.api import prometheus

    return prometheus.render(readings, accept)
