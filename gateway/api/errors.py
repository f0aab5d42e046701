"""Maps exceptions of requests to statuses and JSON bodies, in one table.

A body has one of two shapes: 422 is an HTTPValidationError (`{"detail": [{"loc", "msg", "type"}]}`),
everything else is `{"detail": "<one line>"}`. An unforeseen failure (500) adds `exception` and `error_id`;
the log has the traceback under that id. A body is never HTML.
"""

from __future__ import annotations

import http
import math
import uuid
from typing import Final

import structlog
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from gateway.api.requests.reading import InvalidRequest, bounded
from gateway.api.responses import json_response
from gateway.http.budgets import TooMuchHeld
from gateway.http.wrappers import is_peers_fault, note_peers_fault
from supervisor.acp.schema import cut
from supervisor.conversations.state.errors import (
    AgentFailure,
    AgentTimeout,
    AlreadyRunning,
    AtCapacity,
    ConversationClosing,
    ConversationError,
    ConversationExists,
    InvalidStart,
    NotAccepted,
    NotPossible,
    QueueFull,
    TooManyQuestions,
    UnknownConversation,
    UnknownEvent,
)
from supervisor.credentials.secret import (
    CredentialsFailure,
    SecretsCorrupt,
    SecretsUnavailable,
    WrongMasterKey,
)
from supervisor.documents.port import DocumentsUnavailable
from supervisor.journal.errors import (
    JournalClosed,
    JournalFailed,
    JournalUnavailable,
    LogDeleted,
    NotOwner,
    SearchTooLong,
    TooLarge,
)
from supervisor.patience import PathTimeout
from supervisor.reading.model import ErrorDetail
from supervisor.settings.errors import (
    EncryptionUnavailable,
    ProfileExists,
    ProfileReferenced,
    SettingsCorrupt,
    SettingsEmpty,
    SettingsError,
    TooManyProfiles,
    UnknownProfile,
)
from supervisor.workspace.access import AccessRefused, BadPath
from supervisor.workspace.commands.bash import TooManyCommands
from supervisor.workspace.git.command import GitProblem, GitTooLarge
from supervisor.workspace.problems import Denied, Missing, NoRoom, Unfit

log = structlog.get_logger(__name__)


DETAIL_CHARACTERS: Final = 4000
"""Longest detail of an answer, in characters: some repeat the request, or the end of an agent's stderr."""
RETRY_AFTER_SECONDS: Final = 5
"""Retry-After seconds while the journal or a document is not available.

A repair takes longer, but a refused request costs nothing.
"""


class ApiError(Exception):
    """An intended answer other than success, raised by a route. `detail` is one line for the client."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


PASSING: Final = (JournalUnavailable, DocumentsUnavailable, SecretsUnavailable, NotOwner)
"""Exceptions after which a client is to ask again soon."""

STATUS: dict[type[Exception], int] = {
    UnknownConversation: 404,
    UnknownEvent: 404,
    ConversationExists: 409,
    NotPossible: 409,
    NotAccepted: 400,
    TooManyQuestions: 429,
    AgentTimeout: 504,
    AlreadyRunning: 409,
    AtCapacity: 503,
    QueueFull: 429,
    AgentFailure: 502,
    ConversationClosing: 409,
    ConversationError: 500,
    LogDeleted: 404,
    JournalClosed: 503,
    JournalFailed: 503,
    JournalUnavailable: 503,
    SearchTooLong: 503,
    NotOwner: 503,
    TooLarge: 413,
    SettingsEmpty: 400,
    UnknownProfile: 404,
    ProfileExists: 409,
    ProfileReferenced: 409,
    TooManyProfiles: 409,
    SettingsCorrupt: 409,
    EncryptionUnavailable: 503,
    SecretsCorrupt: 409,
    WrongMasterKey: 409,
    CredentialsFailure: 503,
    DocumentsUnavailable: 503,
    AccessRefused: 403,
    Missing: 404,
    Unfit: 400,
    Denied: 403,
    NoRoom: 507,
    TooMuchHeld: 503,
    GitProblem: 400,
    GitTooLarge: 413,
    PathTimeout: 504,
    TooManyCommands: 429,
}
"""Statuses of exceptions whose message is fit for a client; the nearest base class counts."""


def problem_of(error: Exception) -> tuple[int, list[ErrorDetail] | str] | None:
    """Status and detail of a foreseen exception; None for any other."""
    match error:
        case InvalidRequest() | SettingsError():
            return 422, list(error.errors)
        case BadPath():
            return 422, [ErrorDetail(error.loc, f"Value error, {error}", "value_error")]
        case InvalidStart():
            return 422, [ErrorDetail(error.loc, f"Value error, {error}", "value_error")]
        case ApiError():
            return error.status, error.detail
        case HTTPException():
            status = error.code or 500
            return status, http.HTTPStatus(status).phrase
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind], str(error)
    return None


def answer(error: Exception) -> Response:
    """The response for an exception of a route. Unforeseen ones are logged with their error id."""
    found = problem_of(error)
    if found is None:
        error_id = uuid.uuid4().hex
        if is_peers_fault(error):
            note_peers_fault(error)
        else:
            log.error("request failed", error_id=error_id, exc_info=error)
        # The message of an unforeseen exception may quote what must not leave; its type may not.
        body = {"detail": "Internal Server Error", "exception": type(error).__name__, "error_id": error_id}
        return json_response(body, 500)
    status, detail = found
    if isinstance(detail, str):
        response = json_response({"detail": cut(detail, DETAIL_CHARACTERS)}, status)
    else:
        problems = [{"loc": list(p.loc), "msg": p.msg, "type": p.type} for p in bounded(detail)]
        response = json_response({"detail": problems}, status)
    if isinstance(error, AtCapacity | TooMuchHeld):
        response.headers["Retry-After"] = str(math.ceil(error.retry_after))
    elif isinstance(error, JournalUnavailable | DocumentsUnavailable | SecretsUnavailable | NotOwner):
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if isinstance(error, HTTPException):
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
    return response


def install(app: QuartTrio) -> None:
    """Answer every exception of a route, foreseen or not, as JSON."""

    async def handle(error: Exception) -> Response:
        return answer(error)

    app.register_error_handler(Exception, handle)
    app.register_error_handler(HTTPException, handle)
