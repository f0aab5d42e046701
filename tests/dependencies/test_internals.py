"""The internals of libraries that Ostler stands on. This fails first when an upgrade moves one of them.

Each entry names what is relied on and the module of ours that does so. What to do: read what the library does
now, adapt that module, then this list, then the upper bound in setup.cfg.
"""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import attrs
import pytest

from tests.support.requirements import ROOT, RUNTIME

CONNECTION = "gateway/http/client_connection.py"
MESSAGE_BUFFER = "gateway/http/message_buffer.py"
LISTENER = "gateway/http/listener.py"
FRAME_WRITER = "gateway/http/frame_writer.py"

ONE_VERSION = ROOT / "supervisor" / "agents" / "builtin"
"""Its library is locked, with hashes, and the tests of tests/interop drive it: no other version ever runs."""

KEYRING = "supervisor/credentials/os_keyring.py"
REGISTRATION = "supervisor/mcp/registration.py"
RENEWAL = "supervisor/mcp/renewal.py"
COMPLETION = "gateway/cli/completion.py"
SUGGEST = "gateway/cli/suggest.py"
ROUTING = "gateway/api/routing.py"
APPLICATION = "gateway/http/application.py"
SHIM = "supervisor/agents/walls/door/shim.py"


@attrs.frozen
class Internal:
    """`module:name`; what it has to have, and with which parameters, in this order, its own have to begin."""

    place: str
    used_by: str
    has: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    standard: bool = False

    def __str__(self) -> str:
        return f"{self.place} for {self.used_by}"


STREAM_PARTS = ("app", "config", "context", "task_group")

INTERNALS = (
    # Werkzeug: what a rule would build URLs with.
    Internal("werkzeug.routing.rules:Rule", ROUTING, has=("compile", "_compile_builder")),
    Internal("werkzeug.routing.rules:Rule._compile_builder", ROUTING, takes=("append_unknown",)),
    # Quart: the way of a request to its handler is ours.
    Internal("quart.globals:_cv_app", APPLICATION),
    Internal("quart.globals:_cv_request", APPLICATION),
    Internal("quart.ctx:RequestContext", APPLICATION, has=("match_request",), takes=("app", "request")),
    Internal("quart.wrappers.response:DataBody", APPLICATION, takes=("data",)),
    Internal("quart.app:Quart", APPLICATION, has=("create_url_adapter", "make_response", "view_functions")),
    Internal(
        "quart_trio:QuartTrio",
        APPLICATION,
        has=("asgi_http_class", "handle_request", "handle_user_exception", "request_class"),
    ),
    Internal(
        "quart_trio.asgi:TrioASGIHTTPConnection",
        APPLICATION,
        has=("_create_request_from_scope", "_send_push_promise", "_send_response"),
        takes=("app", "scope"),
    ),
    Internal(
        "quart.wrappers.request:Request",
        APPLICATION,
        has=("body_class",),
        takes=("method", "scheme", "path", "query_string", "headers", "root_path", "http_version", "scope"),
    ),
    Internal("quart_trio.wrappers.request:TrioBody", APPLICATION, has=("append", "set_complete")),
    Internal(
        "werkzeug.routing:MapAdapter",
        APPLICATION,
        takes=("map", "server_name", "script_name", "subdomain", "url_scheme", "path_info", "default_method"),
    ),
    # Hypercorn: a connection of ours under its protocols.
    Internal(
        "hypercorn.trio.tcp_server:TCPServer",
        CONNECTION,
        has=(
            "app",
            "config",
            "context",
            "protocol",
            "send_lock",
            "stream",
            "run",
            "protocol_send",
        ),
        takes=("app", "config", "context", "state", "stream"),
    ),
    Internal("hypercorn.trio.tcp_server:MAX_RECV", CONNECTION),
    Internal(
        "hypercorn.trio.task_group:_handle",
        CONNECTION,
        takes=("app", "config", "scope", "receive", "send", "sync_spawn", "call_soon"),
    ),
    Internal("hypercorn.trio.task_group:TaskGroup", CONNECTION, has=("spawn", "spawn_app", "__aenter__")),
    Internal("hypercorn.trio.task_group:TaskGroup.spawn", CONNECTION, takes=("func",)),
    Internal(
        "hypercorn.trio.task_group:TaskGroup.spawn_app", CONNECTION, takes=("app", "config", "scope", "send")
    ),
    Internal(
        "hypercorn.protocol.h11:H11Protocol",
        CONNECTION,
        has=("connection", "stream", "handle"),
        takes=STREAM_PARTS,
    ),
    Internal("hypercorn.protocol.h11:H11Protocol._check_protocol", CONNECTION, takes=("event",)),
    Internal("hypercorn.protocol.h11:H11Protocol._send_h11_event", CONNECTION, takes=("event",)),
    Internal("hypercorn.events:RawData", CONNECTION, has=("data",)),
    Internal("hypercorn.events:Updated", CONNECTION, has=("idle",)),
    Internal("hypercorn.events:Closed", CONNECTION),
    Internal("hypercorn.typing:ConnectionState", CONNECTION),
    Internal("hypercorn.typing:AppWrapper", CONNECTION),
    Internal("hypercorn.utils:parse_socket_addr", CONNECTION, takes=("family", "address")),
    Internal("hypercorn.utils:wrap_app", LISTENER, takes=("app", "wsgi_max_body_size", "mode")),
    Internal("hypercorn.trio.worker_context:WorkerContext", LISTENER, has=("terminated",)),
    Internal(
        "hypercorn.config:Config",
        LISTENER,
        has=(
            "accesslog",
            "loglevel",
            "include_server_header",
            "keep_alive_timeout",
            "keep_alive_max_requests",
            "websocket_ping_interval",
            "websocket_max_message_size",
            "wsgi_max_body_size",
            "max_app_queue_size",
        ),
    ),
    # Hypercorn: its WebSockets, whose frames we write and whose messages we bound.
    Internal(
        "hypercorn.protocol.ws_stream:WSStream",
        FRAME_WRITER,
        has=("buffer", "closed", "connection", "handshake", "scope", "state"),
    ),
    Internal("hypercorn.protocol.ws_stream:Handshake", FRAME_WRITER, has=("extensions",)),
    Internal("hypercorn.protocol.ws_stream:ASGIWebsocketState.CONNECTED", FRAME_WRITER),
    Internal("wsproto.connection:ConnectionState.OPEN", FRAME_WRITER),
    Internal("wsproto.connection:Connection", FRAME_WRITER, has=("send", "state")),
    Internal(
        "hypercorn.protocol.ws_stream:WebsocketBuffer",
        MESSAGE_BUFFER,
        has=("clear", "extend", "length", "max_length"),
        takes=("max_length",),
    ),
    Internal("hypercorn.protocol.ws_stream:WebsocketBuffer.extend", MESSAGE_BUFFER, takes=("event",)),
    Internal("hypercorn.protocol.ws_stream:FrameTooLargeError", MESSAGE_BUFFER),
    # keyring: its choice of a backend, with our list of those that may be used.
    Internal("keyring.core:load_env", KEYRING),
    Internal("keyring.core:load_config", KEYRING),
    Internal("keyring.backend:get_all_keyring", KEYRING),
    Internal("keyring.backend:by_priority", KEYRING),
    Internal("keyring.backends.SecretService:Keyring", KEYRING),
    Internal("keyring.backends.libsecret:Keyring", KEYRING),
    Internal("keyring.backends.kwallet:DBusKeyring", KEYRING),
    Internal("keyring.backends.kwallet:DBusKeyringKWallet4", KEYRING),
    Internal("keyring.backends.macOS:Keyring", KEYRING),
    Internal("keyring.backends.Windows:WinVaultKeyring", KEYRING),
    Internal("keyring.errors:KeyringLocked", KEYRING),
    Internal("keyring.errors:InitError", KEYRING),
    # The MCP SDK: a login's state is written into its context, and its metadata follows what it finds.
    Internal(
        "mcp.client.auth.oauth2:OAuthContext",
        RENEWAL,
        has=(
            "auth_server_url",
            "client_info",
            "oauth_metadata",
            "prepare_token_auth",
            "protected_resource_metadata",
            "token_expiry_time",
        ),
    ),
    Internal("mcp.client.auth.oauth2:OAuthContext.prepare_token_auth", RENEWAL, takes=("data", "headers")),
    Internal(
        "mcp.client.auth:OAuthClientProvider",
        RENEWAL,
        has=("context", "async_auth_flow"),
        takes=(
            "server_url",
            "client_metadata",
            "storage",
            "redirect_handler",
            "callback_handler",
            "client_metadata_url",
        ),
    ),
    Internal(
        "mcp.shared.auth:OAuthClientMetadata", REGISTRATION, has=("scope", "token_endpoint_auth_method")
    ),
    Internal(
        "mcp.shared.auth:OAuthMetadata",
        REGISTRATION,
        has=("token_endpoint_auth_methods_supported",),
    ),
    Internal("mcp.shared.auth:OAuthMetadata", RENEWAL, has=("revocation_endpoint",)),
    # The standard library: no bound can be set, but a new Python is to be noticed.
    Internal("argparse:_SubParsersAction", SUGGEST, has=("choices",), standard=True),
    Internal("argparse:_SubParsersAction", COMPLETION, has=("_choices_actions",), standard=True),
    Internal("argparse:ArgumentParser", COMPLETION, has=("_actions",), standard=True),
    Internal("subprocess:_USE_VFORK", "supervisor/agents/spawning/spawning.py", standard=True),
    Internal("_socket:socket", "supervisor/agents/spawning/spawner.py", standard=True),
    Internal("_socket:socket", SHIM, has=("settimeout", "sendmsg"), standard=True),
    Internal("_signal:signal", SHIM, standard=True),
)

BOUNDED = ("hypercorn", "keyring", "mcp")
"""Without an interface for what Ostler does with them: setup.cfg has an upper bound for each."""


def members(cls: type) -> Iterator[str]:
    """What instances have: of the class itself, annotated, and stored by any of its methods."""
    for each in cls.__mro__[:-1]:
        yield from vars(each)
        yield from vars(each).get("__annotations__", {})
        for method in vars(each).values():
            if isinstance(method, types.FunctionType):
                steps = dis.get_instructions(method)
                yield from (str(step.argval) for step in steps if step.opname == "STORE_ATTR")


def moved(internal: Internal) -> str | None:
    """What is not as Ostler needs it, None if all is."""
    module, _, path = internal.place.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        return f"{module} cannot be imported ({error})"
    for name in path.split("."):
        if not hasattr(found, name):
            return f"{internal.place} is gone"
        found = getattr(found, name)
    known = set(members(found)) if isinstance(found, type) else set(dir(found))
    if lost := [name for name in internal.has if name not in known]:
        return f"{internal.place} has no {', '.join(lost)} any more"
    if internal.takes:
        parameters = [name for name in inspect.signature(found).parameters if name != "self"]
        if tuple(parameters[: len(internal.takes)]) != internal.takes:
            return f"{internal.place} takes {', '.join(parameters)} instead of {', '.join(internal.takes)}"
    return None


def distribution(internal: Internal) -> str:
    return packages_distributions()[internal.place.partition(":")[0].partition(".")[0]][0]


def complaint(internal: Internal) -> str | None:
    found = moved(internal)
    if found is None:
        return None
    of = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if not internal.standard:
        name = distribution(internal)
        of = f"{name} {version(name)}"
    return f"{of}: {found}. {internal.used_by} needs it: adapt that module, then this list."


@pytest.mark.parametrize("internal", INTERNALS, ids=str)
def test_what_ostler_relies_on_is_where_it_was(internal: Internal) -> None:
    assert complaint(internal) is None, complaint(internal)


@pytest.mark.parametrize(
    ("internal", "said"),
    [
        (Internal("hypercorn.no_such:X", CONNECTION), "hypercorn.no_such cannot be imported"),
        (Internal("hypercorn.config:NoSuch", LISTENER), "hypercorn.config:NoSuch is gone"),
        (
            Internal("hypercorn.trio.tcp_server:TCPServer", CONNECTION, has=("app", "_no_such")),
            "TCPServer has no _no_such any more. gateway/http/client_connection.py needs it",
        ),
        (Internal("hypercorn.utils:wrap_app", LISTENER, takes=("app", "mode")), "instead of app, mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_moved_is_told_with_who_needs_it(internal: Internal, said: str) -> None:
    found = complaint(internal)
    assert found is not None
    assert said in found
    assert found.startswith("Hypercorn ")
    assert internal.used_by in found


def test_the_list_names_modules_that_use_it() -> None:
    for internal in INTERNALS:
        text = (ROOT / internal.used_by).read_text()
        for name in internal.has:
            assert name.startswith("__") or re.search(rf"\b{name}\b", text) or _elsewhere(name), (
                f"{internal}: {name} is not used any more"
            )


def _elsewhere(name: str) -> bool:
    """A class is named for one module of ours, and may be looked at by its neighbours too."""
    neighbours = (CONNECTION, MESSAGE_BUFFER, LISTENER, FRAME_WRITER, "supervisor/mcp/helper.py")
    return any(re.search(rf"\b{name}\b", (ROOT / file).read_text()) for file in neighbours)


def test_libraries_without_an_interface_for_it_have_an_upper_bound() -> None:
    for name in BOUNDED:
        assert "<" in RUNTIME[name], f"{name} needs an upper bound in setup.cfg: see tests/dependencies"


def foreign_privates(path: Path) -> Iterator[str]:
    """Private names that a file imports from a library, or subclasses by."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            top = node.module.partition(".")[0]
            if top in ("supervisor", "gateway", "__future__"):
                continue
            for alias in node.names:
                if alias.name.startswith("_") or any(part.startswith("_") for part in node.module.split(".")):
                    yield f"{node.module}:{alias.name}"
        if isinstance(node, ast.Import):
            yield from (
                f"{alias.name}:"
                for alias in node.names
                if any(p.startswith("_") for p in alias.name.split("."))
            )
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.value.id in sys.stdlib_module_names - {"os"}
        ):
            yield f"{node.value.id}:{node.attr}"


def test_every_private_name_is_on_the_list() -> None:
    listed = {internal.place for internal in INTERNALS}
    for directory in ("supervisor", "gateway"):
        for path in (ROOT / directory).rglob("*.py"):
            if ONE_VERSION in path.parents:
                continue
            for name in foreign_privates(path):
                known = name in listed or any(
                    place.startswith(name) for place in listed if name.endswith(":")
                )
                assert known, f"{path.relative_to(ROOT)} uses {name}, which is private: add it to this list"


def test_every_subclass_of_hypercorn_is_on_the_list() -> None:
    listed = {internal.place.partition(":")[2] for internal in INTERNALS}
    for path in (ROOT / "gateway").rglob("*.py"):
        tree = ast.parse(path.read_text())
        theirs = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hypercorn")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                assert bases & theirs <= listed, (
                    f"{path.name}: {node.name} subclasses {bases & theirs - listed}"
                )
