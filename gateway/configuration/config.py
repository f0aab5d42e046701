"""What an operator can set: command line first, then `OSTLER_*` variables, then defaults."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args

import attrs

from gateway.configuration.address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_STATE,
    ip_address,
    is_loopback,
    listed,
    open_refusal,
    read_host,
    read_port,
    session_keys,
)
from gateway.configuration.keys import FILE_VARIABLE as KEYS_FILE_VARIABLE
from gateway.configuration.machines import MachinesConfig, read_machines
from gateway.configuration.parsing import (
    ConfigError,
    directory,
    hosts,
    keyring_allowed,
    pick,
    positive_float,
    positive_int,
    positive_number,
    switch,
    whole_number,
)
from gateway.configuration.webhooks import WebhookSpec, read_webhooks
from supervisor.acp import MAX_FRAME_BYTES
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.levels import parse as parse_level
from supervisor.agents.containment.lifeline import NO_WARDEN_VARIABLE
from supervisor.agents.containment.warden import BUDGET, BUDGET_VARIABLE, DRAIN_SECONDS, DRAIN_VARIABLE
from supervisor.agents.environment import SANDBOX_DECLARATION
from supervisor.agents.limits.values import AgentLimits, Limit
from supervisor.agents.restart import RestartPolicy
from supervisor.agents.spawning.descriptors import Shares, shares
from supervisor.agents.spawning.descriptors import limit as descriptor_limit
from supervisor.agents.spawning.prctl import ATTACHABLE_VARIABLE
from supervisor.agents.walls.door.hosts import VARIABLE as HOSTS_VARIABLE
from supervisor.agents.walls.door.hosts import allow_list
from supervisor.agents.walls.further import READ_VARIABLE as ALLOW_READ_VARIABLE
from supervisor.agents.walls.further import WRITE_VARIABLE as ALLOW_WRITE_VARIABLE
from supervisor.agents.walls.further import Paths
from supervisor.agents.walls.network import VARIABLE as NETWORK_VARIABLE
from supervisor.agents.walls.network import Network, Reachable
from supervisor.agents.walls.network import parse as parse_network
from supervisor.agents.walls.wall import VARIABLE as WALLS_VARIABLE
from supervisor.agents.walls.wall import parse as parse_wall
from supervisor.agents.walls.walls import WallsWanted
from supervisor.composition import Supervision
from supervisor.conversations.agent.admission import (
    DEFAULT_WARM,
    FULL_POLICIES,
    IDLE_SECONDS,
    STARTS_AT_ONCE,
    WARM_MAX,
    Limits,
    memory_budget,
)
from supervisor.conversations.recording.bounds.attachments import CONVERSATION_BYTES, TURN_BYTES, Allowance
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.credentials.lookup import Lookups
from supervisor.events import Vocabulary
from supervisor.hooks.config import HookSource
from supervisor.journal.storage.store import BUSY_TIMEOUT
from supervisor.switches import boolean
from supervisor.workspace.access import VARIABLE as ACCESS_VARIABLE
from supervisor.workspace.access import Access
from supervisor.workspace.access import parse as parse_access
from supervisor.workspace.commands.bash import BashLimits

T = TypeVar("T")

LogForm = Literal["auto", "lines", "json"]
"""`auto`: lines, on a terminal without what only operators want to know."""

OFF: Final = "off"
"""Turns a limit off, in upper or lower case."""


@attrs.frozen(kw_only=True)
class Config:
    """The gateway's configuration. Sizes in bytes, times in seconds.

    A field that is a number, but for the port, is read from the variable of its name: `max_page` from
    OSTLER_MAX_PAGE.

    `allow_open` permits listening without session keys on an address that other machines can reach.
    `allowed_hosts` are further names that an open server answers to (access.py). `event_vocabulary` overrides
    the vocabulary of each start request. `containment` is the required level, None for the best that costs
    nothing. `acp`: whether `/acp` answers. `workspace_access` is what clients may use besides the
    conversations. `descriptors` divides the
    file descriptors among their uses. `machines`: this server is one of several.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    state: Path = attrs.field(factory=lambda: Path(DEFAULT_STATE).expanduser())
    session_api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    allow_open: bool = False
    allowed_hosts: tuple[str, ...] = ()
    keyring: bool = True
    acp: bool = False
    log: LogForm = "auto"
    event_vocabulary: Vocabulary | None = None
    workspace_access: Access = Access.ALL
    containment: Level | None = None
    supervision: Supervision = attrs.field(factory=lambda: load_supervision({}))
    cors_origins: tuple[str, ...] = ()
    cors_origin_regex: str | None = None
    max_body_bytes: int = 16 * 1024 * 1024
    """Largest request body. Images travel as data URLs inside messages, so a few pictures must fit."""
    max_upload_bytes: int = 1024 * 1024 * 1024
    """Largest body of a request with a file. It is streamed to disk: the limit protects not memory, but the
    disk from a client's mistake."""
    max_message_bytes: int = 16 * 1024 * 1024
    """Largest message on a WebSocket, from a client that has presented its key. As large as a body, for the
    same reason."""
    max_conversations: int = 100_000
    """Most conversations. Far more than people make, so that a runaway client is stopped before lists get
    slow and the disk is full."""
    max_page: int = 100
    """Items of one page of conversations or events, by default and at most: what clients of the wire count
    on."""
    max_event_ids: int = 1000
    """Events of one request by id. Ten pages' worth; more is better read page by page."""
    max_connections: int = attrs.field(factory=lambda: shares(descriptor_limit()).connections)
    descriptors: Shares = attrs.field(factory=lambda: shares(descriptor_limit()))
    max_subscribers: int = 50
    """WebSockets per conversation; the limit that clients of the wire know (close code 1013)."""
    stall_seconds: float = 20.0
    """How long a client may acknowledge none of the sent data before its connection is ended
    (TCP_USER_TIMEOUT). Longer than a laptop's radio pause, shorter than the user of a frozen tab would
    notice."""
    keep_alive_seconds: float = 75.0
    """How long an idle connection is kept. Longer than the polling intervals of clients, so that they rarely
    meet a connection that is just being closed. A request's head must have come within this time, too,
    however slowly a client sends it."""
    ping_seconds: float = 20.0
    """Interval of WebSocket pings. Proxies cut idle connections after 30 to 60 s."""
    auth_seconds: float = 10.0
    """How long a WebSocket may wait with its first-message authentication (the wire's own limit)."""
    body_seconds: float = 60.0
    """How long a client may take to send a request's body. The largest one needs half of it at 1 MB/s."""
    grace_seconds: float = 3.0
    """How long requests under way may continue after SIGTERM before their connections are cut."""
    journal_busy_seconds: float = BUSY_TIMEOUT
    """How long another process, such as a backup or the sqlite3 shell, may hold the journal's database before
    requests are refused over it."""
    webhooks: tuple[WebhookSpec, ...] = ()
    machines: MachinesConfig | None = None


def load_config(
    env: Mapping[str, str],
    *,
    host: str | None = None,
    port: str | None = None,
    state: str | None = None,
    containment: str | None = None,
) -> Config:
    """Merge arguments and environment. Raises ConfigError, naming the argument or the variable.

    Blocks while a host name is resolved, which is done only where it decides whether an open server may
    listen there.
    """
    try:
        keys = session_keys(env)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    regex = env.get("OSTLER_CORS_ORIGIN_REGEX") or None
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise ConfigError(f"OSTLER_CORS_ORIGIN_REGEX is not a regular expression: {error}") from None
    address = pick(env, "OSTLER_HOST", read_host, DEFAULT_HOST, argument=host, option="--host")
    allow_open = switch(env, "OSTLER_ALLOW_OPEN")
    for variable in (ATTACHABLE_VARIABLE, NO_WARDEN_VARIABLE, SANDBOX_DECLARATION):
        switch(env, variable)  # they are looked at elsewhere; what is not a boolean is an error here
    pick(env, BUDGET_VARIABLE, whole_number, BUDGET)  # the warden's
    if not keys and not allow_open and not _for_this_machine(address):
        raise ConfigError(f"{'OSTLER_HOST' if host is None else '--host'}: {open_refusal(address)}")
    wanted: int | None = None
    wanted = pick(env, "OSTLER_MAX_CONNECTIONS", positive_int, wanted)
    supervision = load_supervision(env)
    doors = supervision.walls.reachable.network is Network.DOOR
    descriptors = shares(descriptor_limit(), wanted, doors=doors)
    if wanted is not None and descriptors.connections < wanted:
        raise ConfigError(
            f"OSTLER_MAX_CONNECTIONS: {wanted} connections do not fit into {descriptors.limit} open files "
            "next to agents and the rest; raise the hard limit (ulimit -Hn), or lower the variable"
        )
    return Config(
        host=address,
        port=pick(env, "OSTLER_PORT", read_port, DEFAULT_PORT, argument=port, option="--port"),
        state=pick(
            env, "OSTLER_STATE", directory, directory(DEFAULT_STATE), argument=state, option="--state"
        ),
        session_api_keys=keys,
        allow_open=allow_open,
        allowed_hosts=pick(env, "OSTLER_ALLOWED_HOSTS", hosts, ()),
        keyring=keyring_allowed(env),
        acp=switch(env, "OSTLER_ACP"),
        log=pick(env, "OSTLER_LOG", _log_form, "auto"),
        event_vocabulary=pick(env, "OSTLER_EVENT_VOCABULARY", _vocabulary, None),
        workspace_access=pick(env, ACCESS_VARIABLE, parse_access, Access.ALL),
        containment=pick(
            env, "OSTLER_CONTAINMENT", parse_level, None, argument=containment, option="--containment"
        ),
        supervision=supervision,
        cors_origins=tuple(listed(env.get("OSTLER_CORS_ORIGINS", ""))),
        cors_origin_regex=regex,
        max_connections=descriptors.connections,
        descriptors=descriptors,
        webhooks=read_webhooks(env),
        machines=read_machines(env),
        **numbers(env, Config, "OSTLER_", but="port"),
    )


def _log_form(text: str) -> LogForm:
    for form in get_args(LogForm):
        if text == form:
            return cast(LogForm, form)
    raise ValueError(f"{text!r} is none of {', '.join(get_args(LogForm))}")


def _vocabulary(text: str) -> Vocabulary | None:
    try:
        return Vocabulary(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither core nor extended") from None


def _for_this_machine(host: str) -> bool:
    """Whether only this machine reaches the address. A name must resolve to nothing else.

    One that cannot be resolved counts as such: listening fails on it, with a better message.
    """
    if ip_address(host) is not None:
        return is_loopback(host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True
    return all(is_loopback(str(entry[4][0])) for entry in found)


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
    """The limits, restart policy and deadlines of agents. Raises ConfigError, naming the variable."""
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
        keep_updates=pick(env, "OSTLER_KEEP_UPDATES", boolean, True),
        bash=BashLimits(**numbers(env, BashLimits, "OSTLER_BASH_")),
        warm_processes=pick(env, "OSTLER_WARM_SPARES", _warm_processes, DEFAULT_WARM),
        max_frame=pick(env, "OSTLER_MAX_FRAME_BYTES", positive_int, MAX_FRAME_BYTES),
        agent_limits=_agent_limits(env),
        walls=WallsWanted(
            wall=pick(env, WALLS_VARIABLE, parse_wall, None),
            reads=pick(env, "OSTLER_WALLS_READ", _paths, ()),
            writes=pick(env, "OSTLER_WALLS_WRITE", _paths, ()),
            allowed=Paths(
                reads=pick(env, ALLOW_READ_VARIABLE, _paths, ()),
                writes=pick(env, ALLOW_WRITE_VARIABLE, _paths, ()),
            ),
            hidden=pick(env, KEYS_FILE_VARIABLE, _paths, ()),
            reachable=Reachable(
                network=pick(env, NETWORK_VARIABLE, parse_network, Network.FULL),
                hosts=pick(env, HOSTS_VARIABLE, allow_list, allow_list(None)),
            ),
        ),
    )


def _paths(text: str) -> tuple[Path, ...]:
    """Paths with colons between them, as in PATH."""
    found = tuple(Path(each).expanduser() for each in text.split(":") if each)
    for path in found:
        if not path.is_absolute():
            raise ValueError(f"{path} is not absolute")
    return found


def _agent_limits(env: Mapping[str, str]) -> AgentLimits:
    found: dict[str, Any] = {}
    for limit in Limit:
        parse: Callable[[str], float] = positive_number if limit is Limit.CPUS else positive_int
        found[limit.value] = pick(env, limit.variable, _or_off(parse), None)
    return AgentLimits(**found)


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
                f"{key.strip()!r} cannot be kept warm; agents that can: {', '.join(able) or 'none'}"
            )
        found[key.strip()] = _warm_number(number)
    return found


def _warm_number(text: str) -> int:
    number = whole_number(text.strip())
    if number > WARM_MAX:
        raise ValueError(f"{number} is more than {WARM_MAX} warm processes of one agent")
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
