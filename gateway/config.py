"""What an operator can set: command line first, then `OSTLER_*` variables, then defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from gateway.address import DEFAULT_HOST, DEFAULT_PORT, listed, read_host, read_port, session_keys
from gateway.parsing import ConfigError, directory, pick, positive_float, positive_int
from gateway.supervision import Supervision, load_supervision
from supervisor.agents.levels import Level
from supervisor.agents.levels import parse as parse_level
from supervisor.events.model import Vocabulary

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
    try:
        keys = session_keys(env)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    regex = env.get("OSTLER_CORS_ORIGIN_REGEX") or None
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise ConfigError(f"OSTLER_CORS_ORIGIN_REGEX is no regular expression: {error}") from None
    return Config(
        host=pick(env, "OSTLER_HOST", read_host, DEFAULT_HOST, argument=host, option="--host"),
        port=pick(env, "OSTLER_PORT", read_port, DEFAULT_PORT, argument=port, option="--port"),
        state=pick(
            env, "OSTLER_STATE", directory, directory(DEFAULT_STATE), argument=state, option="--state"
        ),
        session_api_keys=keys,
        event_vocabulary=pick(env, "OSTLER_EVENT_VOCABULARY", _vocabulary, None),
        containment=pick(
            env, "OSTLER_CONTAINMENT", parse_level, None, argument=containment, option="--containment"
        ),
        supervision=load_supervision(env),
        cors_origins=tuple(listed(env.get("OSTLER_CORS_ORIGINS", ""))),
        cors_origin_regex=regex,
        max_body_bytes=pick(env, "OSTLER_MAX_BODY_BYTES", positive_int, MAX_BODY_BYTES),
        max_subscribers=pick(env, "OSTLER_MAX_SUBSCRIBERS", positive_int, MAX_SUBSCRIBERS),
        stall_seconds=pick(env, "OSTLER_STALL_SECONDS", positive_float, STALL_SECONDS),
        ping_seconds=pick(env, "OSTLER_PING_SECONDS", positive_float, PING_SECONDS),
        auth_seconds=pick(env, "OSTLER_AUTH_SECONDS", positive_float, AUTH_SECONDS),
        grace_seconds=pick(env, "OSTLER_GRACE_SECONDS", positive_float, GRACE_SECONDS),
    )


def _vocabulary(text: str) -> Vocabulary | None:
    try:
        return Vocabulary(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither core nor extended") from None
