"""`ostler secrets`: the secrets of agents, by name. A value is read, and never printed."""

from __future__ import annotations

import getpass
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure, Missing
from gateway.cli.present import print_json, print_table, warn
from gateway.cli.text import clean

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
"""The server's rule, also checked here before the user types a value."""

BAD_NAME: Final = "a secret name starts with a letter and has at most 64 letters, digits and underscores"

MOST_BYTES: Final = 1024 * 1024
"""Bytes read from standard input: more than any environment can hold, less than the server accepts in a
body."""

STORED: Final = "/api/settings/secrets"
SOURCES: Final = "/api/secrets"
CREDENTIALS: Final = "/api/agents/credentials"

COLUMNS: Final = ("NAME", "SOURCE", "WHERE", "DESCRIPTION")
CREDENTIAL_COLUMNS: Final = ("AGENT", "CREDENTIAL", "NAME", "SOURCE", "BASE URL")

KINDS: Final[Mapping[str, str]] = {"api_key": "API key"}
"""Display names that differ from the interface's."""


def do_set(server: Server, arguments: Namespace) -> None:
    """Store a secret, or replace it and its description; the value is asked for, or read from stdin."""
    name = _name(arguments)
    server.get(SOURCES)  # before a person types a value that could not be stored
    body = {"name": name, "value": _value(name)}
    if arguments.description is not None:
        body["description"] = arguments.description
    answer = server.call("PUT", STORED, body)
    print_json(answer) if arguments.json else print(f"stored {name}")
    sys.stdout.flush()
    _warn_shown(server.get(SOURCES), name)
    _warn_old(server, name)


def do_unset(server: Server, arguments: Namespace) -> None:
    """Remove a secret from the store."""
    name = _name(arguments)
    try:
        answer = server.call("DELETE", f"{STORED}/{name}")
    except Missing:
        left = _left(server, name)
        raise Failure(
            f"{name} is not stored; it comes from {left}"
            if left
            else f"there is no secret {name}; `ostler secrets list` shows them"
        ) from None
    print_json(answer) if arguments.json else print(f"removed {name}")
    _warn_old(server, name)
    if not arguments.json and (left := _left(server, name)):
        warn(f"agents still get {name} from {left}")


def do_list(server: Server, arguments: Namespace) -> None:
    """List the secrets and their sources, and on standard error those that are not used."""
    answer = server.get(SOURCES)
    if arguments.json:
        print_json(answer)
        return
    found = answer["secrets"]
    rows = [(each["name"], each["source"], each["where"] or "-", each["description"] or "") for each in found]
    print_table(COLUMNS, rows) if rows else print("no secrets")
    sys.stdout.flush()
    for secret in found:
        for hidden in secret["hides"]:
            first = secret["where"] or "the store"
            warn(f"{secret['name']} of {hidden} is not used: {first} takes precedence")
        _warn_shown(answer, secret["name"])
    for problem in answer["problems"]:
        warn(problem)


def do_rotate(server: Server, arguments: Namespace) -> None:
    """Change the master key."""
    answer = server.post(f"{SOURCES}/rotate")
    if arguments.json:
        print_json(answer)
        return
    count = answer["secrets"]
    what = "1 secret is" if count == 1 else f"{count} secrets are"
    print(f"{what} encrypted under a new key, which is in {clean(answer['key'])}")


def do_check(server: Server, arguments: Namespace) -> None:
    """Print the credential that an agent would use in a new conversation, and on standard error why no
    other."""
    agent = arguments.agent
    try:
        answer = server.get(CREDENTIALS if agent is None else f"{CREDENTIALS}?agent={quote(agent, safe='')}")
    except Missing:
        raise Failure(f"there is no agent {agent}; `ostler agents list` shows them") from None
    if arguments.json:
        print_json(answer)
        return
    rows = [
        _credential_row(each, credential)
        for each in answer["agents"]
        for credential in (each["credential"], *each["also"])
    ]
    print_table(CREDENTIAL_COLUMNS, rows)
    sys.stdout.flush()
    for each in answer["agents"]:
        for withheld in each["withheld"]:
            warn(f"{each['agent']} is not given {withheld['name']}: {withheld['reason']}")
        if agent is not None and each["credential"]["kind"] == "none" and each["would_help"]:
            warn(f"{each['agent']} would use one of the secrets {', '.join(each['would_help'])}")


def _name(arguments: Namespace) -> str:
    name: str = arguments.name
    if not NAME.fullmatch(name):
        raise BadInput(BAD_NAME)  # not quoted: it may be NAME=VALUE
    return name


def _value(name: str) -> str:
    """The value, typed without echo or read to the end without the end of its last line. Raises BadInput."""
    if sys.stdin.isatty():
        try:
            value = getpass.getpass(f"Value of {name}: ")
        except EOFError:
            print(file=sys.stderr)  # Ctrl-D leaves the line open
            value = ""
    else:
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise BadInput("the value is too long")
        try:
            value = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise BadInput("the value is not valid UTF-8") from None
    if not value.strip():
        raise BadInput("the value is blank; `ostler secrets unset` removes a secret")
    return value


def _left(server: Server, name: str) -> str | None:
    """The other source of a secret of this name."""
    return next((each["where"] for each in server.get(SOURCES)["secrets"] if each["name"] == name), None)


def _credential_row(agent: Mapping[str, Any], credential: Mapping[str, Any]) -> tuple[str, ...]:
    url = agent["base_url"]
    return (
        agent["agent"],
        KINDS.get(credential["kind"], credential["kind"]),
        credential["name"] or credential["file"] or "-",
        credential["source"] or "-",
        "-" if url is None else url["name"],
    )


def _warn_old(server: Server, name: str) -> None:
    """Say how many agents run with what the secret was before."""
    old = [agent for agent in server.get("/api/agents")["agents"] if name in agent["changed_secrets"]]
    lasting = sum(not agent.get("restorable") for agent in old)
    if old:
        agents = "1 running agent has" if len(old) == 1 else f"{len(old)} running agents have"
        more = f", {lasting} of them until `ostler restart`" if lasting else ""
        warn(f"{agents} the old {name} until the next turn{more}")


def _warn_shown(answer: Mapping[str, Any], name: str) -> None:
    reason = answer.get("not_hidden", {}).get(name)
    if reason is not None:
        warn(f"{name} is not hidden in what agents say: it is {reason}")
