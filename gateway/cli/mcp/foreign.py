"""Entries of MCP servers in the files of other clients, as entries of `mcp.json`. Pure.

Claude, Cursor and a project's `.mcp.json` have them below `mcpServers`, VS Code below `servers`, and Claude
Code those of one directory below `projects`. A reference to a variable or to an input becomes one to a
secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.mcp.configured import changed
from supervisor.mcp.entry import KEPT, SPELLINGS, URL_KEYS, settings_entry
from supervisor.mcp.server import MCPServerError

TABLES: Final = ("mcpServers", "servers")

REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEFAULTED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):-.*", re.DOTALL)

SPELLED: Final = ("transport", "type", "disabled", "oauth", *URL_KEYS)
"""What is read next to the keys that are kept."""

IDLE: Final = frozenset({"gallery", "version", "alwaysAllow", "autoApprove", "name"})
"""What other clients keep for themselves, and a server does without."""

NO_FIELD: Final = ": Value error, "
"""How a message about an entry as a whole begins, which names no field."""

_STRING: Final = r'"(?:\\.|[^"\\])*"'
_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA: Final = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")


@attrs.frozen
class Surroundings:
    """What the paths in a file stand for: the project's directory, and the home."""

    project: Path
    home: Path

    def fixed(self) -> dict[str, str]:
        """Values of the references that are no secrets."""
        project = str(self.project)
        return {
            "workspaceFolder": project,
            "workspaceFolderBasename": self.project.name,
            "cwd": project,
            "CLAUDE_PROJECT_DIR": project,
            "userHome": str(self.home),
            "HOME": str(self.home),
            "pathSeparator": "/",
            "/": "/",
        }


@attrs.frozen
class Converted:
    """An entry for `mcp.json`, the secrets that it names, and what of the other client's it lacks."""

    entry: dict[str, Any] = attrs.field(repr=False)
    secrets: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_document(text: str) -> dict[str, Any]:
    """The document of a file; VS Code's may have comments and commas at the end of a list. Raises
    ValueError."""
    try:
        document = json.loads(text)
    except ValueError:
        for pattern in (_COMMENT, _COMMA):
            text = pattern.sub(lambda match: match[1] or " ", text)
        document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("it must hold an object")  # noqa: TRY004 - the content is wrong, not a call
    return document


def servers_in(document: Mapping[str, Any], project: Path) -> Iterator[tuple[str, Any]]:
    """The servers of a document by name: those of the project's directory first."""
    projects = document.get("projects")
    own = projects.get(str(project)) if isinstance(projects, Mapping) else None
    for table in (own, document):
        for key in TABLES:
            servers = table.get(key) if isinstance(table, Mapping) else None
            if isinstance(servers, Mapping):
                yield from servers.items()


def valid_name(name: str) -> str:
    """A name that `mcp.json` can have: made of another client's, whose may have blanks and slashes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip(".-")[:64]


def inferred_transport(url: str) -> str:
    """The transport of a URL that says none: `sse` where its path ends so."""
    return "sse" if re.fullmatch(r"[^?#]*/sse/?(?:[?#].*)?", url) else "http"


def converted(given: object, surroundings: Surroundings) -> Converted:
    """The entry for `mcp.json`. Raises ValueError: why there is none, without a value."""
    if not isinstance(given, Mapping):
        raise ValueError("it is not an object")  # noqa: TRY004 - the content is wrong, not a call
    secrets: dict[str, None] = {}
    notes: list[str] = []
    replace = _replacing(surroundings.fixed(), secrets, notes)
    entry = {key: changed(given[key], replace) for key in KEPT if given.get(key) is not None}
    for key in URL_KEYS:
        if "url" not in entry and isinstance(given.get(key), str):
            entry["url"] = replace(given[key])
    if any("${" in str(entry.get(key, "")) for key in ("command", "cwd")):
        raise ValueError("its command or cwd has a variable, which stands for a secret in other places only")
    if isinstance(entry.get("url"), str) and "command" not in entry:
        entry["transport"] = _transport(given, entry["url"])
    if "enabled" not in entry:
        entry["enabled"] = given.get("disabled") is not True
    for key in ("auth", "oauth"):
        if isinstance(given.get(key), Mapping):
            entry["auth"] = changed(_auth(given[key]), replace)
    left = [key for key in given if key not in (*KEPT, *SPELLED) and key not in IDLE]
    notes += [f"{key} is left out" for key in left]
    if not {"command", "url"} & entry.keys():
        unknown = ", ".join(json.dumps(str(key)) for key in left)
        raise ValueError(f'{unknown and f"{unknown} is not known; "}give "command" or "url"')
    try:
        settings_entry(entry)
    except MCPServerError as error:
        raise ValueError(str(error).removeprefix(NO_FIELD)) from None
    return Converted(entry, tuple(secrets), tuple(dict.fromkeys(notes)))


def _transport(given: Mapping[str, Any], url: str) -> str:
    word = given.get("transport", given.get("type"))
    if word is None:
        return "http" if "url" not in given and "httpUrl" in given else inferred_transport(url)
    folded = str(word).lower().replace("-", "").replace("_", "")
    return SPELLINGS.get(folded, str(word))  # a wrong one is reported with the rest of the entry


def _auth(given: Mapping[str, Any]) -> dict[str, Any]:
    """A registered client of OAuth: Cursor's spelling, and Claude Code's."""
    if "strategy" in given:
        return dict(given)
    client = given.get("CLIENT_ID", given.get("clientId"))
    if client is None:
        return {"strategy": "oauth2"}
    scopes = given.get("scopes")
    found = {
        "type": "oauth",
        "client_id": client,
        "client_secret": given.get("CLIENT_SECRET"),
        "scopes": scopes.split() if isinstance(scopes, str) else scopes,
    }
    return {
        "strategy": "oauth2",
        "authentication": {key: value for key, value in found.items() if value is not None},
    }


def _replacing(fixed: Mapping[str, str], secrets: dict[str, None], notes: list[str]) -> Callable[[str], str]:
    def one(match: re.Match[str]) -> str:
        inside = match[1]
        if inside in fixed:
            return fixed[inside]
        kind, colon, rest = inside.partition(":")
        name = inside
        if colon and kind == "env":
            name = rest
        elif colon and kind == "input":
            name = re.sub(r"\W+", "_", rest, flags=re.ASCII).upper()
        elif with_default := DEFAULTED.fullmatch(inside):
            name = with_default[1]
            notes.append(f"the default of {name} is left out")
        if name in fixed:
            return fixed[name]
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"only its own client knows what {match[0][:40]} stands for")
        secrets[name] = None
        return f"${{{name}}}"

    return lambda text: REFERENCE.sub(one, text)
