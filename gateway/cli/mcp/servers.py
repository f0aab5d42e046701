"""The configured MCP servers, of `mcp.json` and of the settings, as the commands show them: without
credentials."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import attrs

from gateway.cli.failures import Failure, Missing
from gateway.cli.locations import documents_of, state_directory
from gateway.cli.mcp.blank import TELLING
from gateway.cli.suggest import did_you_mean
from supervisor.documents.port import Documents
from supervisor.mcp.entry import is_enabled, settings_entry, transport_of
from supervisor.mcp.file import MAX_BYTES, McpFile, McpFileError, odd_name
from supervisor.mcp.server import MCPServerError

SETTINGS: Final = "settings.json"

FILE, IN_SETTINGS = "file", "settings"

MASK: Final = "**********"

PLAIN: Final = frozenset(
    [
        "command",
        "args",
        "cwd",
        "transport",
        "type",
        "description",
        "enabled",
        "disabled",
        "timeout",
        "strategy",
        "username",
        "header_name",
        "icon",
    ]
)
"""Keys of an entry whose values are not credentials. `url` has its own rule; an unknown key's value may be
one."""

AUTH_WORDS: Final = frozenset({"oauth", "oauth2", "none"})

URLS: Final = ("url", "httpUrl", "serverUrl")

REFERENCE: Final = re.compile(r"(?:[A-Za-z]+ )?\$\{[A-Za-z_][A-Za-z0-9_]*\}")
"""A value that only names a secret."""

NAMED: Final = re.compile(rf"--?{TELLING}", re.IGNORECASE)
"""An option whose value is probably a secret."""

VALUED: Final = re.compile(rf"([^=:]*?{TELLING}[^=:]*(?:=|:\s*))(.+)", re.IGNORECASE | re.DOTALL)
"""A name of a secret with its value: of an option, a variable, a header."""

URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)


@attrs.frozen
class Server:
    """A configured server. `entry` is as it is written; `problem` says why agents do not get it at all;
    `hidden` that another one of its name goes before it."""

    name: str
    source: str
    entry: Any = attrs.field(repr=False)
    problem: str | None
    transport: str | None
    hidden: bool = False

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return is_enabled(self.entry)

    @property
    def state(self) -> str:
        """One word."""
        if self.problem is not None:
            return "broken"
        if self.hidden:
            return "hidden"
        return "enabled" if self.enabled else "disabled"

    def shown(self, *, secrets: bool) -> Any:
        """Its entry, for people. Of the settings, values are encrypted on the disk and never shown."""
        return self.entry if secrets and self.source == FILE else masked(self.entry)

    def dump(self, *, secrets: bool) -> dict[str, Any]:
        """Its JSON."""
        return {
            "name": self.name,
            "source": self.source,
            "enabled": self.enabled,
            "transport": self.transport,
            "hidden": self.hidden,
            "problem": self.problem,
            "entry": self.shown(secrets=secrets),
        }


def state_of(arguments: Namespace) -> Path:
    """The state directory that an argument or the environment names. Raises BadInput."""
    return state_directory(arguments.state, os.environ)


def file_of(state: Path) -> McpFile:
    """The servers of that state directory, or of the database that the environment names. Raises BadInput."""
    return McpFile(state, documents_of(state, os.environ))


def found(file: McpFile) -> tuple[list[Server], list[str]]:
    """Every server, those of the settings first, and lines about what is wrong elsewhere.

    Raises Failure for a broken `mcp.json`, rather than describe a part of it.
    """
    problems = [problem for problem in (file.old_configuration(),) if problem is not None]
    try:
        settings = [
            server_of(name, IN_SETTINGS, entry) for name, entry in _of_settings(file.documents).items()
        ]
    except ValueError as error:
        settings = []
        problems.append(str(error))
    names = {each.name for each in settings}
    try:
        entries = file.read().servers
    except McpFileError as error:
        raise Failure(str(error)) from None
    servers = [server_of(name, FILE, entry, hidden=name in names) for name, entry in entries.items()]
    return [*settings, *servers], problems


def missing(name: str, servers: list[Server]) -> Failure:
    """What to say of a server that is not in the file."""
    if any(each.name == name and each.source == IN_SETTINGS for each in servers):
        return Failure(
            f"{name} is in the settings, not in mcp.json; change it with `ostler settings set mcp_config`"
        )
    known = [each.name for each in servers if each.source == FILE]
    return Missing(f"there is no MCP server {name}{did_you_mean(name, known)} (`ostler mcp list` shows them)")


def _of_settings(documents: Documents) -> dict[str, Any]:
    """The servers in the settings; none where there are none. Raises ValueError, in one line."""
    stored = documents.document(SETTINGS)
    try:
        content = stored.read(4 * MAX_BYTES)
        if content is None:
            return {}
        document = json.loads(content.data)
        servers = document["agent_settings"].get("mcp_config") or {}
        return dict(servers)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"cannot read {stored.shown}; servers of the settings are not shown") from None


def server_of(name: str, source: str, entry: Any, *, hidden: bool = False) -> Server:
    """The server of an entry."""
    try:
        settings = settings_entry(entry)
    except MCPServerError as error:
        return Server(name, source, entry, str(error), None, hidden)
    return Server(name, source, entry, odd_name(name), transport_of(settings), hidden)


def masked(entry: Any) -> Any:
    """An entry with every value hidden that may be a credential."""
    if not isinstance(entry, Mapping):
        return MASK if isinstance(entry, str) else entry
    shown: dict[str, Any] = {}
    for key, value in entry.items():
        if key in URLS and isinstance(value, str):
            shown[key] = masked_url(value)
        elif key == "args" and isinstance(value, list):
            shown[key] = masked_args(value)
        elif key in PLAIN or (key == "auth" and value in AUTH_WORDS if isinstance(value, str) else False):
            shown[key] = value
        else:
            shown[key] = _hidden(value, auth=key == "auth")
    return shown


def _hidden(value: Any, *, auth: bool = False) -> Any:
    if isinstance(value, str):
        return value if REFERENCE.fullmatch(value) else MASK
    if isinstance(value, Mapping):
        return {
            name: item if auth and name in PLAIN else _hidden(item, auth=auth) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_hidden(item, auth=auth) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return MASK


def masked_args(args: Sequence[Any]) -> list[Any]:
    """Arguments with what is probably a secret hidden: the values of options, variables and headers whose
    name says so, and those in a URL."""
    shown: list[Any] = []
    named = False
    for each in args:
        text, before, named = each, named, False
        if not isinstance(each, str):
            shown.append(MASK if before else each)
            continue
        if before and not each.startswith("-"):
            text = each if REFERENCE.fullmatch(each) else MASK
        elif "://" in each and (match := URL.search(each)):
            text = f"{each[: match.start()]}{masked_url(match[0])}"
        elif match := VALUED.fullmatch(each):
            text = each if REFERENCE.fullmatch(match[2]) else f"{match[1]}{MASK}"
        else:
            named = NAMED.fullmatch(each) is not None
        shown.append(text)
    return shown


def masked_url(url: str) -> str:
    """A URL without the password and the values of its query."""
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return MASK
    netloc = parts.netloc
    if "@" in netloc:
        netloc = f"{MASK}@{netloc.rpartition('@')[2]}"
    if parts.query:
        hidden = [(name, value if REFERENCE.fullmatch(value) else MASK) for name, value in query]
        text = urlencode(hidden, safe="*${}") if hidden else MASK
    else:
        text = ""
    return urlunsplit((parts.scheme, netloc, parts.path, text, MASK if parts.fragment else ""))


def target_of(entry: Mapping[str, Any]) -> str:
    """The command with its arguments, or the URL."""
    for key in URLS:
        if isinstance(entry.get(key), str):
            return str(entry[key])
    args = entry.get("args")
    words = [entry.get("command"), *(args if isinstance(args, list) else [])]
    return " ".join(str(word) for word in words if word is not None)


def details(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of headers and variables, one line each."""
    lines: list[tuple[str, str]] = []
    for key, label in (("env", "env"), ("headers", "header")):
        value = entry.get(key)
        if isinstance(value, Mapping):
            joint = "=" if key == "env" else ": "
            lines += [(label, f"{name}{joint}{item}") for name, item in value.items()]
    auth = entry.get("auth")
    if isinstance(auth, str):
        lines.append(("auth", auth))
    elif isinstance(auth, Mapping):
        lines.append(("auth", str(auth.get("strategy") or auth.get("type") or "?")))
    if isinstance(entry.get("cwd"), str):
        lines.append(("cwd", str(entry["cwd"])))
    return lines
