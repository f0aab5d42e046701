"""JSON-RPC 2.0 with one client: its requests, one task for each, and Ostler's requests to it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import attrs
import orjson
import structlog
import trio

from gateway.api.acp.replies import answer, failure_of, refusal
from gateway.api.requests.bodies import TooHeavy, parsed
from supervisor.acp import RpcError
from supervisor.acp.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR

log = structlog.get_logger(__name__)

RUNNING_MAX: Final = 1_000
"""The most requests of one client in progress: as many as messages may wait in a conversation."""

RUNNING_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of these together, the first excepted: as many as may wait in a conversation."""

ID_CHARS: Final = 200
"""The longest id of a request that is a text. Ids of known clients have at most 40 characters."""

Id = str | int | None


class Methods(Protocol):
    """What answers a client."""

    async def request(self, request_id: Id, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result of a request. Raises RpcError, or an exception of `gateway.api.errors`."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Take a notification. Does not wait."""


@attrs.define(eq=False)
class Question:
    """A request of Ostler's that waits for the client's answer. `over`: the answer is of no use any more."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    result: Any = None
    error: RpcError | None = None


class Peer:
    """One client. `send` sends a frame; its wait is the backpressure.

    Tasks run in `nursery`: cancelling it ends all requests, without an answer.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], nursery: trio.Nursery) -> None:
        self.send = send
        self._nursery = nursery
        self._running: dict[Id, int] = {}
        """The sizes of the requests in progress."""
        self._questions: dict[str, Question] = {}
        self._connection = secrets.token_hex(4)
        """Of the ids of questions: a bridge knows those of earlier connections, too."""
        self._numbers = 0

    async def take(self, frame: str | bytes | None, methods: Methods) -> None:
        """Handle a message of the client. Waits only while a refusal is sent."""
        try:
            message = await parsed(frame if frame is not None else b"")
        except (orjson.JSONDecodeError, TooHeavy) as error:
            await self.send(refusal(None, RpcError(PARSE_ERROR, f"Parse error: {error}")))
            return
        if not isinstance(message, dict) or not _is_id(message.get("id")):
            detail = (
                "Send one JSON-RPC message in each frame: an object, with an id that is a text or a number."
            )
            await self.send(refusal(None, RpcError(INVALID_REQUEST, detail)))
            return
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str):
            self._take_answer(message)
            return
        given = params if isinstance(params, dict) else {}
        if "id" not in message:
            methods.notify(method, given)
            return
        request_id: Id = message["id"]
        running, size = self._running, len(frame or b"")
        if request_id in running or len(running) >= RUNNING_MAX:
            busy = "A request with this id is in progress" if request_id in running else _TOO_MANY
            await self.send(refusal(request_id, RpcError(INVALID_REQUEST, busy)))
            return
        if running and sum(running.values()) + size > RUNNING_BYTES:
            await self.send(refusal(request_id, RpcError(INVALID_REQUEST, _TOO_LARGE)))
            return
        running[request_id] = size
        self._nursery.start_soon(self._answer, methods, request_id, method, given)

    async def _answer(self, methods: Methods, request_id: Id, method: str, params: Mapping[str, Any]) -> None:
        try:
            reply = answer(request_id, await methods.request(request_id, method, params))
        except Exception as error:  # noqa: BLE001 - the client gets what may be shown of it
            reply = refusal(request_id, failure_of(error))
        finally:
            del self._running[request_id]
        await self.send(reply)

    def _take_answer(self, message: Mapping[str, Any]) -> None:
        question = self._questions.pop(str(message.get("id")), None)
        if question is None:
            return
        error = message.get("error")
        if isinstance(error, Mapping):
            code, text = error.get("code"), error.get("message")
            question.error = RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(text))
        else:
            question.result = message.get("result")
        question.answered.set()

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any],
        question_id: str | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> Any:
        """Send a request, and return its result. `sent` is called before that is waited for. Raises RpcError.

        A cancelled wait tells the client that no answer is needed (`$/cancel_request`).
        """
        if question_id is None:
            self._numbers += 1
            question_id = f"ostler-{self._connection}-{self._numbers}"
        question = self._questions[question_id] = Question()
        try:
            await self.send(
                orjson.dumps({"jsonrpc": "2.0", "id": question_id, "method": method, "params": params})
            )
            sent()
            await question.answered.wait()
        finally:
            if self._questions.pop(question_id, None) is not None:
                self._nursery.start_soon(self.notify, "$/cancel_request", {"requestId": question_id})
        if question.error is not None:
            raise question.error
        return question.result

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        await self.send(orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params}))


_TOO_LARGE: Final = (
    f"Requests of {RUNNING_BYTES} bytes are in progress, which is the limit. Wait for an answer."
)
_TOO_MANY: Final = f"{RUNNING_MAX} requests are in progress, which is the limit. Wait for an answer."


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= ID_CHARS
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
