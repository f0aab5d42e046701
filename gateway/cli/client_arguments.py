"""The commands for users of agents: `chat`, `run`, `conversations`, `agents`, `settings`, ..."""

from __future__ import annotations

import argparse
from typing import Final

from gateway.cli.arguments import DONE_EPILOG, ID, ONE, STATE, URL, Commands, count, give, option, seconds

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
    "interrupts the turn; the second one leaves, and so does Ctrl-D. @PATH sends a file along, Shift-Tab "
    "goes through the agent's modes, /help lists the commands. "
    "Exit status: 0 left, 1 failed, 2 usage error, 3 no server, 130 left by Ctrl-C."
)

ACP_EPILOG: Final = STARTS + (
    "Standard input and output carry the messages of the Agent Client Protocol, standard error has words for "
    "people. When the editor closes standard input, the command ends and a running turn continues on the "
    "server; one on a temporary server ends. "
    "Exit status: 0 the editor has left, 1 failed, 2 usage error, 3 no server, 130 left by Ctrl-C."
)

TALK: Final = (
    option("--agent NAME", "agent, such as codex (`ostler agents list`; default: the settings' agent)"),
    option("--cwd DIR", "working directory of the agent (default: the current directory)"),
    option("--model M", "the agent's model"),
    option(
        "--image FILE",
        "send an image with the first message: PNG, JPEG, GIF or WebP; may be given several times",
        action="append",
        default=[],
    ),
    option("--state DIR", "state directory of a temporary server (OSTLER_STATE; default ~/.ostler)"),
)
"""What `run` and `chat` share; `_choices` has the rest."""


def add_clients(commands: Commands) -> None:
    """Add them; `add` is `add_parser` of the `ostler` command's subparsers."""
    run = commands.add(
        "run",
        "run one prompt, show the progress, and print the answer",
        [
            'ostler run "What is in this directory?"',
            'ostler run --agent codex --cwd ~/project --yes "Fix the failing test"',
            "git diff | ostler run 'Review this:'",
            'ostler run --continue "And now the other one"',
            'ostler wait $(ostler run --detach "Fix the failing test")',
            'ostler run --json "Hello" | jq -r "select(.type == \\"outcome\\").response"',
        ],
        URL,
        option(
            "prompt PROMPT",
            "the prompt, and after it what a pipe on standard input has; `-` at the end waits for that",
            nargs="*",
        ),
        *TALK,
        epilog=RUN_EPILOG,
        remote=False,
        json=None,
        run="talk.run:run",
    )
    _choices(run)
    give(
        run,
        option("--json", "print each frame as a line of JSON, the outcome last"),
        option("--detach", "print the conversation's id and leave it running on the server"),
        option("--notify COMMAND", "run COMMAND in a shell when it is done, or waits for you"),
        option("-q --quiet", "print only the answer"),
    )
    chat = commands.add(
        "chat",
        "talk with an agent",
        ["ostler chat", "ostler chat --agent claude-code --cwd ~/project", "ostler chat --continue"],
        URL,
        *TALK,
        epilog=CHAT_EPILOG,
        remote=False,
        json=None,
        run="talk.chat:run",
    )
    _choices(chat)
    commands.add(
        "acp",
        "be an ACP agent for an editor, on standard input and output",
        [
            "ostler acp",
            "ostler acp --agent codex",
            "OSTLER_API_KEY=... ostler acp --url https://ostler.example.com",
            "ostler acp --url https://ostler.example.com --login",
        ],
        URL,
        option("--agent NAME", "agent of new sessions (`ostler agents list`; default: the settings' agent)"),
        option("--model M", "the agent's model in new sessions"),
        option("--login", "ask for the server's session key, check it, keep it for this server, and end"),
        option("--state DIR", "state directory of a temporary server (OSTLER_STATE; default ~/.ostler)"),
        epilog=ACP_EPILOG,
        remote=False,
        json=None,
        run="acp.command:run",
    )
    _add_conversations(commands)
    commands.add(
        "events",
        "print the events of a conversation with their sequence numbers",
        [
            "ostler events 0f8f",
            "ostler events 0f8f --follow --since-seq 40",
            "ostler events 0f8f --json | jq .event.kind",
        ],
        ONE,
        option("-f --follow", "wait for new events and print them"),
        option("--since-seq N", "begin with sequence number N", type=count, default=0),
        json="print the frames, one per line",
        run="follow.events:events",
        alone=True,
    )
    _add_agents(commands)
    _add_settings(commands)
    commands.add(
        "doctor",
        "check this machine and the configuration, and tell what to fix",
        ["ostler doctor", "ostler doctor --json"],
        STATE,
        epilog="No server is required. Exit status: 0 nothing to fix, 1 something does not work.",
        remote=False,
        run="doctor.checks:run",
    )
    commands.add(
        "completion",
        "print the shell script that completes commands, options and ids",
        [
            'eval "$(ostler completion bash)"      # in ~/.bashrc',
            'eval "$(ostler completion zsh)"       # in ~/.zshrc, after compinit',
            "mkdir -p ~/.config/fish/completions",
            "ostler completion fish > ~/.config/fish/completions/ostler.fish",
        ],
        option("shell SHELL", "the shell: bash, zsh or fish", nargs="?"),
        option("words", argparse.SUPPRESS, nargs="*"),
        epilog=DONE_EPILOG,
        remote=False,
        json=None,
        run="completion:run",
    )


def _choices(parser: argparse.ArgumentParser) -> None:
    """Options of `run` and `chat` that exclude each other."""
    policy = parser.add_mutually_exclusive_group()
    give(
        policy,
        option("--yes", "allow every permission request"),
        option("--ask", "ask in the terminal, under any policy of the conversation"),
    )
    which = parser.add_mutually_exclusive_group()
    give(
        which,
        option("--resume ID", "continue this conversation"),
        option("--continue", "continue the last conversation of this directory", dest="latest"),
    )


def _add_conversations(commands: Commands) -> None:
    actions = commands.group(
        "conversations",
        "list, show, compare, export and delete conversations",
        ["ostler conversations list", "ostler conversations export 0f8f --format md -o talk.md"],
        "operate.conversations",
        alone=True,
    )
    actions.add(
        "list",
        "list conversations, the last changed first",
        ["ostler conversations list", "ostler conversations list --status error -n 5"],
        option("-n --limit N", f"show at most N (default {LISTED})", type=count, default=LISTED),
        option("--status STATUS", "show only conversations with this status: running, finished, error, ..."),
    )
    actions.add("show", "show one conversation", ["ostler conversations show 0f8f"], ID)
    actions.add(
        "diff",
        "show what the agent changed in files",
        ["ostler conversations diff 0f8f"],
        ID,
        run="follow.export:diff",
    )
    actions.add(
        "export",
        "write a conversation with all its events as JSON lines or Markdown",
        [
            "ostler conversations export 0f8f > 0f8f.jsonl",
            "ostler conversations export 0f8f --format md -o talk.md",
        ],
        ID,
        option("--format", "jsonl (the default) or md", choices=FORMATS, default="jsonl"),
        option("-o --output FILE", "write to FILE instead of standard output; an existing file is replaced"),
        run="follow.export:export",
        json=None,
    )
    actions.add(
        "delete",
        "delete conversations with all their events",
        ["ostler conversations delete 0f8f", "ostler conversations delete 0f8f 7c9e --yes"],
        option("ids ID", "id of a conversation", nargs="+"),
        option("--yes", "do not ask first"),
    )


def _add_agents(commands: Commands) -> None:
    actions = commands.group(
        "agents",
        "list and install the agents of the catalogue, and test any agent",
        ["ostler agents list", "ostler agents install codex", "ostler agents probe -- my-agent --acp"],
        "agents.agents",
        epilog="No server is required. " + DONE_EPILOG,
    )
    actions.add(
        "list",
        "list the agents of the catalogue, what is installed, and which credential each would use",
        ["ostler agents list", "ostler agents list --json"],
        STATE,
        epilog="No server is required; the credentials are those that a server with this state would find. "
        + DONE_EPILOG,
        remote=False,
    )
    actions.add(
        "install",
        "install an agent of the catalogue ahead of its first conversation",
        ["ostler agents install claude-code"],
        option("name NAME", "name of the agent, such as codex"),
        STATE,
        epilog="No server is required. " + DONE_EPILOG,
        remote=False,
    )
    actions.add(
        "probe",
        "test how an agent follows the protocol: PASS, FAIL or NOT OFFERED for each part",
        [
            "ostler agents probe codex",
            "ostler agents probe demo --json",
            "ostler agents probe -- my-agent --acp",
        ],
        option(
            "words NAME",
            "name of an agent of the catalogue, or -- and any command that speaks ACP",
            nargs="+",
        ),
        option("--no-prompt", "send no prompt"),
        option(
            "--timeout SECONDS",
            "wait at most this long for each answer (default 60)",
            type=seconds(),
            default=60.0,
        ),
        STATE,
        epilog="No server is required. The agent gets four small prompts, which may cost a little; "
        "--no-prompt leaves them out. Exit status: 0 nothing failed, 1 something failed, 2 usage error.",
        remote=False,
    )


def _add_settings(commands: Commands) -> None:
    actions = commands.group(
        "settings",
        "show and change the settings of new conversations",
        ["ostler settings get", "ostler settings set acp_server codex"],
        "operate.settings",
        alone=True,
    )
    actions.add(
        "get",
        "print the agent's settings, or one of them; secrets are hidden",
        ["ostler settings get", "ostler settings get acp_model", "ostler settings get mcp_config --json"],
        option("key KEY", "name of a setting; dots separate levels: agent_context.skills", nargs="?"),
    )
    actions.add(
        "set",
        "change one of the agent's settings",
        [
            "ostler settings set acp_server claude-code",
            "ostler settings set acp_command 'my-agent --acp'",
            "ostler settings set acp_model null",
        ],
        option("key KEY", "name of a setting; dots separate levels"),
        option("value VALUE", "JSON, else text; null for no value"),
    )
    actions.add(
        "unset",
        "remove the value of one of the agent's settings",
        ["ostler settings unset acp_model", "ostler settings unset mcp_config.tools"],
        option("key KEY", "name of a setting; dots separate levels"),
    )
