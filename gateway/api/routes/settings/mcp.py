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
from gateway.api.routes.settings.settings import CORRUPT, EXPOSING, RESULT, answer
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.mcp.server import MCPServer, server_errors
from supervisor.reading.decode import MISSING, NOT_AN_OBJECT, among
from supervisor.reading.model import ErrorDetail, Errors, Location
from supervisor.settings.errors import SettingsError
from supervisor.settings.exposure import Expose, expose_secrets
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


SERVER: Final = {"server": {"type": "http", "url": "http://127.0.0.1:3000/mcp"}, "timeout": 5}
"""The example of a server that is tried."""

JOB: Final = schemas.ref("MCPOAuthStatusResponse")
KEPT: Final = {404: "No such server", 409: CORRUPT}

_tried: Final = Group(
    TAG,
    "/api/mcp",
    {409: "The stored secrets are unusable", 503: "Nothing can be stored, or there is no master key"},
)
_logins: Final = Group(
    TAG,
    "/api/mcp/oauth",
    {
        400: "Unknown value of X-Expose-Secrets",
        404: "There is no such login. It may have expired.",
        503: "No key to encrypt with",
    },
)
_kept: Final = Group("Settings", "/api/settings/mcp/<settings_key>")


@_tried("POST /test", body=MCPTestRequest, example=SERVER, result=schemas.ref("MCPTestResponse"))
async def try_server(services: Services) -> Any:
    """Connect to an MCP server and list its tools.

    Connects as an agent would, with the values of secrets that it names. What fails is an answer, too: `ok`
    is false, and `error` has the reason.
    """
    jobs, trial = _jobs(services), Trial.read(await json_body(request))
    entry = await opened(services, trial.entry, ONE_SERVER, ("body", "server"))
    answer = None
    with trio.move_on_after(trial.seconds + MORE_SECONDS):
        async with _tests:
            answer = await jobs.probe.test(
                trial.name,
                entry,
                await services.secrets.values(),
                seconds=trial.seconds,
                tool_call=trial.tool_call,
            )
    return LATE if answer is None else _outcome(answer)


@_tried("POST /oauth/start", body=MCPTestRequest, example=SERVER, result=schemas.ref("MCPOAuthStartResponse"))
async def oauth_start(services: Services) -> Any:
    """Begin to log in to an MCP server.

    A person opens the address of the answer in a browser. Ask for the state of the login until it has
    succeeded or failed.
    """
    jobs, trial = _jobs(services), Trial.read(await json_body(request))
    if trial.entry.get("url") is None:
        msg = "Value error, a command has no login; give the server a url"
        raise InvalidRequest(ErrorDetail(("body", "server", "type"), msg, "value_error"))
    entry = await opened(services, trial.entry, ONE_SERVER, ("body", "server"))
    try:
        job = await jobs.start(trial.name, entry, await services.secrets.values(), seconds=trial.seconds)
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
    return answer


@_logins("GET /status/<job_id>", headers=EXPOSING, result=JOB)
async def oauth_status(services: Services, job_id: str) -> Response:
    """Get the state of a login.

    Ask again until `status` is `succeeded` or `failed`. A login that is not completed expires.
    """
    expose = expose_of(request.headers.get(EXPOSE))
    return await _status(services, _job(services, job_id), expose)


@_logins(
    "POST /callback/<job_id>",
    headers=EXPOSING,
    body=MCPOAuthCallbackRequest,
    example={"callback_url": "http://127.0.0.1:3000/callback?code=0000&state=0000"},
    result=JOB,
)
async def oauth_callback(services: Services, job_id: str) -> Response:
    """Complete a login with the URL that the browser ended at.

    It is for a browser that does not reach this server. The code in the address completes the login.
    """
    expose = expose_of(request.headers.get(EXPOSE))
    url = read_body(MCPOAuthCallbackRequest, await json_body(request)).callback_url
    job = _job(services, job_id)
    taken = await _jobs(services).answer(job, url)
    return await _status(services, job, expose, refused=not taken)


@_kept(
    "POST",
    body=MCPServer,
    example={"url": "http://127.0.0.1:3000/mcp"},
    result=RESULT,
    status=201,
    errors={409: "The name is taken, or the stored settings are unusable"},
)
async def add(services: Services, settings_key: str) -> Response:
    """Add an MCP server to the settings.

    One that is there already is left alone (409). Agents get it at their next start.
    """
    return await _change(services, settings_key, await _server(services), new=True)


@_kept("PATCH", body=schemas.ref("MCPServerPatch"), example={"enabled": False}, result=RESULT, errors=KEPT)
async def patch(services: Services, settings_key: str) -> Response:
    """Change an MCP server of the settings.

    The body is a merge patch: null removes a property. Agents get the change at their next start.
    """
    return await _change(services, settings_key, await _server(services), new=False)


@_kept("DELETE", result=RESULT, errors=KEPT)
async def remove(services: Services, settings_key: str) -> Response:
    """Remove an MCP server from the settings.

    Servers of the file `mcp.json` are not among them. Agents lose it at their next start.
    """
    return await _change(services, settings_key, None, new=False)


GROUPS: Final = (_tried, _logins, _kept)


def _jobs(services: Services) -> McpJobs:
    if services.mcp is None:
        raise ApiError(503, "This server does not connect to MCP servers.")
    return services.mcp


def _job(services: Services, job_id: str) -> Job:
    job = _jobs(services).get(job_id)
    if job is None:
        raise ApiError(404, "There is no such login. It may have expired.")
    return job


async def _status(services: Services, job: Job, expose: Expose, *, refused: bool = False) -> Response:
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
        answer["error"] = "callback_url is not the answer to this login: it must have its state and a code"
        answer["error_kind"] = "unknown"
    if "oauth_state" in outcome:
        answer["oauth_state"] = await trio.to_thread.run_sync(
            _exposed, outcome["oauth_state"], expose, services
        )
    response = json_response(answer)
    response.headers["Cache-Control"] = "no-store"
    return response


async def _server(services: Services) -> Any:
    body = await json_body(request)
    if body is None:  # to the settings it would mean that the server is to go
        raise InvalidRequest(*server_errors(body, ("body",)))
    return await opened(services, body, ONE_SERVER, ("body",))


async def _change(services: Services, key: str, change: Any, *, new: bool) -> Response:
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
        changed = await services.settings.patch_with(
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
    response = await answer(services, changed, Expose.REDACTED)
    response.status_code = 201 if new else 200
    return response


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
