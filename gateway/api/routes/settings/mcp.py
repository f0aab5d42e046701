"""MCP servers: change those of the settings, test one, and log in to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.mcp_jobs import FAILED, Job, McpJobs, TooManyJobs
from gateway.api.requests.bodies import (
    TEST_FIELDS,
    TEST_SERVER,
    MCPOAuthCallbackRequest,
    MCPTestRequest,
    json_body,
)
from gateway.api.requests.reading import InvalidRequest, read_body
from gateway.api.requests.secret_exposure import EXPOSE, ONE_SERVER, expose_of, opened
from gateway.api.responses import json_response
from gateway.api.routes.settings.settings import answer
from gateway.api.routing import Param, Route
from gateway.api.services import Services
from supervisor.mcp.server import MCPServer, server_errors
from supervisor.reading.decode import MISSING, NOT_AN_OBJECT, among
from supervisor.reading.model import ErrorDetail, Errors, Location
from supervisor.settings.errors import SettingsError
from supervisor.settings.exposure import EXPOSE_HEADER, Expose, expose_secrets
from supervisor.settings.merge import merge_patch

TAG: Final = "MCP"

TESTS_AT_ONCE: Final = 4
"""Each is a process of some tens of megabytes, and what it starts."""

MORE_SECONDS: Final = 4.0
"""Seconds for a test, its start included, beyond its own limit: clients give up without a result 5 s after
that limit."""

LATE: Final = {
    "ok": False,
    "error": "Time-out: the test was not over in time. Give it a longer timeout, or try again later.",
    "error_kind": "timeout",
}

CONFIG: Final = "mcp_config"

_type: Final = among(TEST_FIELDS)

_tests: Final = trio.CapacityLimiter(TESTS_AT_ONCE)


@attrs.frozen
class Trial:
    """What a client asks to be tried: an MCPTestRequest, decoded. `entry` is in the settings' shape."""

    name: str
    entry: Mapping[str, Any] = attrs.field(repr=False)
    seconds: float
    tool_call: Mapping[str, Any] | None

    @classmethod
    def read(cls, body: Any) -> Trial:
        """Decode it. Raises InvalidRequest."""
        asked = read_body(MCPTestRequest, body, {TEST_SERVER: _check_server})
        return cls(asked.name, asked.server, float(asked.timeout), asked.tool_call)


def _check_server(server: Any, loc: Location, errors: Errors) -> dict[str, Any]:
    """The server in the settings' shape. Only what its type knows is read."""
    if not isinstance(server, Mapping):
        errors.add(loc, *NOT_AN_OBJECT)
        return {}
    before = len(errors)
    given = server.get("type")
    kind = "stdio" if given is None else _type(given, (*loc, "type"), errors)
    fields = TEST_FIELDS.get(kind, ())
    entry = {key: server[key] for key in fields if server.get(key) is not None}
    if fields and fields[0] not in entry:
        errors.add((*loc, fields[0]), *MISSING)
    elif fields:
        errors.note(server_errors(entry, loc))
    if len(errors) > before or kind == "stdio":
        return entry
    return {**entry, "transport": "sse" if kind == "sse" else "http"}


@attrs.frozen
class McpRoutes:
    """Handlers of `/api/mcp` and `/api/settings/mcp`."""

    services: Services

    # -- trying one -------------------------------------------------------------------------------------

    async def test(self) -> Response:
        """Connect as an agent would, and list the tools. What fails is an answer, too."""
        jobs, trial = self._jobs(), Trial.read(await json_body(request))
        entry = await opened(self.services, trial.entry, ONE_SERVER, ("body", "server"))
        answer = None
        with trio.move_on_after(trial.seconds + MORE_SECONDS):
            async with _tests:
                answer = await jobs.probe.test(
                    trial.name,
                    entry,
                    await self.services.secrets.values(),
                    seconds=trial.seconds,
                    tool_call=trial.tool_call,
                )
        return json_response(LATE if answer is None else _outcome(answer))

    # -- logging in to one -------------------------------------------------------------------------------

    async def oauth_start(self) -> Response:
        """Begin a login; the answer has the address that a person is to open."""
        jobs, trial = self._jobs(), Trial.read(await json_body(request))
        if trial.entry.get("url") is None:
            msg = "Value error, a command has no login; give the server a url"
            raise InvalidRequest(ErrorDetail(("body", "server", "type"), msg, "value_error"))
        entry = await opened(self.services, trial.entry, ONE_SERVER, ("body", "server"))
        try:
            job = await jobs.start(
                trial.name, entry, await self.services.secrets.values(), seconds=trial.seconds
            )
        except TooManyJobs as error:
            raise ApiError(503, str(error)) from error
        answer: dict[str, Any] = {
            "ok": job.status != FAILED,
            "job_id": job.id,
            "authorization_url": job.url,
            "error": None,
            "error_kind": None,
        }
        if job.status == FAILED and job.outcome is not None:
            answer.update({key: job.outcome.get(key) for key in ("error", "error_kind")})
        return json_response(answer)

    async def oauth_status(self, job_id: str) -> Response:
        """How a login is."""
        expose = expose_of(request.headers.get(EXPOSE))
        return await self._status(self._job(job_id), expose)

    async def oauth_callback(self, job_id: str) -> Response:
        """Pass on the address that the browser was sent to."""
        expose = expose_of(request.headers.get(EXPOSE))
        url = read_body(MCPOAuthCallbackRequest, await json_body(request)).callback_url
        job = self._job(job_id)
        taken = await self._jobs().answer(job, url)
        return await self._status(job, expose, refused=not taken)

    def _jobs(self) -> McpJobs:
        if self.services.mcp is None:
            raise ApiError(503, "This server does not connect to MCP servers.")
        return self.services.mcp

    def _job(self, job_id: str) -> Job:
        job = self._jobs().get(job_id)
        if job is None:
            raise ApiError(404, "There is no such login. It may have expired.")
        return job

    async def _status(self, job: Job, expose: Expose, *, refused: bool = False) -> Response:
        outcome = job.outcome or {}
        answer = {
            "ok": job.status != FAILED and not refused,
            "status": job.status,
            "job_id": job.id,
            "authorization_url": job.url,
            "callback_ready": job.login is not None,
            "tools": _names(outcome) if outcome.get("ok") else None,
            "tool_result": None,
            "oauth_state": None,
            "error": outcome.get("error"),
            "error_kind": outcome.get("error_kind"),
        }
        if refused:
            answer["error"] = (
                "callback_url is not the answer to this login: it must have its state and a code"
            )
            answer["error_kind"] = "unknown"
        if "oauth_state" in outcome:
            answer["oauth_state"] = await trio.to_thread.run_sync(
                _exposed, outcome["oauth_state"], expose, self.services
            )
        response = json_response(answer)
        response.headers["Cache-Control"] = "no-store"
        return response

    # -- those of the settings ----------------------------------------------------------------------------

    async def create(self, settings_key: str) -> Response:
        """Add a server to the settings; one that is there already is left alone."""
        return await self._change(settings_key, await self._server(), new=True)

    async def _server(self) -> Any:
        body = await json_body(request)
        if body is None:  # to the settings it would mean that the server is to go
            raise InvalidRequest(*server_errors(body, ("body",)))
        return await opened(self.services, body, ONE_SERVER, ("body",))

    async def patch(self, settings_key: str) -> Response:
        """Merge a change into a server of the settings."""
        return await self._change(settings_key, await self._server(), new=False)

    async def delete(self, settings_key: str) -> Response:
        """Remove a server from the settings."""
        return await self._change(settings_key, None, new=False)

    async def _change(self, key: str, change: Any, *, new: bool) -> Response:
        def body(servers: Mapping[str, Any]) -> dict[str, Any]:
            if new and key in servers:
                raise ApiError(409, f"There is an MCP server {key!r} in the settings already.")
            if not new and key not in servers:
                raise ApiError(404, f"There is no MCP server {key!r} in the settings.")
            if change is not None:
                whole = change if new else merge_patch(servers[key], change)
                if not isinstance(change, Mapping) or (problems := server_errors(whole, ("body",))):
                    raise InvalidRequest(
                        *(problems if isinstance(change, Mapping) else server_errors(change, ("body",)))
                    )
            return {"agent_settings_diff": {CONFIG: {key: change}}}

        try:
            changed = await self.services.settings.patch_with(
                lambda document: body(document.agent_settings.get(CONFIG) or {})
            )
        except SettingsError as error:
            cut = ("body", "agent_settings_diff", CONFIG, key)
            raise InvalidRequest(
                *(
                    attrs.evolve(each, loc=("body", *each.loc[len(cut) :]))
                    if tuple(each.loc[: len(cut)]) == cut
                    else each
                    for each in error.errors
                )
            ) from error
        response = await answer(self.services, changed, Expose.REDACTED)
        response.status_code = 201 if new else 200
        return response

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        expose = (Param(EXPOSE, schemas.choice_in_any_case(filter(None, EXPOSE_HEADER))),)
        settings = schemas.ref("SettingsResponse")
        one = "/api/settings/mcp/<settings_key>"
        job = schemas.ref("MCPOAuthStatusResponse")
        untold = {
            400: "Unknown value of X-Expose-Secrets",
            404: "There is no such login. It may have expired.",
            503: "No key to encrypt with",
        }
        unusable = {
            409: "The stored secrets are unusable",
            503: "Nothing can be stored, or there is no master key",
        }
        return (
            Route(
                method="POST",
                path="/api/mcp/test",
                handler=self.test,
                summary="Connect to an MCP server and list its tools",
                tag=TAG,
                body=MCPTestRequest,
                result=schemas.ref("MCPTestResponse"),
                errors=unusable,
            ),
            Route(
                method="POST",
                path="/api/mcp/oauth/start",
                handler=self.oauth_start,
                summary="Begin to log in to an MCP server",
                tag=TAG,
                body=MCPTestRequest,
                result=schemas.ref("MCPOAuthStartResponse"),
                errors=unusable,
            ),
            Route(
                method="GET",
                path="/api/mcp/oauth/status/<job_id>",
                handler=self.oauth_status,
                summary="Get the state of a login",
                tag=TAG,
                headers=expose,
                result=job,
                errors=untold,
            ),
            Route(
                method="POST",
                path="/api/mcp/oauth/callback/<job_id>",
                handler=self.oauth_callback,
                summary="Complete a login with the URL that the browser ended at",
                tag=TAG,
                headers=expose,
                body=MCPOAuthCallbackRequest,
                result=job,
                errors=untold,
            ),
            Route(
                method="POST",
                path=one,
                handler=self.create,
                summary="Add an MCP server to the settings",
                tag="Settings",
                body=MCPServer,
                result=settings,
                status=201,
                errors={409: "The name is taken, or the stored settings are unusable"},
            ),
            Route(
                method="PATCH",
                path=one,
                handler=self.patch,
                summary="Change an MCP server of the settings",
                tag="Settings",
                body=schemas.ref("MCPServerPatch"),
                result=settings,
                errors={404: "No such server", 409: "The stored settings are unusable"},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.delete,
                summary="Remove an MCP server from the settings",
                tag="Settings",
                result=settings,
                errors={404: "No such server", 409: "The stored settings are unusable"},
            ),
        )


def _names(outcome: Mapping[str, Any]) -> list[str]:
    return [tool["name"] for tool in outcome.get("tools", ())]


def _outcome(answer: Mapping[str, Any]) -> dict[str, Any]:
    if not answer["ok"]:
        return {"ok": False, "error": answer["error"], "error_kind": answer["error_kind"]}
    outcome = {"ok": True, "tools": _names(answer)}
    if answer.get("tool_result") is not None:
        outcome["tool_result"] = answer["tool_result"]
    return outcome


def _exposed(state: Mapping[str, Any], expose: Expose, services: Services) -> dict[str, Any]:
    """A login as the wire has it, its tokens shown as asked for. Raises EncryptionUnavailable."""
    known = {key: state.get(key) for key in ("client_info", "tokens", "token_expires_at")}
    settings = {CONFIG: {"x": {"auth": {"strategy": "oauth2", "state": known}}}}
    cipher = services.secrets.cipher if expose is Expose.ENCRYPTED else None
    shown: dict[str, Any] = expose_secrets(settings, expose, cipher)[CONFIG]["x"]["auth"]["state"]
    return shown
