"""Warns clients that set secrets about values too common to be masked in agents' output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog
from quart import Response

from supervisor.credentials.common import PLAIN_NAMES, too_common

WARNING_HEADER: Final = "Ostler-Warning"
"""Of answers whose bodies are the wire's."""

MOST_NAMED: Final = 10
"""The most names in one header."""

log = structlog.get_logger(__name__)


def why_shown(name: str, value: str) -> str | None:
    """Why a secret is not hidden; None for one that is."""
    if name.endswith(PLAIN_NAMES) and "@" not in value and "?" not in value:
        return "an address or a choice, by its name"
    return too_common(value)


def warn(response: Response, secrets: Mapping[str, object]) -> Response:
    """Add a header that names the secrets among these that are not hidden, and log them.

    Values that are not strings are fetched from elsewhere, and unknown here.
    """
    shown = {
        name: reason
        for name, value in secrets.items()
        if isinstance(value, str) and (reason := why_shown(name, value)) is not None
    }
    if shown:
        said = "; ".join(f"{name} is {reason}" for name, reason in [*shown.items()][:MOST_NAMED])
        response.headers[WARNING_HEADER] = f"not hidden in what agents say: {said}"
        log.warning("secrets are not hidden in what agents say", secrets=shown)
    return response
