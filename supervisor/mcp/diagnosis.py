"""Explains why a connection to an MCP server failed, and what to check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import trio

from supervisor.mcp.answers import PLAIN, Answers
from supervisor.mcp.callback import LoginRefused
from supervisor.mcp.entry import transport_of

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS: Final = 10.0
"""For a connection to a server, its name looked up and its certificate checked."""

WORDS: Final = 500
"""Most characters of a foreign error message that are repeated."""

LINES: Final = 8
"""Last lines of a server's standard error that are repeated."""


class Diagnosis:
    """What was observed of a server during a connection."""

    def __init__(self, server: Mapping[str, Any], answers: Answers) -> None:
        self.server = server
        self.answers = answers
        self.stderr = ""
        self.status: int | None = None

    def client(
        self, headers: Mapping[str, str] | None = None, timeout: Any = None, auth: Any = None
    ) -> httpx2.AsyncClient:
        """An HTTP client that records failures."""
        import httpx2

        async def note(response: httpx2.Response) -> None:
            await trio.lowlevel.checkpoint()
            # The SDK also requests optional resources, whose absence is no failure (405 for a stream, 404 for
            # metadata).
            same = urlsplit(str(response.request.url)).path == urlsplit(self.server["url"]).path
            if response.status_code >= 300 and same and response.request.method in ("POST", self._method):
                self.status = response.status_code
            elif same and response.status_code < 300:
                self.status = None

        return httpx2.AsyncClient(
            headers={**PLAIN, **(headers or {})},
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            auth=auth,
            event_hooks={"response": [note, self.answers.bound]},
        )

    @property
    def _method(self) -> str:
        return "GET" if transport_of(self.server) == "sse" else "POST"


def too_much(seen: Diagnosis) -> dict[str, Any]:
    """The same for a server that spent its allowance."""
    error = f"The answer is too large: {seen.answers.why}. {_check(seen.server)}"
    return {"ok": False, "error_kind": "unknown", "error": error}


def diagnose(error: BaseException, seen: Diagnosis, seconds: float) -> dict[str, Any]:
    """`error` (one line, what failed and what to check) and `error_kind` of the wire."""
    kind, text = _cause(list(_leaves(error)), seen, seconds)
    lines = [line.strip() for line in seen.stderr.splitlines() if line.strip()][-LINES:]
    if lines:
        text = f"{text} Its last words: {' | '.join(lines)}"
    return {"ok": False, "error_kind": kind, "error": " ".join(text.split())[: 4 * WORDS]}


def _cause(leaves: list[BaseException], seen: Diagnosis, seconds: float) -> tuple[str, str]:
    server = seen.server
    kinds = {type(leaf).__name__ for leaf in leaves}
    for leaf in leaves:
        if isinstance(leaf, LoginRefused):
            return "unknown", f"Authentication: {leaf}."
    # A server that requires a login has answered 401 before this; report the later failure.
    for leaf in leaves:
        if type(leaf).__name__.startswith("OAuth"):
            return "unknown", f"Authentication: {str(leaf)[:WORDS]}."
    for leaf in leaves:
        if (where := _elsewhere(leaf, server)) is not None:
            reason = str(leaf)[:WORDS] or type(leaf).__name__
            return "connection", f"URL: the authorization server {where} cannot be reached ({reason})."
    if seen.status in (401, 403):
        text = f"Authentication: the server answered with status {seen.status}."
        return "connection", f"{text} Check its headers, or log in to it."
    check = _check(server)
    if "TooSlowError" in kinds:
        return "timeout", f"Time-out: the server did not answer within {seconds:g} s. {check}"
    if server.get("command") is not None:
        return "connection", _of_command(leaves, server)
    where = origin_of(server["url"])
    if "ConnectTimeout" in kinds:
        return "timeout", f"Time-out: no connection to {where} within {CONNECT_SECONDS:g} s. {check}"
    for leaf in leaves:
        if type(leaf).__name__ in ("ConnectError", "UnsupportedProtocol", "InvalidURL", "LocalProtocolError"):
            reason = str(leaf)[:WORDS] or "no connection"
            return "connection", f"URL: {where} cannot be reached ({reason}). {check}"
    if seen.status is None:
        return "connection", f"The answer is not MCP ({_words(leaves)}). {check}"
    if seen.status < 400:
        what = "The URL redirects to another address"
    else:
        what = "The server has failed" if seen.status >= 500 else "The URL does not answer as MCP"
    return "connection", f"Status: the server answered with status {seen.status}. {what}. {check}"


def _of_command(leaves: list[BaseException], server: Mapping[str, Any]) -> str:
    command, cwd = server["command"], server.get("cwd")
    failed = next((leaf for leaf in leaves if isinstance(leaf, OSError)), None)
    if failed is None:
        return f"The command exited, or its output is not MCP ({_words(leaves)}). {_check(server)}"
    if cwd is not None and str(failed.filename) == str(cwd):
        return f"Directory: {cwd} cannot be used ({failed.strerror}). Check its cwd."
    if isinstance(failed, FileNotFoundError):
        return f"Command not found: {command}. Check the command, and PATH."
    return f"The command {command} cannot be started ({failed.strerror}). {_check(server)}"


def _check(server: Mapping[str, Any]) -> str:
    if server.get("command") is not None:
        return "Run the command by hand."
    return "Check the URL, and that the server is running."


def _elsewhere(error: BaseException, server: Mapping[str, Any]) -> str | None:
    """The unreachable origin, if it is not the server's: a login needs others, too."""
    if server.get("url") is None:
        return None
    try:
        url = str(error.request.url)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # no error of HTTP, or one that is about no request
        return None
    return origin_of(url) if origin_of(url) != origin_of(server["url"]) else None


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL: the rest may be a credential."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _words(leaves: list[BaseException]) -> str:
    leaf = leaves[-1]
    return (str(leaf) or type(leaf).__name__)[:WORDS]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
        if error.__cause__ is not None:
            yield from _leaves(error.__cause__)
