"""What an operator can set: command line first, then `OSTLER_*` variables, then defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from gateway.parsing import ConfigError, directory, pick, positive_float, positive_int
from gateway.supervision import Supervision, load_supervision
from supervisor.agents.levels import Level
from supervisor.agents.levels import parse as parse_level
from supervisor.events.model import Vocabulary

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_STATE = "~/.ostler"

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Largest request body. Images travel as data URLs inside messages, so a few pictures must fit."""

MAX_SUBSCRIBERS = 50
"""WebSockets per conversation; the limit that clients of the wire know (close code 1013)."""

STALL_SECONDS = 20.0
"""How long a client may take no byte of what we send before its connection is ended (TCP_USER_TIMEOUT).
Longer than a laptop's radio pause, shorter than what a reader of a frozen tab would notice."""

PING_SECONDS = 20.0
"""Interval of WebSocket pings. Proxies cut idle connections after 30 to 60 s."""

AUTH_SECONDS = 10.0
"""How long a WebSocket may wait with its first-message authentication (the wire's own limit)."""

GRACE_SECONDS = 3.0
"""How long requests under way may go on after SIGTERM before their connections are cut."""


@attrs.frozen(kw_only=True)
class Config:
    """Everything that the gateway is told from outside. Sizes in bytes, times in seconds.

    `event_vocabulary` forces one on every new conversation, whatever its start request asks for.
    `containment` is the level that is demanded, None for the best that costs nothing.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    state: Path = attrs.field(factory=lambda: Path(DEFAULT_STATE).expanduser())
    session_api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    event_vocabulary: Vocabulary | None = None
    containment: Level | None = None
    supervision: Supervision = attrs.field(factory=lambda: load_supervision({}))
    cors_origins: tuple[str, ...] = ()
    cors_origin_regex: str | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    max_subscribers: int = MAX_SUBSCRIBERS
    stall_seconds: float = STALL_SECONDS
    ping_seconds: float = PING_SECONDS
    auth_seconds: float = AUTH_SECONDS
    grace_seconds: float = GRACE_SECONDS


def load_config(
    env: Mapping[str, str],
    *,
    host: str | None = None,
    port: str | None = None,
    state: str | None = None,
    containment: str | None = None,
) -> Config:
    """Merge arguments and environment. Raises ConfigError, naming the argument or the variable."""
    regex = env.get("OSTLER_CORS_ORIGIN_REGEX") or None
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise ConfigError(f"OSTLER_CORS_ORIGIN_REGEX is no regular expression: {error}") from None
    return Config(
        host=pick(env, "OSTLER_HOST", _host, DEFAULT_HOST, argument=host, option="--host"),
        port=pick(env, "OSTLER_PORT", _port, DEFAULT_PORT, argument=port, option="--port"),
        state=pick(
            env, "OSTLER_STATE", directory, directory(DEFAULT_STATE), argument=state, option="--state"
        ),
        session_api_keys=_session_keys(env),
        event_vocabulary=pick(env, "OSTLER_EVENT_VOCABULARY", _vocabulary, None),
        containment=pick(
            env, "OSTLER_CONTAINMENT", parse_level, None, argument=containment, option="--containment"
        ),
        supervision=load_supervision(env),
        cors_origins=tuple(_list(env.get("OSTLER_CORS_ORIGINS", ""))),
        cors_origin_regex=regex,
        max_body_bytes=pick(env, "OSTLER_MAX_BODY_BYTES", positive_int, MAX_BODY_BYTES),
        max_subscribers=pick(env, "OSTLER_MAX_SUBSCRIBERS", positive_int, MAX_SUBSCRIBERS),
        stall_seconds=pick(env, "OSTLER_STALL_SECONDS", positive_float, STALL_SECONDS),
        ping_seconds=pick(env, "OSTLER_PING_SECONDS", positive_float, PING_SECONDS),
        auth_seconds=pick(env, "OSTLER_AUTH_SECONDS", positive_float, AUTH_SECONDS),
        grace_seconds=pick(env, "OSTLER_GRACE_SECONDS", positive_float, GRACE_SECONDS),
    )


def _host(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError(f"{text!r} is no host name or address")
    return text


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no port number") from None
    if not 0 <= port <= 65535:
        raise ValueError(f"{port} is not between 0 and 65535")
    return port


def _vocabulary(text: str) -> Vocabulary | None:
    try:
        return Vocabulary(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither core nor extended") from None


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _session_keys(env: Mapping[str, str]) -> tuple[str, ...]:
    """Keys under our own names and under those that deployments of the wire already set; empty ones dropped.

    Whoever set one of these variables expects a closed server, so every one of them counts.
    """
    keys = _list(env.get("OSTLER_SESSION_API_KEYS", ""))
    listed = env.get("OH_SESSION_API_KEYS", "").strip()
    if listed:
        try:
            values = json.loads(listed)
        except ValueError:
            values = None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ConfigError("OH_SESSION_API_KEYS is no JSON array of strings")
        keys += values
    keys += [value for name, value in env.items() if re.fullmatch(r"OH_SESSION_API_KEYS_\d+", name)]
    keys += [env.get("OSTLER_SESSION_API_KEY", ""), env.get("SESSION_API_KEY", "")]
    return tuple(dict.fromkeys(key for key in keys if key.strip()))
