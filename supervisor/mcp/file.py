"""The document `mcp.json`: MCP servers, written by people and by `ostler mcp`.

`{"mcpServers": {name: entry}}`, as in other MCP clients. A writer takes a lock, reads the current content,
and replaces the whole: concurrent writers do not lose each other's changes, and a reader sees the old content
or the new one. Unknown content is kept.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import attrs

from supervisor.documents.files import FileDocuments
from supervisor.documents.port import Documents
from supervisor.documents.shared_files import UnusableError, locked, read_regular, refuse_more

T = TypeVar("T")

FILE: Final = "mcp.json"
"""In the state directory."""

SERVERS: Final = "mcpServers"

MAX_BYTES: Final = 1024 * 1024
"""Of the file. It is written by hand; what is larger is a mistake."""

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Names that can be added: agents make names of tools from them."""

NAME_RULE: Final = (
    "a server name has at most 64 letters, digits, dots, dashes and underscores, none of . and - at first"
)

OLD_TABLES: Final = ("mcp", "mcpServers", "mcp_servers")
OLD_FILES: Final[Mapping[str, bool]] = {"mcp.toml": True, "config.toml": False}
"""Where the configuration was before it was JSON; whether the whole file was about MCP."""


class McpFileError(Exception):
    """The file cannot be used, or not be written. One line, which quotes nothing of the content."""

    def __init__(self, where: str, reason: str, line: int | None = None, column: int | None = None) -> None:
        self.reason, self.line, self.column = reason, line, column
        place = "" if line is None else f", line {line}, column {column}"
        super().__init__(f"{where}{place}: {reason}")


def check_name(name: str) -> str:
    """A name for a server to be added. Raises ValueError with the rule."""
    if not NAME.fullmatch(name):
        raise ValueError(NAME_RULE)
    return name


def odd_name(name: str) -> str | None:
    """Why a name in the file cannot be used: more liberal than `check_name`, for files of other clients."""
    if not name.strip() or len(name) > 128 or not name.isprintable():
        return "its name must have 1 to 128 printable characters"
    return None


@attrs.frozen
class Found:
    """A snapshot of the content. `servers` has each entry as written, valid or not; `version` is equal for
    equal content, and None while there is no file. Entries may hold credentials."""

    document: dict[str, Any] = attrs.field(repr=False)
    version: Hashable

    @property
    def servers(self) -> dict[str, Any]:
        """The entries by name, in their order."""
        found: dict[str, Any] = self.document.get(SERVERS) or {}
        return found


class McpFile:
    """The servers of one state directory, or of all servers over one database. Every method blocks; one that
    writes also waits, for a bounded time, for another writer."""

    def __init__(self, state: Path, documents: Documents | None = None) -> None:
        self.state = state
        self.documents = documents or FileDocuments(state)
        self._document = self.documents.document(FILE, by_programs=True)
        self.shown = self._document.shown
        """Where it is, for messages."""

    def read(self) -> Found:
        """The present content; empty if there is no file. Raises McpFileError."""
        try:
            found = self._document.read(MAX_BYTES + 1)
            if found is None:
                return Found({}, None)
            refuse_more(found.data, MAX_BYTES)
        except (OSError, UnusableError) as error:
            raise McpFileError(self.shown, _reason("it cannot be read", error)) from error
        return Found(parse(found.data, self.shown), found.stamp)

    def old_configuration(self) -> str | None:
        """What to do about a TOML file of before, None where there is none. One line, with names alone."""
        for name, whole in OLD_FILES.items():
            path = self.state / name
            try:
                data, _ = read_regular(path, MAX_BYTES)
                document = tomllib.loads(data.decode())
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError, UnusableError):
                if not whole:
                    continue
                document = {}
            found = [document[table] for table in OLD_TABLES if isinstance(document.get(table), dict)]
            if not found and not whole:
                continue
            names = sorted({each for table in found or [document] for each in _names(table)})
            listed = f" ({', '.join(names)})" if names else ""
            return (
                f"{path} is MCP configuration in the old format and not read: add its servers{listed} again "
                "with `ostler mcp add`, then remove it"
            )
        return None

    def change(self, edit: Callable[[dict[str, Any]], T]) -> T:
        """Apply `edit` to the entries by name, in place, and write durably; what it returns.

        The rest of the document stays. Nothing is written if `edit` raises or changes nothing, or if the file
        cannot be read. Raises McpFileError, and what `edit` raises.
        """
        try:
            with locked(self._document.try_lock):
                document = self.read().document
                before = dump(document)
                if document.get(SERVERS) is None:
                    document[SERVERS] = {}
                result = edit(document[SERVERS])
                after = dump(document)
                if len(after) > MAX_BYTES:
                    raise McpFileError(self.shown, f"it would have more than {MAX_BYTES} bytes")
                if after != before:
                    self._document.write(after)
                return result
        except (OSError, UnusableError) as error:
            raise McpFileError(self.shown, _reason("it cannot be written", error)) from error


def _reason(what: str, error: OSError | UnusableError) -> str:
    return str(error) if isinstance(error, UnusableError) else f"{what}: {error.strerror or error}"


def dump(document: Mapping[str, Any]) -> bytes:
    """A document as text for people."""
    try:
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and UTF-8 cannot
        return (json.dumps(document, indent=2) + "\n").encode()


def parse(data: bytes, where: str) -> dict[str, Any]:
    """The document in these bytes; an empty file is an empty document. Raises McpFileError with the
    position."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        raise McpFileError(where, "it is not UTF-8", *_place(before, len(before))) from None
    if not text.strip():
        return {}
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
    except json.JSONDecodeError as error:
        reason = f"it is not JSON: {error.msg[0].lower()}{error.msg[1:]}"
        raise McpFileError(where, reason, error.lineno, error.colno) from None
    except _OddError as error:
        raise McpFileError(where, error.reason, *_place(text, error.find(text))) from None
    except (RecursionError, ValueError):
        raise McpFileError(
            where, "it is nested too deeply, or holds a number that is too long", 1, 1
        ) from None
    if not isinstance(document, dict):
        raise McpFileError(where, "it must hold an object", *_place(text, len(text) - len(text.lstrip())))
    if not isinstance(document.get(SERVERS), dict | None):
        at = text.find(json.dumps(SERVERS))
        raise McpFileError(where, f"{SERVERS} must be an object", *_place(text, max(at, 0)))
    return document


class _OddError(Exception):
    """JSON that only Python accepts. The `match`-th match of `pattern` is its position."""

    def __init__(self, reason: str, pattern: str, match: int = 0) -> None:
        super().__init__(reason)
        self.reason, self._pattern, self._match = reason, pattern, match

    def find(self, text: str) -> int:
        places = [match.start() for match in re.finditer(self._pattern, text)]
        return places[min(self._match, len(places) - 1)] if places else 0


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        # One of the two would be lost with the next change.
        quoted = json.dumps(twice, ensure_ascii=False)
        raise _OddError("it has the same key twice in one object", re.escape(quoted) + r"\s*:", 1)
    return found


def _constant(name: str) -> NoReturn:
    raise _OddError(f"{name} is not JSON", re.escape(name))


def _number(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        # It would be written as Infinity, which is not JSON.
        raise _OddError("it has a number that is too large", re.escape(digits))
    return found


def _place(text: str, position: int) -> tuple[int, int]:
    """Line and column, both from 1."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def _names(table: Mapping[str, Any]) -> list[str]:
    """Names of what looks like servers, in a table or in the tables of it."""
    names: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict):
            if "command" in value or "url" in value:
                names.append(key)
            else:
                names += _names(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict) and ("command" in item or "url" in item):
                    names.append(str(item.get("name", key)))
    return [name for name in names if name.isprintable()]
