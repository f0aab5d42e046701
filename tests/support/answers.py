"""Holds every answer of a gateway against its interface description: status, media type, and each field.

What a description does not name is a flaw here: schemas with properties are taken as complete, unless they
say otherwise themselves.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import orjson
from quart_trio import QuartTrio

MAX_BYTES: Final = 256 * 1024
"""Larger answers are many times the same: they are not looked into."""

ANYWHERE: Final = frozenset({304, 400, 404, 405, 408, 413, 415, 421, 500, 503, 505})
"""What any route may answer, whatever it says: the client has it already, refused before it is reached, or a
failure."""

Schema = Mapping[str, Any]


class Answers:
    """The answers of one application so far. Applications that are `alike` have one description."""

    def __init__(self, app: QuartTrio, alike: Hashable) -> None:
        self._app = app
        self._alike = alike
        self._flaws: list[str] = []

    def settle(self) -> None:
        """Fail with what was wrong."""
        assert not self._flaws, "The interface description does not hold:\n" + "\n".join(self._flaws[:20])

    def checked(self, application: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Wrap the application, and look at what it answers."""

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            start: dict[str, Any] = {}
            body = bytearray()

            async def noted(message: Any) -> None:
                if message["type"] == "http.response.start":
                    start.update(message)
                elif message["type"] == "http.response.body":
                    body.extend(message.get("body", b"")[: MAX_BYTES + 1 - len(body)])
                    if not message.get("more_body", False) and len(body) <= MAX_BYTES:
                        self._look(scope, start, bytes(body))
                await send(message)

            await application(scope, receive, noted)

        return watched

    def _look(self, scope: Mapping[str, Any], start: Mapping[str, Any], body: bytes) -> None:
        document = _documents.get(self._alike)
        if document is None:
            document = _documents[self._alike] = Document(self._app.config["INTERFACE_DESCRIPTION"]())
        operation = document.operation(scope["method"], scope["path"])
        if operation is None:
            return
        headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        flaw = document.flaw(operation, start["status"], headers.get("content-type", ""), body)
        if flaw is not None:
            self._flaws.append(f"{scope['method']} {scope['path']} -> {start['status']}: {flaw}")


class Document:
    """A description, ready for looking things up."""

    def __init__(self, description: bytes) -> None:
        self._document = _closed(orjson.loads(description))
        self._operations = [
            (method.upper(), re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), operation)
            for path, operations in sorted(self._document["paths"].items())
            for method, operation in operations.items()
        ]
        self._validators: dict[str, Any] = {}

    def operation(self, method: str, path: str) -> Schema | None:
        """The operation of a request; fixed paths go before those with parameters."""
        found = [o for m, pattern, o in self._operations if m == method and pattern.fullmatch(path)]
        exact = self._document["paths"].get(path, {}).get(method.lower())
        return exact or (found[0] if found else None)

    def flaw(self, operation: Schema, status: int, media_type: str, body: bytes) -> str | None:
        """What is wrong with an answer."""
        told = operation["responses"].get(str(status))
        if told is None:
            return None if status in ANYWHERE else "the status is not described"
        content = told.get("content")
        if content is None:
            return "a body is not described" if body else None
        kind = media_type.partition(";")[0].strip()
        if "*/*" in content:
            return None
        if kind not in content:
            return f"{kind!r} is not described, but {sorted(content)}"
        if kind != "application/json":
            return None
        schema = content[kind].get("schema", {})
        key = f"{operation['operationId']} {status}"
        if key not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[key] = jsonschema.Draft202012Validator(whole)
        error = jsonschema.exceptions.best_match(self._validators[key].iter_errors(orjson.loads(body)))
        return None if error is None else f"{error.json_path}: {error.message[:500]}"


_documents: Final[dict[Hashable, Document]] = {}
"""Once for all tests of a process: to take a description apart costs more than to look at many answers."""


def _closed(value: Any) -> Any:
    """The schemas, in which only named properties may be there."""
    if isinstance(value, list):
        return [_closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    closed = {
        # What conditions say is about some properties, and not all of them.
        name: each if name in ("allOf", "not", "if", "const", "enum", "default", "example") else _closed(each)
        for name, each in value.items()
    }
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
