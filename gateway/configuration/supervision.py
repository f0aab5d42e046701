"""The limits, restart policy and deadlines of agents, read from `OSTLER_*` variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs

from gateway.configuration.parsing import (
    directory,
    hosts,
    pick,
    positive_float,
    positive_int,
    whole_number,
)
from supervisor.acp import MAX_FRAME_BYTES
from supervisor.agents.containment.warden import DRAIN_SECONDS, DRAIN_VARIABLE
from supervisor.agents.restart import RestartPolicy
from supervisor.composition import Supervision
from supervisor.conversations.agent.admission import (
    DEFAULT_SPARES,
    FULL_POLICIES,
    IDLE_SECONDS,
    SPARES_MAX,
    STARTS_AT_ONCE,
    Limits,
    memory_budget,
)
from supervisor.conversations.recording.bounds.attachments import CONVERSATION_BYTES, TURN_BYTES, Allowance
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.credentials.lookup import Lookups
from supervisor.hooks.config import HookSource
from supervisor.workspace.commands.bash import BashLimits

T = TypeVar("T")

OFF: Final = "off"
"""Turns a limit off, in upper or lower case."""


def numbers(env: Mapping[str, str], kind: type, prefix: str, *, but: str = "") -> dict[str, Any]:
    """The fields of an attrs class that are one number, each from the variable of its name.

    All are above zero. `but` is left out. Raises ConfigError, naming the variable.
    """
    parsers = {int: positive_int, float: positive_float}
    return {
        field.name: pick(env, f"{prefix}{field.name.upper()}", parsers[type(field.default)], field.default)
        for field in attrs.fields(kind)
        if type(field.default) in parsers and field.name != but
    }


def load_supervision(env: Mapping[str, str]) -> Supervision:
    """Read the variables. Raises ConfigError, naming the variable."""
    policy = RestartPolicy()
    idle: float | None = IDLE_SECONDS
    return Supervision(
        limits=Limits(
            agents=pick(env, "OSTLER_MAX_AGENTS", _or_off(positive_int), None),
            starts=pick(env, "OSTLER_MAX_STARTS", positive_int, STARTS_AT_ONCE),
            memory_bytes=pick(env, "OSTLER_MEMORY_BYTES", _or_off(positive_int), memory_budget()),
            idle_seconds=pick(env, "OSTLER_IDLE_SECONDS", _or_off(positive_float), idle),
            full=pick(env, "OSTLER_WHEN_FULL", _full, "queue"),
        ),
        restart=RestartPolicy(
            crashes=pick(env, "OSTLER_RESTART_CRASHES", positive_int, policy.crashes),
            seconds=pick(env, "OSTLER_RESTART_SECONDS", positive_float, policy.seconds),
            parked_seconds=pick(env, "OSTLER_PARKED_SECONDS", _or_off(positive_float), policy.parked_seconds),
        ),
        deadlines=Deadlines(**numbers(env, Deadlines, "OSTLER_DEADLINE_")),
        allowance=Allowance(
            turn_bytes=pick(env, "OSTLER_MAX_TURN_BLOB_BYTES", positive_int, TURN_BYTES),
            conversation_bytes=pick(
                env, "OSTLER_MAX_CONVERSATION_BLOB_BYTES", positive_int, CONVERSATION_BYTES
            ),
        ),
        lookups=Lookups(
            pick(env, "OSTLER_SECRET_LOOKUPS", lambda text: () if text.lower() == OFF else hosts(text), None)
        ),
        drain_seconds=pick(env, DRAIN_VARIABLE, positive_float, DRAIN_SECONDS),
        agents=pick(env, "OSTLER_AGENTS_DIR", directory, None),
        hooks=pick(env, "OSTLER_HOOKS", _hooks, HookSource.REQUEST),
        bash=BashLimits(**numbers(env, BashLimits, "OSTLER_BASH_")),
        spares=pick(env, "OSTLER_WARM_SPARES", _warm_processes, DEFAULT_SPARES),
        max_frame=pick(env, "OSTLER_MAX_FRAME_BYTES", positive_int, MAX_FRAME_BYTES),
    )


def _or_off(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: None if text.lower() == OFF else parse(text)


def _warm_processes(text: str) -> Mapping[str, int]:
    """Warm processes per agent: `off`, one number for each agent that supports them, or AGENT=NUMBER pairs
    separated by commas."""
    from supervisor.agents.catalog import load_catalog

    able = sorted(key for key, descriptor in load_catalog().items() if descriptor.warm is not None)
    if text.lower() == OFF:
        return {}
    if "=" not in text:
        return dict.fromkeys(able, _warm_number(text))
    found: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, number = part.partition("=")
        if key.strip() not in able:
            raise ValueError(
                f"{key.strip()!r} cannot wait as a spare; agents that can: {', '.join(able) or 'none'}"
            )
        found[key.strip()] = _warm_number(number)
    return found


def _warm_number(text: str) -> int:
    number = whole_number(text.strip())
    if number > SPARES_MAX:
        raise ValueError(f"{number} is more than {SPARES_MAX} spares of one agent")
    return number


def _hooks(text: str) -> HookSource:
    try:
        return HookSource(text.lower())
    except ValueError:
        raise ValueError(f"{text!r} is neither off, request nor project") from None


def _full(text: str) -> str:
    if text not in FULL_POLICIES:
        raise ValueError(f"{text!r} is neither {' nor '.join(FULL_POLICIES)}")
    return text
