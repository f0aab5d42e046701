"""`ostler settings`: the settings of new conversations."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.cli.agents.names import BUILT_IN, CUSTOM, no_agent, with_key
from gateway.cli.client import MUST_BE, Server
from gateway.cli.failures import BadInput, Failure
from gateway.cli.present import print_json
from gateway.cli.suggest import did_you_mean
from gateway.cli.text import clean, one_line, plain

SETTINGS: Final = "/api/settings"
SERVER: Final = "acp_server"
"""The setting that names the agent."""

LIMITS: Final = "acp_limits"
"""The setting whose members are numbers, also where there are none yet."""

SHOWN: Final = "`ostler settings get` shows them"
NO_COMMAND: Final = (
    "no command of a custom agent was ever set; `ostler settings set acp_command 'my-agent --acp'` sets one"
)

UNSAID: Final[Mapping[str, Any]] = {
    "acp_env": {},
    "acp_env_plain": [],
    "acp_home": None,
    "acp_home_links": [],
    "acp_home_copies": [],
    "acp_client_methods": None,
    "acp_after_cut_off": None,
    "acp_walls": None,
    "acp_walls_read": [],
    "acp_walls_write": [],
    "acp_url": None,
    "acp_headers": {},
    LIMITS: {},
}
"""Settings that the server omits while they have their defaults."""


def do_get(server: Server, arguments: Namespace) -> None:
    """Print all of them, or one."""
    settings = with_key(server.get(SETTINGS)["agent_settings"])
    value = settings if arguments.key is None else _value(settings, arguments.key)
    if arguments.json:
        print_json(value)
    elif isinstance(value, Mapping):
        for key, each in sorted(_leaves(value)):
            print(f"{key} = {one_line(plain(each))}")
    else:
        print(clean(plain(value)))


def do_set(server: Server, arguments: Namespace) -> None:
    """Change one; the others stay. Raises BadInput with the field that is wrong."""
    before = {**UNSAID, **with_key(server.get(SETTINGS)["agent_settings"])}
    first = arguments.key.split(".")[0]
    if first not in before and first != SERVER:
        raise BadInput(f"there is no setting {first!r}{did_you_mean(first, before)} ({SHOWN})")
    if arguments.key == SERVER:
        diff = _choose(arguments.value)
    else:
        is_limit = arguments.key.startswith(f"{LIMITS}.")
        diff = _read(arguments.value, 0 if is_limit else before.get(arguments.key))
        if diff is None and "." not in arguments.key and isinstance(before.get(first), bool | int | float):
            raise BadInput(f"{first} cannot be null")
        for part in reversed(arguments.key.split(".")):
            diff = {part: diff}
    try:
        # Of an agent that was chosen before, what was set then comes back.
        answer = server.call("PATCH", SETTINGS, {"agent_settings_diff": diff, "restore": True})
    except BadInput as error:
        if arguments.key == SERVER and arguments.value == CUSTOM:
            raise BadInput(f"{SERVER}: {NO_COMMAND}") from None
        if arguments.key != SERVER or MUST_BE not in str(error):
            raise
        raise BadInput(f"{SERVER}: {no_agent(arguments.value)}") from None
    settings = with_key(answer["agent_settings"])
    if arguments.json:
        print_json(settings)
        return
    print(f"{arguments.key} = {one_line(plain(_value(settings, arguments.key, None)))}")
    for key in (SERVER, "acp_command", "acp_model"):
        if key != first and key in settings and settings[key] != before.get(key):
            print(f"{key} = {one_line(plain(settings[key]))}")


def do_unset(server: Server, arguments: Namespace) -> None:
    """Take a setting's value away; the agent becomes that of a fresh state. Raises BadInput for one that must
    have a value."""
    if arguments.key == SERVER:
        from supervisor.settings.document import FIRST_SERVER  # late: it takes time

        arguments.value = FIRST_SERVER
        do_set(server, arguments)
        return
    before = _value({**UNSAID, **with_key(server.get(SETTINGS)["agent_settings"])}, arguments.key)
    empty: Any = [] if isinstance(before, list) else None
    if isinstance(before, Mapping):
        empty = dict.fromkeys(before)  # null deletes each
    arguments.value = json.dumps(empty)
    do_set(server, arguments)


def _choose(agent: str) -> Any:
    """The change that makes this the agent: with the kind of settings that it has."""
    if agent == "null":
        return {"agent_kind": "acp", SERVER: None}
    return {"agent_kind": BUILT_IN} if agent == BUILT_IN else {"agent_kind": "acp", SERVER: agent}


_RAISES: Final = object()


def _value(settings: Any, key: str, otherwise: Any = _RAISES) -> Any:
    found = settings
    for part in key.split("."):
        if isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        elif otherwise is not _RAISES:
            return otherwise
        else:
            known = found if isinstance(found, Mapping) else ()
            raise Failure(f"there is no setting {key!r}{did_you_mean(part, known)} ({SHOWN})")
    return found


def _read(text: str, before: Any) -> Any:
    """JSON; else words, where the setting is a list of them; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(before, list) and isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise BadInput(f"{value!r} is not a valid command: {error}") from None
    if (before is None or isinstance(before, str)) and isinstance(value, int | float) and value is not None:
        return text  # a model that is called 5 is not a number
    return value


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield from _leaves(each, f"{above}{key}.")
        else:
            yield f"{above}{key}", each
