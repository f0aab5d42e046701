"""MCP servers: change those of the settings, test one, and log in to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio
from quart import Response, request

from gateway import schemas
from gateway.bodies import json_body
from gateway.errors import ApiError
from gateway.mcp_jobs import FAILED, Job, McpJobs, TooManyJobs
from gateway.reading import Invalid, Reader
from gateway.responses import json_response
from gateway.routes.settings import EXPOSE, SettingsRoutes, expose_of
from gateway.routing import Param, Route
from gateway.services import Services
from supervisor.credentials import NotDecryptable
from supervisor.events import ErrorDetail
from supervisor.mcp import server_errors
from supervisor.settings import EXPOSE_HEADER, Expose, SettingsError, unseal
from supervisor.settings.exposure import expose_secrets
from supervisor.settings.merge import merge_patch

TAG: Final = "MCP"

TYPES: Final = ("stdio", "http", "shttp", "streamable-http", "sse")

FIELDS: Final = {"command": ("command", "args", "env", "cwd"), "url": ("url", "headers", "auth")}
"""What is read of a server, by the property that it must have."""

DEFAULT_SECONDS: Final = 15.0
MOST_SECONDS: Final = 120.0
"""Of a test; the wire's."""

MAX_NAME: Final = 128

TESTS_AT_ONCE: Final = 4
"""Each is a process of some tens of megabytes, and what it starts."""

CONFIG: Final = "mcp_config"

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
        """Decode it. Raises Invalid."""
        reader = Reader(body, ("body",))
        name = reader.string("name", "test-server", min_length=1, max_length=MAX_NAME) or ""
        seconds = _seconds(reader)
        call = reader.mapping("tool_call")
        if call is not None:
            inner = reader.below("tool_call", call)
            inner.string("name", required=True, min_length=1)
            inner.mapping("arguments")
        server = reader.mapping("server", required=True)
        entry: dict[str, Any] = {}
        if server is not None:
            entry = _entry(reader.below("server", server), server)
        reader.finish()
        return cls(name, entry, seconds, call)


def _seconds(reader: Reader) -> float:
    found = reader.obj.get("timeout")
    if found is None:
        return DEFAULT_SECONDS
    if isinstance(found, bool) or not isinstance(found, int | float):
        reader.wrong(("timeout",), "Input should be a valid number", "float_type")
    elif not found > 0:
        reader.wrong(("timeout",), "Input should be greater than 0", "greater_than")
    elif found > MOST_SECONDS:
        reader.wrong(
            ("timeout",), f"Input should be less than or equal to {MOST_SECONDS:g}", "less_than_equal"
        )
    else:
        return float(found)
    return DEFAULT_SECONDS


def _entry(inner: Reader, server: Mapping[str, Any]) -> dict[str, Any]:
    kind = inner.choice("type", TYPES, "stdio")
    wanted = "command" if kind == "stdio" else "url"
    if inner.string(wanted, required=True, min_length=1) is None:
        return {}
    entry = {key: server[key] for key in FIELDS[wanted] if server.get(key) is not None}
    problems = server_errors(entry)
    for problem in problems:
        inner.wrong(tuple(problem.loc), problem.msg, problem.type)
    if problems:
        return {}
    return entry if kind == "stdio" else {**entry, "transport": "sse" if kind == "sse" else "http"}


@attrs.frozen
class McpRoutes:
    """Handlers of `/api/mcp` and `/api/settings/mcp`."""

    services: Services

    # -- trying one -------------------------------------------------------------------------------------

    async def test(self) -> Response:
        """Connect as an agent would, and list the tools. What fails is an answer, too."""
        jobs, trial = self._jobs(), Trial.read(await json_body(request))
        entry = await self._opened(trial.entry)
        async with _tests:
            answer = await jobs.probe.test(
                trial.name,
                entry,
                await self.services.secrets.values(),
                seconds=trial.seconds,
                tool_call=trial.tool_call,
            )
        return json_response(_outcome(answer))

    # -- logging in to one -------------------------------------------------------------------------------

    async def oauth_start(self) -> Response:
        """Begin a login; the answer has the address that a person is to open."""
        jobs, trial = self._jobs(), Trial.read(await json_body(request))
        if trial.entry.get("url") is None:
            msg = "Value error, a command has no login; give the server a url"
            raise Invalid(ErrorDetail(("body", "server", "type"), msg, "value_error"))
        entry = await self._opened(trial.entry)
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
        reader = Reader(await json_body(request), ("body",))
        url = reader.string("callback_url", required=True, min_length=1) or ""
        reader.finish()
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
            raise ApiError(404, "No such login")
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

    async def _opened(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The entry with every value in the clear that we had shown encrypted. Raises Invalid."""

        def opened() -> dict[str, Any]:
            cipher = self.services.secrets.cipher
            found: dict[str, Any] = unseal({CONFIG: {"x": entry}}, cipher)[CONFIG]["x"]
            return found

        try:
            return await trio.to_thread.run_sync(opened)
        except NotDecryptable:
            msg = "Value error, a secret was not encrypted by this server"
            raise Invalid(ErrorDetail(("body", "server"), msg, "value_error")) from None

    # -- those of the settings ----------------------------------------------------------------------------

    async def create(self, settings_key: str) -> Response:
        """Add a server to the settings; one that is there already is left alone."""
        return await self._change(settings_key, await self._server(), new=True)

    async def _server(self) -> Any:
        body = await json_body(request)
        if body is None:  # to the settings it would mean that the server is to go
            raise Invalid(*server_errors(body, ("body",)))
        return body

    async def patch(self, settings_key: str) -> Response:
        """Merge a change into a server of the settings."""
        return await self._change(settings_key, await self._server(), new=False)

    async def delete(self, settings_key: str) -> Response:
        """Remove a server from the settings."""
        return await self._change(settings_key, None, new=False)

    async def _change(self, key: str, change: Any, *, new: bool) -> Response:
        def body(servers: Mapping[str, Any]) -> dict[str, Any]:
            if new and key in servers:
                raise ApiError(409, f"There is an MCP server {key!r} in the settings already")
            if not new and key not in servers:
                raise ApiError(404, f"There is no MCP server {key!r} in the settings")
            if change is not None:
                whole = change if new else merge_patch(servers[key], change)
                if not isinstance(change, Mapping) or (problems := server_errors(whole, ("body",))):
                    raise Invalid(
                        *(problems if isinstance(change, Mapping) else server_errors(change, ("body",)))
                    )
            return {"agent_settings_diff": {CONFIG: {key: change}}}

        try:
            changed = await self.services.settings.patch_with(
                lambda document: body(document.agent_settings.get(CONFIG) or {})
            )
        except SettingsError as error:
            cut = ("body", "agent_settings_diff", CONFIG, key)
            raise Invalid(
                *(
                    attrs.evolve(each, loc=("body", *each.loc[len(cut) :]))
                    if tuple(each.loc[: len(cut)]) == cut
                    else each
                    for each in error.errors
                )
            ) from error
        response = await SettingsRoutes(self.services).answer(changed, Expose.REDACTED)
        response.status_code = 201 if new else 200
        return response

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        expose = (Param(EXPOSE, schemas.choice_in_any_case(filter(None, EXPOSE_HEADER))),)
        settings = schemas.ref("SettingsResponse")
        one = "/api/settings/mcp/<settings_key>"
        trial, job = schemas.ref("MCPTestRequest"), schemas.ref("MCPOAuthStatusResponse")
        untold = {
            400: "Unknown value of X-Expose-Secrets",
            404: "No such login",
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
                body=trial,
                result=schemas.ref("MCPTestResponse"),
                errors=unusable,
            ),
            Route(
                method="POST",
                path="/api/mcp/oauth/start",
                handler=self.oauth_start,
                summary="Begin to log in to an MCP server",
                tag=TAG,
                body=trial,
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
                body=schemas.obj({"callback_url": {"type": "string", "minLength": 1}}, "callback_url"),
                result=job,
                errors=untold,
            ),
            Route(
                method="POST",
                path=one,
                handler=self.create,
                summary="Add an MCP server to the settings",
                tag="Settings",
                body=schemas.ref("MCPServer"),
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
    return {
        "ok": True,
        "tools": _names(answer),
        "tool_result": answer.get("tool_result"),
        "resolved_mcp_servers": None,
        "oauth_state": None,
    }


def _exposed(state: Mapping[str, Any], expose: Expose, services: Services) -> dict[str, Any]:
    """A login as the wire has it, its tokens shown as asked for. Raises EncryptionUnavailable."""
    known = {key: state.get(key) for key in ("client_info", "tokens", "token_expires_at")}
    settings = {CONFIG: {"x": {"auth": {"strategy": "oauth2", "state": known}}}}
    cipher = services.secrets.cipher if expose is Expose.ENCRYPTED else None
    shown: dict[str, Any] = expose_secrets(settings, expose, cipher)[CONFIG]["x"]["auth"]["state"]
    return shown
