"""The operators' commands and the server's: `serve`, `ps`, `restart`, `secrets`, ..."""

from __future__ import annotations

from typing import Final

from gateway.cli.arguments import DONE_EPILOG, EPILOG, ONE, SECRETS, STATE, Commands, count, option, seconds

WATCH_SECONDS: Final = 2.0
SHORTEST_WATCH_SECONDS: Final = 0.1

WATCH: Final = option(
    "-w --watch SECONDS",
    f"repeat every SECONDS (default {WATCH_SECONDS:g})",
    nargs="?",
    type=seconds(SHORTEST_WATCH_SECONDS),
    const=WATCH_SECONDS,
)

SEVERAL: Final = (
    option("--all", "all agents that run"),
    option("--agent NAME", "those of this name, such as codex"),
)


def add_serve(commands: Commands) -> None:
    """Add `serve`. Its values are checked later, together with those of the environment."""
    commands.add(
        "serve",
        "run the server",
        ["ostler serve", "ostler serve --port 9000 --state ~/other", "ostler serve --keys-file keys.env"],
        option("--host HOST", "address to listen on (OSTLER_HOST; default 127.0.0.1)"),
        option("--port PORT", "port, 0 for any free one (OSTLER_PORT; default 8000)"),
        STATE,
        option(
            "--containment LEVEL",
            "containment of agents: auto, tree, warden, cgroup, pidns (OSTLER_CONTAINMENT)",
        ),
        option("--no-warden", "run without the parent process that restarts the server (OSTLER_NO_WARDEN)"),
        option(
            "--keys-file PATH",
            "file of session keys, master key and secrets as lines NAME=value (OSTLER_KEYS_FILE)",
        ),
        option("--keys-fd N", "read the same from an open descriptor, such as a pipe"),
        epilog="docs/configuration.md lists its variables.",
        remote=False,
        json=None,
    )


def add_operators(commands: Commands) -> None:
    """Add the commands for operators."""
    commands.add(
        "ps", "list the agents", ["ostler ps", "ostler ps --watch"], WATCH, run="operate.processes:ps"
    )
    commands.add(
        "status",
        "show the state of the server",
        ["ostler status", "ostler status --json"],
        WATCH,
        run="operate.status:run",
    )
    commands.add(
        "servers",
        "list the servers that share one database",
        ["ostler servers", "ostler servers --watch"],
        WATCH,
        run="operate.servers:servers",
    )
    commands.add(
        "drain",
        "have a server give its conversations to the others",
        ["ostler drain node-3"],
        option("name NAME", "name of the server, as `ostler servers` has it"),
        run="operate.servers:drain",
    )
    commands.add(
        "open",
        "open the console in a browser, or a conversation in it",
        ["ostler open", "ostler open 0f8f"],
        option("id ID", "id of a conversation", nargs="?"),
        run="operate.console:run",
    )
    commands.add(
        "restart",
        "restart an agent and resume its session",
        ["ostler restart 0f8f", "ostler restart 0f8f --force", "ostler restart --agent codex"],
        ONE,
        *SEVERAL,
        option("--force", "do not wait for the end of its turn"),
        run="operate.processes:restart",
    )
    commands.add(
        "stop",
        "stop an agent; the next message to its conversation starts it again",
        ["ostler stop 0f8f", "ostler stop --all"],
        ONE,
        *SEVERAL,
        run="operate.processes:stop",
    )
    commands.add(
        "logs",
        "print what an agent wrote to standard error",
        ["ostler logs 0f8f -n 20", "ostler logs 0f8f --follow", "ostler logs 0f8f --trace"],
        ONE,
        option("-f --follow", "wait for new lines and print them"),
        option("-n --lines N", "print only the last N lines", type=count),
        option("--trace", "print the frames between agent and server instead"),
        run="operate.logs:run",
        alone=True,
    )
    commands.add(
        "attach",
        "follow a running conversation, and answer its questions at a terminal",
        ["ostler attach", "ostler attach 0f8f --all", "ostler attach 0f8f --json | jq .type"],
        option("id ID", "id of the conversation", nargs="?"),
        option("--all", "begin with the first event"),
        run="talk.attach:attach",
    )
    commands.add(
        "wait",
        "wait until conversations are done, and say when one waits for a person",
        [
            "ostler wait 0f8f 7c9e",
            'ostler wait 0f8f --notify \'notify-send "$OSTLER_TITLE" "$OSTLER_STATUS"\'',
        ],
        option("ids ID", "id of a conversation; not needed where only one is at work", nargs="*"),
        option("--notify COMMAND", "run COMMAND in a shell when one is done or waits"),
        epilog="A terminal also gets a bell and a notification. " + EPILOG,
        run="operate.background:wait",
    )
    commands.add(
        "approve",
        "allow what a conversation waits for",
        ["ostler approve", "ostler approve 0f8f"],
        ONE,
        run="operate.background:approve",
    )
    commands.add(
        "deny",
        "refuse what a conversation waits for",
        ["ostler deny 0f8f --reason 'use the staging server'"],
        ONE,
        option("--reason TEXT", "what the agent is to know about it"),
        run="operate.background:deny",
    )
    _add_secrets(commands)
    _add_database(commands)


def _add_database(commands: Commands) -> None:
    actions = commands.group(
        "database",
        "move a whole state between a state directory and PostgreSQL",
        ["ostler database copy ~/.ostler env:OSTLER_DATABASE"],
        "database.copy",
        epilog=DONE_EPILOG,
    )
    actions.add(
        "copy",
        "copy conversations, settings, secrets and positions of webhooks, and compare them",
        [
            "ostler database copy ~/.ostler env:OSTLER_DATABASE",
            "ostler database copy postgresql://ostler@db/ostler ./state",
        ],
        option("source FROM", "a state directory, postgresql://..., or env:NAME, the variable with either"),
        option("target TO", "the same; it must be empty, or hold a part of this very copy"),
        epilog="No server may use either. A copy that was interrupted continues where it was. env:NAME keeps "
        "a password out of the list of processes. The master key, installed agents, agents' own data and "
        "workspaces are not copied. " + DONE_EPILOG,
        remote=False,
    )


def _add_secrets(commands: Commands) -> None:
    actions = commands.group(
        SECRETS,
        "store, list and remove the secrets of agents: keys and tokens, by the name of a variable",
        [
            "ostler secrets set ANTHROPIC_API_KEY",
            "ostler secrets set OPENAI_API_KEY < key.txt",
            "ostler secrets check codex",
        ],
        "operate.secrets",
        alone=True,
    )
    actions.add(
        "set",
        "store a secret; the command asks for its value, or reads it from standard input",
        ["ostler secrets set ANTHROPIC_API_KEY", "pass show openai | ostler secrets set OPENAI_API_KEY"],
        option("name NAME", "name of the variable that the agent reads"),
        option("--description TEXT", "note about the secret"),
    )
    actions.add(
        "unset",
        "remove a secret from the store",
        ["ostler secrets unset OPENAI_API_KEY"],
        option("name NAME", "name of the secret"),
    )
    actions.add("list", "list names and where each secret comes from", ["ostler secrets list"])
    actions.add(
        "check",
        "tell which credential an agent would use, never its value",
        ["ostler secrets check", "ostler secrets check codex"],
        option("agent AGENT", "agent, such as codex (default: all)", nargs="?"),
    )
    actions.add("rotate", "encrypt all stored secrets with a new master key", ["ostler secrets rotate"])
