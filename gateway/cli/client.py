"""REST client for a running server. The standard library alone: a command must start at once."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.cli.failures import BadInput, Failure, Foreign, Missing, Unreachable
from gateway.cli.locations import read_known, typed_key, with_server_keys
from gateway.configuration.address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_STATE,
    KEY_HEADER,
    http_url,
    local_url,
    session_keys,
)
from gateway.configuration.keys import FILE_VARIABLE
from gateway.configuration.parsing import directory
from gateway.serving import control

CONNECT_SECONDS: Final = 5.0
"""Seconds for a connection: a server on this machine takes a millisecond, one behind a VPN a few hundred."""

ANSWER_SECONDS: Final = 30.0
"""Seconds for an answer without work, by a busy server."""

IDENTITY_SECONDS: Final = 2.0
"""Seconds for the answer who it is, when a command has failed already: a person waits for the reason."""

ACTION_SECONDS: Final = 180.0
"""Seconds for the end of a cancelled turn and the start of an agent, with all their deadlines."""

PAGE: Final = 100
"""Conversations requested at once: the server's limit."""

WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
PART_OF_ID: Final = re.compile(r"[0-9a-f-]{1,36}")

WRAPPERS: Final = frozenset({"body", "query", "path", "header", "agent_settings_diff"})
"""Parts of an error's location that mean nothing to a user who does not see the request."""

MUST_BE: Final = "must be"

PLAIN: Final = (
    ("Input should be a valid dictionary", f"{MUST_BE} a JSON object"),
    ("Input should be a valid list", f"{MUST_BE} a JSON array"),
    ("Input should be a valid string", f"{MUST_BE} a text"),
    ("Input should be a valid ", f"{MUST_BE} a "),
    ("Input should be", MUST_BE),
    ("Field required", "is missing"),
    ("Extra inputs are not permitted", "is not known"),
)
"""How the server's words for a wrong value, which are for programs, begin; and what a person reads."""


class Server:
    """A running server: its address, and the key for it. Holds no connection.

    If its control socket is known, that is tried first: it has room when the address has none.
    """

    def __init__(self, url: str, key: str | None, socket_path: Path | None = None) -> None:
        self.url = url.rstrip("/")
        self.socket_path = socket_path
        self.by_socket = False
        """Whether the last connection went by the control socket."""
        self.state: str | None = None
        """Its state directory, where `serves` had to ask for it."""
        self.temporary = False
        """Whether it ends with the commands that use it."""
        self.parts = urllib.parse.urlsplit(self.url)
        self.key = key
        try:
            port = self.parts.port
        except ValueError:
            port = -1
        if self.parts.scheme not in ("http", "https") or not self.parts.hostname or port == -1:
            raise BadInput(f"{url!r} is not the address of a server, such as http://127.0.0.1:8000")
        self.secure = self.parts.scheme == "https"
        self.host: str = self.parts.hostname
        self.port = port or (443 if self.secure else 80)

    @classmethod
    def of(cls, url: str | None, env: Mapping[str, str]) -> Server:
        """Return the server that an argument or the environment names. Raises BadInput."""
        try:
            keys = session_keys(env)
            if env.get(FILE_VARIABLE) and not (env.get("OSTLER_API_KEY") or keys):
                env = with_server_keys(env)
                keys = session_keys(env)
            named = url or env.get("OSTLER_URL")
            path = None if named else _socket_path(env)
            found = named or _address(env, path)
        except ValueError as error:
            raise BadInput(str(error)) from None
        key = env.get("OSTLER_API_KEY") or (keys[0] if keys else None)
        if key is None and path is not None:
            known = read_known(path.parent)
            key = None if known is None else known["key"]
        return cls(found, key or typed_key(found, env), path)

    @classmethod
    def of_state(cls, url: str | None, env: Mapping[str, str]) -> Server:
        """The same, if it has the state directory that the environment names. Raises Failure."""
        server = cls.of(url, env)
        if not (url or env.get("OSTLER_URL") or server.serves(env)):
            raise Unreachable(
                f"no server has the state directory {env['OSTLER_STATE']} (the one at {server.url} has "
                f"{server.state}); start one with `ostler serve`, or name one with --url or OSTLER_URL"
            )
        return server

    def headers(self) -> dict[str, str | bytes]:
        """The headers of every request. The key goes as UTF-8, as the server reads it."""
        return {KEY_HEADER: self.key.encode()} if self.key else {}

    def path(self, path: str) -> str:
        """A path below the server's base path, which a proxy may have set."""
        return self.parts.path + path

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    @property
    def is_ostler(self) -> bool:
        """Whether an Ostler server answers, and not another program. Raises Failure."""
        return self._is_ostler(ANSWER_SECONDS)

    def surely_foreign(self) -> bool:
        """Whether another program answers, and soon. For what a server's answer broke."""
        try:
            return not self._is_ostler(IDENTITY_SECONDS)
        except Foreign:
            return True
        except Failure:
            return False

    def _is_ostler(self, seconds: float) -> bool:
        info = self.call("GET", "/server_info", seconds=seconds)
        return isinstance(info, dict) and info.get("title") == "Ostler"

    def serves(self, env: Mapping[str, str]) -> bool:
        """Whether it has the state directory that the environment names, if it names one.

        True also for a server that is unreachable: the next request says so. Raises Failure.
        """
        if not env.get("OSTLER_STATE"):
            return True
        try:
            self.open()[0].close()
        except OSError:
            return True
        if self.by_socket:
            return True
        self.state = str(self.get("/api/status")["state"])
        return os.path.realpath(self.state) == os.path.realpath(directory(env["OSTLER_STATE"]))

    def get(self, path: str) -> Any:
        """Send GET and return the JSON. Raises Failure."""
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        """Send POST and return the JSON. Raises Failure."""
        return self.call("POST", path, body, seconds=ACTION_SECONDS)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """Send one request on a new connection.

        Raises Unreachable, or Failure with the server's reason: Missing for status 404, BadInput for 422.
        """
        sent = {**self.headers(), "Accept": "application/json", **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        connection: http.client.HTTPConnection | None = None
        try:
            sock, host = self.connect()
            connection = http.client.HTTPConnection(host)
            connection.sock = sock
            sock.settimeout(seconds)
            connection.request(method, self.path(path), data, sent)
            response = connection.getresponse()
            status, content = response.status, response.read()
            retry_after = response.headers.get("Retry-After")
        except TimeoutError:
            raise Unreachable(
                f"the server at {self.url} has not answered for {seconds:g} s; its log may say why"
            ) from None
        except OSError as error:
            raise Unreachable(self.absent(error)) from None
        except http.client.HTTPException:
            raise self.foreign() from None
        finally:
            if connection is not None:
                connection.close()
        try:
            answer = json.loads(content)
        except ValueError:
            raise self.foreign(f" (status {status})") from None
        if status >= 300:
            kind = {404: Missing, 422: BadInput}.get(status, Failure)
            raise kind(self._reason(status, answer, retry_after))
        return answer

    def absent(self, error: OSError) -> str:
        """The message for a server that cannot be reached."""
        reason = error.strerror or str(error)
        start = "start one with `ostler serve`, or " if self.local else ""
        return f"no server at {self.url} ({reason}); {start}name another one with --url or OSTLER_URL"

    def foreign(self, how: str = "") -> Foreign:
        """The failure where another program answers."""
        return Foreign(f"{self.url} answers, but is not an Ostler server{how}; check --url and OSTLER_URL")

    @property
    def encrypts(self) -> bool:
        """Whether the last connection takes TLS."""
        return self.secure and not self.by_socket

    def connect(self) -> tuple[socket.socket, str]:
        """Open a connection and return it with its Host header. Raises OSError."""
        sock, host = self.open()
        if self.encrypts:
            try:
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self.host)
            except BaseException:
                sock.close()
                raise
        return sock, host

    def open(self) -> tuple[socket.socket, str]:
        """Open a connection without TLS, and return it with its Host header. Raises OSError.

        The socket's file may be left of a killed server: then the address is tried.
        """
        if self.socket_path is not None:
            try:
                sock = control.connect(self.socket_path, CONNECT_SECONDS)
            except OSError:
                pass
            else:
                self.url = f"unix:{self.socket_path}"
                self.by_socket = True
                return sock, "localhost"
            self.url = self.parts.geturl()
            self.by_socket = False
        sock = socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, self.parts.netloc.rpartition("@")[2]

    def _reason(self, status: int, answer: Any, retry_after: str | None) -> str:
        if status == 401:
            if self.key:
                return f"the server at {self.url} does not know this key"
            return f"the server at {self.url} requires a key; set OSTLER_API_KEY"
        detail = answer.get("detail") if isinstance(answer, dict) else None
        if isinstance(detail, list):
            detail = "; ".join(_problem(each) for each in detail if isinstance(each, dict))
        text = str(detail or f"the server answered with status {status}")
        return f"{text} (try again in {retry_after} s)" if retry_after else text

    def conversation_id(self, text: str) -> str:
        """Return the id that `text` is, or begins.

        Ids of agents take precedence. Raises BadInput, and Failure if none or several match.
        """
        text = text.lower()
        if WHOLE_ID.fullmatch(text):
            plain = text.replace("-", "")
            return "-".join((plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:]))
        if not PART_OF_ID.fullmatch(text):
            raise BadInput(
                f"{text!r} is not an id, nor the beginning of one; `ostler conversations list` shows them"
            )
        beginning = text.replace("-", "")
        agents = (str(agent["conversation_id"]) for agent in self.get("/api/agents")["agents"])
        conversations = (str(item["id"]) for item in self.pages("/api/conversations/search"))
        for ids in (agents, conversations):
            found = [each for each in ids if each.replace("-", "").startswith(beginning)]
            if len(found) > 1:
                raise Failure(
                    f"{len(found)} ids begin with {text}: {', '.join(found[:3])} ...; give more characters"
                )
            if found:
                return found[0]
        raise Failure(
            f"no conversation has an id that begins with {text}; `ostler conversations list` shows them"
        )

    def newest(self, directory: str | None = None) -> str:
        """Return the id of the conversation that changed last (in the directory). Raises Failure if there is
        none."""
        for item in self.pages("/api/conversations/search", "sort_order=UPDATED_AT_DESC"):
            if directory is None or os.path.realpath(item["workspace"]["working_dir"]) == directory:
                return str(item["id"])
        where, more = "", "begins one"
        if directory is not None:
            where, more = (
                f" in {directory}",
                "begins one, and `--resume ID` continues one of another directory",
            )
        raise Failure(f"there is no conversation{where} yet; `ostler chat` or `ostler run` {more}")

    def pages(self, path: str, query: str = "") -> Iterator[dict[str, Any]]:
        """The items of all pages of a search. Raises Failure."""
        page: str | None = ""
        while page is not None:
            which = page and f"page_id={urllib.parse.quote(page, safe='')}"
            parts = filter(None, (f"limit={PAGE}", query, which))
            answer = self.get(f"{path}?{'&'.join(parts)}")
            yield from answer["items"]
            page = answer["next_page_id"]


def _socket_path(env: Mapping[str, str]) -> Path | None:
    """The control socket of the server that these variables would start; None if there is none.

    With an address and no state directory they mean another server than that of the default directory.
    """
    if "OSTLER_STATE" not in env and ("OSTLER_HOST" in env or "OSTLER_PORT" in env):
        return None
    try:
        path = directory(env.get("OSTLER_STATE") or DEFAULT_STATE) / control.CONTROL_FILE
        return path if path.is_socket() else None
    except (ValueError, OSError):
        return None


def _address(env: Mapping[str, str], path: Path | None) -> str:
    """The address given by these variables. With a control socket any address will do. Raises ValueError."""
    try:
        return local_url(env)
    except ValueError:
        if path is None:
            raise
        return http_url(DEFAULT_HOST, DEFAULT_PORT)


def _problem(problem: Mapping[str, Any]) -> str:
    """The problem with a request, and the field that has it."""
    parts = problem.get("loc") or ()
    field = ".".join(str(part) for part in parts if part not in WRAPPERS)
    if "query" in parts[:1]:
        field = f"--{field}"  # the option has the parameter's name
    text = str(problem.get("msg")).removeprefix("Value error, ")
    for said, plain in PLAIN:
        if text.startswith(said):
            text = text.replace(said, plain, 1)
            return f"{field} {text}" if field else text
    return f"{field}: {text}" if field else text
