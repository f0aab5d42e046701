"""Arguments of the commands for users of agents: `chat`, `run`, `conversations`, `agents`, `settings`, ..."""

from __future__ import annotations

import argparse
from typing import Final

from gateway.cli.arguments import DONE_EPILOG, Add, actions_of, command, count, group, json_option

SHELLS: Final = ("bash", "zsh", "fish")
FORMATS: Final = ("jsonl", "md")

LISTED: Final = 20
"""Conversations that are listed: a screenful."""

STARTS: Final = (
    "The command uses the server at --url or OSTLER_URL, else the one at OSTLER_HOST and OSTLER_PORT. If "
    "neither --url nor OSTLER_URL is set and no server answers, the command starts a temporary server on the "
    "state directory (OSTLER_STATE). "
)

RUN_EPILOG: Final = STARTS + (
    "If standard output is not a terminal, it gets the answer alone; progress goes to standard error. "
    "The command shows permission requests in the terminal. Without a terminal on standard input it refuses "
    "them, unless --yes is given. The first Ctrl-C interrupts the turn, the second one leaves. "
    "Exit status: 0 finished, 1 the turn failed, 2 usage error, 3 no server, 4 a permission was refused, 130 "
    "interrupted."
)

CHAT_EPILOG: Final = STARTS + (
    "Enter sends; Alt-Enter, or a backslash at the end of a line, begins a new line. The first Ctrl-C "
    "interrupts the turn; the second one leaves, and so does Ctrl-D. /help lists the commands. "
    "Exit status: 0 left, 1 failed, 2 usage error, 3 no server, 130 left by Ctrl-C."
)


def add_commands(add: Add) -> None:
    """Add them; `add` is `add_parser` of the `ostler` command's subparsers."""
    _add_run(add)
    _add_chat(add)
    _add_conversations(add)
    _add_events(add)
    _add_agents(add)
    _add_settings(add)
    doctor = command(
        add,
        "doctor",
        "check this machine and the configuration, and tell what to fix",
        ["ostler doctor", "ostler doctor --json"],
        epilog="No server is required. Exit status: 0 nothing to fix, 1 something does not work.",
        remote=False,
    )
    json_option(doctor)
    doctor.add_argument(
        "--state", metavar="DIR", help="the state directory (OSTLER_STATE; default ~/.ostler)"
    )
    completion = command(
        add,
        "completion",
        "print the shell script that completes commands, options and ids",
        [
            'eval "$(ostler completion bash)"      # in ~/.bashrc',
            'eval "$(ostler completion zsh)"       # in ~/.zshrc, after compinit',
            "ostler completion fish > ~/.config/fish/completions/ostler.fish",
        ],
        epilog=DONE_EPILOG,
        remote=False,
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    completion.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def _talk(parser: argparse.ArgumentParser) -> None:
    """What `run` and `chat` share."""
    parser.add_argument(
        "--agent",
        metavar="NAME",
        help="agent, such as codex (`ostler agents list`; default: the settings' agent)",
    )
    parser.add_argument(
        "--cwd", metavar="DIR", help="working directory of the agent (default: the current directory)"
    )
    parser.add_argument("--model", metavar="M", help="the agent's model")
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="state directory of a temporary server (OSTLER_STATE; default ~/.ostler)",
    )
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument("--yes", action="store_true", help="allow every permission request")
    policy.add_argument(
        "--ask", action="store_true", help="ask in the terminal, whatever the policy of the conversation"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--resume", metavar="ID", help="continue this conversation")
    which.add_argument(
        "--continue", dest="latest", action="store_true", help="continue the conversation that changed last"
    )


def _add_run(add: Add) -> None:
    run = command(
        add,
        "run",
        "run one prompt, show the progress, and print the answer",
        [
            'ostler run "What is in this directory?"',
            'ostler run --agent codex --cwd ~/project --yes "Fix the failing test"',
            "git diff | ostler run 'Review this:' -",
            'ostler run --continue "And now the other one"',
            'ostler run --json "Hello" | jq -r "select(.type == \\"outcome\\").response"',
        ],
        epilog=RUN_EPILOG,
    )
    run.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="*",
        help="the prompt; `-` stands for standard input, which is also read when no prompt is given",
    )
    _talk(run)
    json_option(run, "print each frame as a line of JSON, the outcome last")
    run.add_argument("-q", "--quiet", action="store_true", help="print only the answer")


def _add_chat(add: Add) -> None:
    chat = command(
        add,
        "chat",
        "talk with an agent",
        ["ostler chat", "ostler chat --agent claude-code --cwd ~/project", "ostler chat --continue"],
        epilog=CHAT_EPILOG,
    )
    _talk(chat)


def _add_conversations(add: Add) -> None:
    actions = actions_of(
        group(
            add,
            "conversations",
            "list, show, export and delete conversations",
            ["ostler conversations list", "ostler conversations export 0f8f --format md -o talk.md"],
        )
    )
    listing = command(
        actions,
        "list",
        "list conversations, the last changed first",
        ["ostler conversations list", "ostler conversations list --status error -n 5"],
    )
    json_option(listing)
    listing.add_argument(
        "-n", "--limit", metavar="N", type=count, default=LISTED, help=f"show at most N (default {LISTED})"
    )
    listing.add_argument(
        "--status",
        metavar="STATUS",
        help="show only conversations with this status: running, finished, error, ...",
    )
    show = command(actions, "show", "show one conversation", ["ostler conversations show 0f8f"])
    json_option(show)
    _id(show)
    export = command(
        actions,
        "export",
        "write a conversation with all its events as JSON lines or Markdown",
        [
            "ostler conversations export 0f8f > 0f8f.jsonl",
            "ostler conversations export 0f8f --format md -o talk.md",
        ],
    )
    _id(export)
    export.add_argument("--format", choices=FORMATS, default="jsonl", help="jsonl (the default) or md")
    export.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to FILE instead of standard output; an existing file is replaced",
    )
    delete = command(
        actions,
        "delete",
        "delete conversations with all their events",
        ["ostler conversations delete 0f8f", "ostler conversations delete 0f8f 7c9e --yes"],
    )
    json_option(delete)
    delete.add_argument("ids", metavar="ID", nargs="+", help="id of a conversation")
    delete.add_argument("--yes", action="store_true", help="do not ask first")


def _add_events(add: Add) -> None:
    events = command(
        add,
        "events",
        "print the events of a conversation with their sequence numbers",
        [
            "ostler events 0f8f",
            "ostler events 0f8f --follow --since-seq 40",
            "ostler events 0f8f --json | jq .event.kind",
        ],
    )
    json_option(events, "print the frames, one per line")
    _id(events)
    events.add_argument("-f", "--follow", action="store_true", help="wait for new events and print them")
    events.add_argument(
        "--since-seq", metavar="N", type=count, default=0, help="begin with sequence number N"
    )


def _add_agents(add: Add) -> None:
    actions = actions_of(
        group(
            add,
            "agents",
            "list and install the agents of the catalogue, and test any agent",
            ["ostler agents list", "ostler agents install codex", "ostler agents probe -- my-agent --acp"],
            epilog="No server is required. " + DONE_EPILOG,
        )
    )
    listing = command(
        actions,
        "list",
        "list the agents of the catalogue, what is installed, and which credential each would use",
        ["ostler agents list", "ostler agents list --json"],
        epilog="No server is required; the credentials are those that a server with this state would find. "
        + DONE_EPILOG,
        remote=False,
    )
    json_option(listing)
    _state(listing)
    install = command(
        actions,
        "install",
        "install an agent of the catalogue ahead of its first conversation",
        ["ostler agents install claude-code"],
        epilog="No server is required. " + DONE_EPILOG,
        remote=False,
    )
    json_option(install)
    install.add_argument("name", metavar="NAME", help="name of the agent, such as codex")
    _state(install)
    probe = command(
        actions,
        "probe",
        "test how an agent follows the protocol: PASS, FAIL or NOT OFFERED for each part",
        [
            "ostler agents probe codex",
            "ostler agents probe demo --json",
            "ostler agents probe -- my-agent --acp",
        ],
        epilog="No server is required. The agent gets four small prompts, which may cost a little; "
        "--no-prompt leaves them out. Exit status: 0 nothing failed, 1 something failed, 2 usage error.",
        remote=False,
    )
    json_option(probe)
    probe.add_argument(
        "words",
        metavar="NAME",
        nargs="+",
        help="name of an agent of the catalogue, or -- and any command that speaks ACP",
    )
    probe.add_argument("--no-prompt", action="store_true", help="send no prompt")
    probe.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=60.0,
        help="wait at most this long for each answer (default 60)",
    )
    _state(probe)


def _add_settings(add: Add) -> None:
    actions = actions_of(
        group(
            add,
            "settings",
            "show and change the settings of new conversations",
            ["ostler settings get", "ostler settings set acp_server codex"],
        )
    )
    get = command(
        actions,
        "get",
        "print the agent's settings, or one of them; secrets are hidden",
        ["ostler settings get", "ostler settings get acp_model", "ostler settings get mcp_config --json"],
    )
    json_option(get)
    get.add_argument(
        "key", metavar="KEY", nargs="?", help="name of a setting; dots separate levels: agent_context.skills"
    )
    change = command(
        actions,
        "set",
        "change one of the agent's settings",
        [
            "ostler settings set acp_server claude-code",
            "ostler settings set acp_command 'my-agent --acp'",
            "ostler settings set acp_model null",
        ],
    )
    json_option(change)
    change.add_argument("key", metavar="KEY", help="name of a setting; dots separate levels")
    change.add_argument("value", metavar="VALUE", help="JSON, else text; null for no value")


def _id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of the conversation")


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", metavar="DIR", help="the state directory (OSTLER_STATE; default ~/.ostler)"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
